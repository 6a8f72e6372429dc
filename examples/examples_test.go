// Package examples runs the examples, as a reader would, against a broker with
// sandboxes on this machine.
package examples

import (
	"context"
	"fmt"
	"image/png"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/broker/server"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// limit bounds each program.
const limit = 3 * time.Minute

// broke starts a broker on plain processes: the examples are the subject, and
// they run where gVisor does not.
func broke(t *testing.T) (url string) {
	t.Helper()
	dir := t.TempDir()
	runner := filepath.Join(dir, "sandbox-runner")
	build(t, runner, "../cmd/sandbox-runner")
	p, err := local.New(t.Context(), local.Options{
		Runtime: local.RuntimeProcess, Runner: runner, StateDir: filepath.Join(dir, "state"), Pools: []local.Pool{{Name: "only", Warm: 1}},
	})
	require.NoError(t, err)
	b, err := broker.New(t.Context(), broker.Options{
		Pools: []broker.PoolConfig{{Name: "only"}}, Provider: p, Secret: []byte(strings.Repeat("s", broker.MinSecret)),
	})
	require.NoError(t, err)
	edge := server.New(server.Options{Broker: b})
	h := httptest.NewServer(edge)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, edge.Close(ctx))
		h.Close()
		require.NoError(t, b.Close(ctx))
		require.NoError(t, p.Close(ctx))
	})
	return h.URL
}

func build(t *testing.T, to, pkg string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", to, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// run builds an example and runs it in dir.
func run(t *testing.T, dir, url, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("this machine has no python3, which the examples run")
	}
	program := filepath.Join(t.TempDir(), name)
	build(t, program, "./"+name)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = []string{sandboxclient.EnvURL + "=" + url}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

func TestAgentLoop(t *testing.T) {
	out := run(t, t.TempDir(), broke(t), "agentloop")
	require.Contains(t, out, "try 1: exit status 1\n", "the library is missing")
	require.Contains(t, out, "try 3: it works\nanswer: 24133\n")
}

func TestPlot(t *testing.T) {
	dir := t.TempDir()
	out := run(t, dir, broke(t), "plot", "mine.png")
	require.Contains(t, out, "2025-07: 19.")
	f, err := os.Open(filepath.Join(dir, "mine.png"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	img, err := png.Decode(f)
	require.NoError(t, err)
	require.Equal(t, "(0,0)-(480,240)", fmt.Sprint(img.Bounds()))
}
