package images

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/tools"
)

// suite is the Debian release in the sandbox image.
const suite = "trixie"

// include are the packages besides Debian's essential ones.
var include = []string{"bash", "nodejs", "python3"}

// userAndFolders prepares the file system for a numeric user. The folders
// belong to group 0 and it may write there: a cluster that assigns a user of
// its own choice (OpenShift) runs it in that group.
const userAndFolders = `set -e
echo 'sandbox:x:65532:0:sandbox:/home/sandbox:/bin/bash' >>"$1/etc/passwd"
mkdir -p "$1/workspace" "$1/home/sandbox"
chown 65532:0 "$1/workspace" "$1/home/sandbox"
chmod 0775 "$1/workspace" "$1/home/sandbox"`

// smaller leaves out what a program in a sandbox does not read.
const smaller = `set -e
rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/info/* "$1"/usr/share/locale/* "$1"/var/cache/* "$1"/var/log/*`

// sandboxRecipe are the arguments that make the file system, less the output.
func sandboxRecipe(mirror string) []string {
	args := []string{
		"--quiet", "--mode=root", "--variant=essential", "--format=tar",
		"--include=" + strings.Join(include, ","),
		"--aptopt=APT::Install-Recommends false",
		"--customize-hook=" + userAndFolders,
		"--customize-hook=" + smaller,
		suite, "-",
	}
	if mirror != "" {
		args = append(args, mirror)
	}
	return args
}

// sandbox makes the sandbox image: Debian with python3, node and bash.
func (b Builder) sandbox(ctx context.Context) (Image, error) {
	root, err := b.debianRoot(ctx)
	if err != nil {
		return Image{}, err
	}
	return onDebian(root, plan.SandboxImage, "sandbox-")
}

// peerDaemon is where the image with agent-sandbox's daemon has it.
const peerDaemon = "usr/local/bin/" + tools.Sandboxd

// peer makes the sandbox image with agent-sandbox's daemon on top. containerd
// keeps the large layer that both have once.
func (b Builder) peer(ctx context.Context) (Image, error) {
	root, err := b.debianRoot(ctx)
	if err != nil {
		return Image{}, err
	}
	daemon, err := tools.Builder{Dirs: b.Dirs, Say: b.Say}.Program(ctx, tools.Sandboxd)
	if err != nil {
		return Image{}, err
	}
	return onDebian(root, plan.PeerImage, "sandbox-sandboxd-", file{path: peerDaemon, from: daemon})
}

// file is a program to add: its path in the image, and where it is. The folder
// there is named after what it was made from, so that its name stands for it.
type file struct{ path, from string }

// onDebian makes an image of the file system at root with files on top. Its
// archive lies beside root; its name begins with prefix.
func onDebian(root, ref, prefix string, files ...file) (Image, error) {
	config := describe(nil, "LANG=C.UTF-8", "HOME=/home/sandbox")
	config.WorkingDir = "/workspace"
	// Reading and writing the large file takes a second: do it once for each
	// root, configuration and program.
	made := []any{archiveFormat, filepath.Base(root), ref, config}
	for _, f := range files {
		made = append(made, f.path, filepath.Base(filepath.Dir(f.from)))
	}
	key, err := json.Marshal(made)
	if err != nil {
		return Image{}, err
	}
	archive := filepath.Join(filepath.Dir(root), prefix+digestOf(key)+".tar")
	if img, ok := recall(archive); ok {
		return img, nil
	}
	base, err := newLayer(func() (io.ReadCloser, error) { return os.Open(root) })
	if err != nil {
		return Image{}, err
	}
	layers := []v1.Layer{base}
	for _, f := range files {
		content, err := os.ReadFile(f.from)
		if err != nil {
			return Image{}, err
		}
		l, err := layerOf(tar.Header{Name: f.path, Mode: 0o755, Typeflag: tar.TypeReg}, content)
		if err != nil {
			return Image{}, err
		}
		layers = append(layers, l)
	}
	img, err := write(ref, archive, config, layers...)
	if err != nil {
		return Image{}, err
	}
	return img, remember(img)
}

// archiveFormat changes when write changes what it makes of the same input.
const archiveFormat = 1

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// debianRoot returns a tar of the file system. Making it takes minutes, so it
// is kept in the cache under a key made from the recipe.
func (b Builder) debianRoot(ctx context.Context) (string, error) {
	recipe := sandboxRecipe(b.Mirror)
	root := filepath.Join(b.Dirs.Cache, "images", "debian-"+digestOf([]byte(strings.Join(recipe, "\x00")))+".tar")
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	b.Say("making the sandbox image's file system from Debian %s; the first time takes minutes", suite)
	if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
		return "", err
	}
	aside := root + ".new"
	if err := mmdebstrap(ctx, recipe, aside); err != nil {
		return "", errors.Join(err, os.Remove(aside))
	}
	return root, os.Rename(aside, root)
}

func mmdebstrap(ctx context.Context, recipe []string, into string) error {
	f, err := os.Create(into)
	if err != nil {
		return err
	}
	defer f.Close()
	var complaint strings.Builder
	cmd := exec.CommandContext(ctx, "mmdebstrap", recipe...)
	cmd.Stdout, cmd.Stderr = f, &complaint
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("mmdebstrap: %w\n%s", err, strings.TrimSpace(complaint.String()))
	}
	return f.Close()
}
