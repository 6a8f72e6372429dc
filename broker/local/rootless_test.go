//go:build linux

package local_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// nobody is a user without any right.
const nobody = 65534

// As root, the tests of rootless gVisor run in a process of another user. A user
// who is not root runs them, and all others, as they are.
func TestRootless(t *testing.T) {
	needRunsc(t)
	if os.Geteuid() != 0 {
		testRootless(t)
		return
	}
	dir := t.TempDir()
	for up := dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		require.NoError(t, os.Chmod(up, 0o755))
	}
	copyProgram := func(from, name string) string {
		to := filepath.Join(dir, name)
		src, err := os.Open(from)
		require.NoError(t, err)
		defer func() { _ = src.Close() }()
		dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
		require.NoError(t, err)
		_, err = io.Copy(dst, src)
		require.NoError(t, err)
		require.NoError(t, dst.Close())
		return to
	}
	home := filepath.Join(dir, "home")
	require.NoError(t, os.Mkdir(home, 0o700))
	require.NoError(t, os.Chown(home, nobody, nobody))
	cmd := exec.Command(copyProgram(os.Args[0], "local.test"), "-test.run", "^TestRootless$", "-test.v")
	cmd.Dir = home
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "REQUIRE_RUNSC=" + os.Getenv("REQUIRE_RUNSC"),
		envRunner + "=" + copyProgram(programs.runner, "sandbox-runner"), envRunsc + "=" + copyProgram(programs.runsc, "runsc"),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: TestRootless", "it may have been skipped")
	if strings.Contains(string(out), "--- SKIP") {
		t.Skip(string(out))
	}
}

func testRootless(t *testing.T) {
	o := options(t, local.RuntimeRunsc,
		local.Pool{Name: "test", Warm: 1, Limits: local.Limits{Memory: 128 << 20, Processes: 64}},
		local.Pool{Name: "network", Network: local.NetworkHost},
		local.Pool{Name: "cpus", Limits: local.Limits{CPUs: 0.5}})
	s := newSite(t, o, broker.PoolConfig{Name: "test"}, broker.PoolConfig{Name: "network"}, broker.PoolConfig{Name: "cpus"})
	_, err := s.Run(within(t, time.Minute), sandboxclient.Code{Pool: "test", Language: "shell", Source: "true"})
	if err != nil && os.Getenv("REQUIRE_RUNSC") == "" {
		t.Skipf("this machine lets no user make sandboxes: %v", err)
	}
	require.NoError(t, err)
	t.Run("isolation", func(t *testing.T) {
		out := s.ok(t, "shell", "id -u; dmesg | head -1; ls /root 2>&1; ls -A /tmp")
		require.Contains(t, out, "65532\n")
		require.Contains(t, out, "gVisor")
		require.Contains(t, out, "No such file")
	})
	t.Run("memory", func(t *testing.T) {
		_, err := s.run(t, "python", "x = []\nwhile True: x.append(bytearray(4 << 20))")
		var exit *sandboxclient.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, wire.ReasonOOM, exit.Ending.Reason)
		require.Equal(t, "fine\n", s.ok(t, "shell", "echo fine"))
	})
	t.Run("processes", func(t *testing.T) {
		_, err := s.run(t, "shell", "for i in $(seq 100); do sleep 20 & done; wait")
		var exit *sandboxclient.ExitError
		require.ErrorAs(t, err, &exit)
		require.Contains(t, exit.Ending.Message, "the limit is 64")
	})
	for pool, reason := range map[string]string{"network": "without root", "cpus": "need root"} {
		t.Run("a pool that asks for "+pool, func(t *testing.T) {
			_, err := s.Run(within(t, time.Minute), sandboxclient.Code{Pool: pool, Language: "shell", Source: "true"})
			require.ErrorIs(t, err, sandboxclient.ErrNotReady)
			require.ErrorContains(t, err, reason)
		})
	}
}
