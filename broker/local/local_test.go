//go:build linux

package local_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/conformance"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// programs are what the tests start sandboxes with.
var programs struct {
	runner string // built here
	runsc  string // empty: there is none
}

func TestMain(m *testing.M) {
	if os.Getenv(envBroker) != "" {
		beBroker()
		return
	}
	if runner := os.Getenv(envRunner); runner != "" { // TestRootless has started this
		programs.runner, programs.runsc = runner, os.Getenv(envRunsc)
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "local-test-")
	if err != nil {
		panic(err)
	}
	programs.runner = filepath.Join(dir, "sandbox-runner")
	build := exec.Command("go", "build", "-o", programs.runner, "../../cmd/sandbox-runner")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the runner: %v\n%s", err, out)
		os.Exit(1)
	}
	programs.runsc = findRunsc()
	// Sandboxes that run as another user must be able to read it.
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// findRunsc looks where `make runsc` puts it, then on PATH.
func findRunsc() string {
	for _, name := range []string{"../../bin/runsc", "runsc"} {
		if path, err := exec.LookPath(name); err == nil {
			path, err = filepath.Abs(path)
			if err == nil {
				return path
			}
		}
	}
	return ""
}

// needRunsc skips a test where gVisor is not to be had. Where it must be, as in
// CI, that is a failure.
func needRunsc(t testing.TB) {
	t.Helper()
	if programs.runsc != "" {
		return
	}
	if os.Getenv("REQUIRE_RUNSC") != "" {
		t.Fatal("REQUIRE_RUNSC is set, but there is no runsc: run `make runsc`")
	}
	t.Skip("there is no runsc: run `make runsc`")
}

func options(t testing.TB, rt local.RuntimeName, pools ...local.Pool) local.Options {
	t.Helper()
	if rt == local.RuntimeRunsc {
		needRunsc(t)
	}
	if len(pools) == 0 {
		pools = []local.Pool{{Name: "test", Warm: 1}}
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	return local.Options{
		Runtime: rt, Runsc: programs.runsc, Runner: programs.runner, StateDir: filepath.Join(dir, "state"), Pools: pools,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func open(t testing.TB, o local.Options) *local.Provider {
	t.Helper()
	p, err := local.New(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, p.Close(ctx))
		require.NoDirExists(t, o.StateDir, "nothing is left behind")
	})
	return p
}

func TestConformance(t *testing.T) {
	for _, rt := range []local.RuntimeName{local.RuntimeProcess, local.RuntimeRunsc} {
		t.Run(string(rt), func(t *testing.T) {
			conformance.Provider(t, func(t *testing.T) conformance.Subject {
				o := options(t, rt)
				return conformance.Subject{
					Provider: open(t, o), Pool: "test", WarmPool: "test", KilledAs: wire.CauseRunnerKilled,
					Kill: func(_ context.Context, s broker.Sandbox) error { return killOutside(s.ID()) },
					Exists: func(_ context.Context, s broker.Sandbox) (bool, error) {
						_, err := os.Stat(filepath.Join(o.StateDir, "sandboxes", s.ID().Name))
						return err == nil, nil
					},
				}
			})
		})
	}
}

// killOutside kills the process that a sandbox's ID names.
func killOutside(id broker.SandboxID) error {
	pid, err := strconv.Atoi(id.Pod[strings.LastIndex(id.Pod, "-")+1:])
	if err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGKILL)
}
