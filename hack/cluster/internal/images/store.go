package images

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// containerdNamespace is where containerd keeps what belongs to Kubernetes.
const containerdNamespace = "k8s.io"

// Store is the image store of the cluster's containerd, reached by its tool.
type Store struct{ Dirs plan.Dirs }

// Import brings those images into containerd that it does not have in just this
// form, and returns the names of what it brought.
func (s Store) Import(ctx context.Context, images []Image) ([]string, error) {
	listing, err := s.ctr(ctx, "images", "ls")
	if err != nil {
		return nil, err
	}
	have := parseListing(listing)
	var brought []string
	for _, img := range images {
		if have[img.Name] == img.Digest {
			continue
		}
		if _, err := s.ctr(ctx, "images", "import", img.Archive); err != nil {
			return brought, fmt.Errorf("importing %s: %w", img.Name, err)
		}
		if old := aliases(have, img.Name); len(old) > 0 {
			if _, err := s.ctr(ctx, append([]string{"images", "rm"}, old...)...); err != nil {
				return brought, fmt.Errorf("removing the former %s: %w", img.Name, err)
			}
		}
		brought = append(brought, img.Name)
	}
	return brought, nil
}

// aliases are the names by digest that containerd's CRI part gave to what an
// image was before. Kept, they would hold every version that was ever imported.
// Containers that run from one keep their file system without it.
func aliases(listing map[string]string, name string) []string {
	var found []string
	for alias, digest := range listing {
		if strings.HasPrefix(alias, "sha256:") && digest == listing[name] {
			found = append(found, alias)
		}
	}
	return found
}

// parseListing reads name and digest from the table that ctr prints.
func parseListing(table string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(table) {
		const name, digest = 0, 2
		if columns := strings.Fields(line); len(columns) > digest && strings.HasPrefix(columns[digest], "sha256:") {
			found[columns[name]] = columns[digest]
		}
	}
	return found
}

func (s Store) ctr(ctx context.Context, args ...string) (string, error) {
	all := append([]string{"--address", s.Dirs.ContainerdSocket(), "--namespace", containerdNamespace}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(s.Dirs.Bin(), "ctr"), all...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}
