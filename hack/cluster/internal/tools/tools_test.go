package tools

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

func TestKeyChangesWithTheSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	key := func(g Group) string {
		t.Helper()
		k, err := Builder{}.key(context.Background(), g, dir)
		require.NoError(t, err)
		return k
	}
	write("go.mod", "module x\n\ngo 1.26.0\n")
	g := Group{Name: "x"}
	seen := map[string]string{key(g): "as it was"}
	require.Equal(t, "as it was", seen[key(g)])
	for _, c := range []struct {
		what   string
		change func() Group
	}{
		{"another version", func() Group { write("go.sum", "y v1\n"); return g }},
		{"a source file", func() Group { write("shim/main.go", "package main\n"); return g }},
		{"a flag", func() Group { g.LDFlags = []string{"-X", "a=b"}; return g }},
		{"a program", func() Group { g.Programs = []Program{{"a", "b"}}; return g }},
	} {
		k := key(c.change())
		require.NotContains(t, seen, k, c.what)
		seen[k] = c.what
	}
	write("README.md", "no part of the build")
	require.Contains(t, seen, key(g))
}

// Every group's module pins what it builds, and the Kubernetes programs say the
// version that is really built.
func TestGroupsMatchTheirModules(t *testing.T) {
	dirs, err := plan.FindDirs(".")
	require.NoError(t, err)
	for _, g := range Groups {
		text, err := os.ReadFile(filepath.Join(dirs.Project, "hack", "tools", g.Name, "go.mod"))
		require.NoError(t, err)
		for _, p := range g.Programs {
			if p.Package[0] != '.' {
				require.Regexp(t, `(?m)^(tool |\t)`+regexp.QuoteMeta(p.Package)+`$`, string(text), "tool directive in %s", g.Name)
			}
		}
		if g.Name == "kubernetes" {
			require.Regexp(t, `(?m)^\tk8s\.io/kubernetes `+regexp.QuoteMeta(kubernetesVersion)+`( |$)`, string(text))
		}
	}
}

func TestLinkReplaces(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	for _, target := range []string{"/cache/v1/program", "/cache/v2/program", "/cache/v2/program"} {
		require.NoError(t, link(target, name))
		got, err := os.Readlink(name)
		require.NoError(t, err)
		require.Equal(t, target, got)
	}
}
