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
		brought = append(brought, img.Name)
	}
	return brought, nil
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
