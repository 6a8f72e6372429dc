package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/tools"
)

// Builder builds the cluster's images.
type Builder struct {
	Dirs plan.Dirs
	// Mirror is where Debian's packages come from; empty leaves it to
	// mmdebstrap's own default.
	Mirror string
	// Say tells the user about progress that is worth a line.
	Say func(format string, args ...any)
}

// program is an image of one static binary.
type program struct {
	ref string
	// module and pkg are the folder and the package to build there, both
	// relative: to the project, and to the module.
	module, pkg string
	// binary is what the program is called in the image.
	binary string
}

var programs = []program{
	{plan.PauseImage, "hack/cluster", "./pause", "pause"},
	{plan.RunnerImage, ".", "./cmd/sandbox-runner", "sandbox-runner"},
	{plan.BrokerImage, ".", "./cmd/sandbox-broker", "sandbox-broker"},
}

// All builds every image. One whose source folder does not exist is left out,
// with a word about it.
func (b Builder) All(ctx context.Context) ([]Image, error) {
	var all []Image
	for _, p := range programs {
		_, err := os.Stat(filepath.Join(b.Dirs.Project, p.module, p.pkg))
		if errors.Is(err, os.ErrNotExist) {
			b.Say("skipping %s: there is no %s", p.ref, p.pkg)
			continue
		}
		img, err := b.program(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("building %s: %w", p.ref, err)
		}
		all = append(all, img)
	}
	for _, large := range []struct {
		ref   string
		build func(context.Context) (Image, error)
	}{{plan.SandboxImage, b.sandbox}, {plan.PeerImage, b.peer}} {
		img, err := large.build(ctx)
		if err != nil {
			return nil, fmt.Errorf("building %s: %w", large.ref, err)
		}
		all = append(all, img)
	}
	return all, nil
}

func (b Builder) program(ctx context.Context, p program) (Image, error) {
	binary := filepath.Join(b.Dirs.Build(), p.binary)
	module := filepath.Join(b.Dirs.Project, p.module)
	_, err := tools.Go(ctx, module, "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, p.pkg)
	if err != nil {
		return Image{}, err
	}
	return fromBinary(p.ref, binary, filepath.Join(b.Dirs.Build(), "images", p.binary+".tar"))
}
