// Package tools builds the programs that the cluster is made of from the pinned
// modules in hack/tools, and keeps them in a cache.
//
// What is built is kept under a key made from everything that decides it: the
// module files, our own sources in the module, the commands and flags, and the
// Go release. So a changed version builds anew, and an unchanged one never
// does, in this checkout or in another.
package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// kubernetesVersion is what the Kubernetes programs say of themselves: the
// version in hack/tools/kubernetes/go.mod, which their own build would set.
const kubernetesVersion = "v1.36.3"

// Sandboxd is agent-sandbox's daemon for inside a sandbox, which goes into an image.
const Sandboxd = "sandboxd"

// Program is one command of a group.
type Program struct{ Name, Package string }

// Group is one tool module.
type Group struct {
	// Name is the folder in hack/tools.
	Name     string
	Programs []Program
	// LDFlags are passed to the linker on top of the common ones.
	LDFlags []string
	// Data are folders of a required module that the cluster needs besides its
	// programs.
	Data []Data
}

// Data is a folder to take along from a module.
type Data struct{ Name, Module, Path string }

// Groups are all of them, the slowest to build first.
var Groups = []Group{
	{
		Name: "kubernetes",
		Programs: kubernetesPrograms("kube-apiserver", "kube-controller-manager", "kube-scheduler",
			"kubelet", "kube-proxy", "kubectl"),
		LDFlags: []string{
			"-X", "k8s.io/component-base/version.gitVersion=" + kubernetesVersion,
			"-X", "k8s.io/component-base/version.gitMajor=1", "-X", "k8s.io/component-base/version.gitMinor=36",
		},
	},
	{
		Name: "containerd",
		Programs: []Program{
			{"containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
			{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
			{"ctr", "github.com/containerd/containerd/v2/cmd/ctr"},
			{"etcd", "go.etcd.io/etcd/server/v3"},
		},
	},
	{
		Name: "gvisor",
		Programs: []Program{
			{"runsc", "gvisor.dev/gvisor/runsc"},
			{"containerd-shim-runsc-v1", "./shim"},
		},
	},
	{
		Name: "agent-sandbox",
		Programs: []Program{
			{"agent-sandbox-controller", "sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller"},
			{Sandboxd, "sigs.k8s.io/agent-sandbox/packages/sandboxd/cmd/sandboxd"},
		},
		Data: []Data{{Name: "crds", Module: "sigs.k8s.io/agent-sandbox", Path: "k8s/crds"}},
	},
	{
		Name:     "kube-router",
		Programs: []Program{{"kube-router", "./firewall"}},
	},
}

func kubernetesPrograms(names ...string) []Program {
	var all []Program
	for _, n := range names {
		all = append(all, Program{n, "k8s.io/kubernetes/cmd/" + n})
	}
	return all
}

// Builder builds groups.
type Builder struct {
	Dirs plan.Dirs
	// Say tells the user about a build that is about to take long.
	Say func(format string, args ...any)
}

// Ensure builds the groups that the cache lacks and links every program into
// the state folder's bin. It returns the folder of each Data by its name.
func (b Builder) Ensure(ctx context.Context) (map[string]string, error) {
	if err := os.MkdirAll(b.Dirs.Bin(), 0o755); err != nil {
		return nil, err
	}
	data := map[string]string{}
	for _, g := range Groups {
		dir, err := b.ensureGroup(ctx, g)
		if err != nil {
			return nil, fmt.Errorf("building the %s tools: %w", g.Name, err)
		}
		for _, p := range g.Programs {
			if err := link(filepath.Join(dir, p.Name), filepath.Join(b.Dirs.Bin(), p.Name)); err != nil {
				return nil, err
			}
		}
		for _, d := range g.Data {
			data[d.Name] = filepath.Join(dir, d.Name)
		}
	}
	return data, nil
}

// Program builds the group that has the program, if the cache lacks it, and
// returns the program's path in the cache.
func (b Builder) Program(ctx context.Context, name string) (string, error) {
	for _, g := range Groups {
		if !slices.ContainsFunc(g.Programs, func(p Program) bool { return p.Name == name }) {
			continue
		}
		dir, err := b.ensureGroup(ctx, g)
		if err != nil {
			return "", fmt.Errorf("building the %s tools: %w", g.Name, err)
		}
		return filepath.Join(dir, name), nil
	}
	return "", fmt.Errorf("no group of tools has a program %s", name)
}

// ensureGroup returns the group's folder in the cache, building it if need be.
// It is built aside and moved into place whole, so that an interrupted build is
// never taken for a finished one.
func (b Builder) ensureGroup(ctx context.Context, g Group) (string, error) {
	source := filepath.Join(b.Dirs.Project, "hack", "tools", g.Name)
	key, err := b.key(ctx, g, source)
	if err != nil {
		return "", err
	}
	parent := filepath.Join(b.Dirs.Cache, "tools")
	dir := filepath.Join(parent, g.Name+"-"+key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	b.Say("building %s from source; the first time takes minutes", programNames(g))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	aside, err := os.MkdirTemp(parent, g.Name+"-building-")
	if err != nil {
		return "", err
	}
	if err := b.build(ctx, g, source, aside); err != nil {
		return "", errors.Join(err, os.RemoveAll(aside))
	}
	if err := os.Chmod(aside, 0o755); err != nil {
		return "", err
	}
	return dir, os.Rename(aside, dir)
}

func (b Builder) build(ctx context.Context, g Group, source, into string) error {
	for _, p := range g.Programs {
		args := []string{"build", "-trimpath", "-ldflags", ldflags(g), "-o", filepath.Join(into, p.Name), p.Package}
		if _, err := Go(ctx, source, args...); err != nil {
			return err
		}
	}
	for _, d := range g.Data {
		from, err := Go(ctx, source, "list", "-m", "-f", "{{.Dir}}", d.Module)
		if err != nil {
			return err
		}
		files := os.DirFS(filepath.Join(strings.TrimSpace(from), d.Path))
		if err := os.CopyFS(filepath.Join(into, d.Name), files); err != nil {
			return err
		}
	}
	return nil
}

func ldflags(g Group) string { return strings.Join(append([]string{"-s", "-w"}, g.LDFlags...), " ") }

func programNames(g Group) string {
	var names []string
	for _, p := range g.Programs {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// key is a digest of what decides the outcome of a build.
func (b Builder) key(ctx context.Context, g Group, source string) (string, error) {
	release, err := Go(ctx, source, "env", "GOVERSION", "GOARCH", "GOEXPERIMENT", "GOAMD64")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%v\n%v\n", release, ldflags(g), g.Programs, g.Data)
	files, err := sources(source)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(source, f))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", f, len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// sources lists the module files and Go files below dir, in a fixed order.
func sources(dir string) ([]string, error) {
	var files []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		if err == nil && !d.IsDir() && (name == "go.mod" || name == "go.sum" || filepath.Ext(name) == ".go") {
			files = append(files, path)
		}
		return err
	})
	slices.Sort(files)
	return files, err
}

// Go runs the go tool in dir for a static Linux build and returns what it
// prints. A workspace of the user's has no say in it.
func Go(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOWORK=off")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, tail(complaint.String()))
	}
	return out.String(), nil
}

// maxComplaint bounds how much of the go tool's output an error carries.
const maxComplaint = 4 << 10

func tail(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > maxComplaint {
		return "…" + s[len(s)-maxComplaint:]
	}
	return s
}

// link makes name point to target, replacing what was there in one step.
func link(target, name string) error {
	if now, err := os.Readlink(name); err == nil && now == target {
		return nil
	}
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, next); err != nil {
		return err
	}
	return os.Rename(next, name)
}
