//go:build linux

package local_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// What a program must not see is looked for from inside, by its name and by a
// mark that this process carries.
func TestSandboxSeesNothingOfTheHost(t *testing.T) {
	const mark = "a-secret-of-the-host-2c1f"
	t.Setenv("HOST_SECRET", mark)
	secrets := t.TempDir()
	token := filepath.Join(secrets, "token")
	require.NoError(t, os.WriteFile(token, []byte(mark), 0o644))
	s := newSite(t, options(t, local.RuntimeRunsc))

	t.Run("home folders", func(t *testing.T) {
		for _, dir := range []string{"/root", "/home", "/var", "/run", "/srv", "/mnt", "/boot", "/tmp"} {
			out, _ := s.run(t, "shell", "ls -A "+dir)
			require.NotContains(t, out, filepath.Base(secrets))
			switch dir {
			case "/home":
				require.Equal(t, "sandbox\n", out)
			case "/tmp":
				require.Empty(t, out)
			default:
				require.Contains(t, out, "No such file", dir)
			}
		}
	})
	t.Run("files of the broker", func(t *testing.T) {
		for _, path := range []string{token, s.options.StateDir, "/etc/shadow", "/etc/machine-id", "/etc/ssh"} {
			out, err := s.run(t, "shell", "cat "+path)
			require.Error(t, err, path)
			require.NotContains(t, out, mark)
		}
	})
	t.Run("the environment of processes", func(t *testing.T) {
		out := s.ok(t, "shell", `cat /proc/*/environ 2>/dev/null | tr '\0' '\n'`)
		require.NotContains(t, out, mark)
		require.NotContains(t, out, "HOST_SECRET")
	})
	t.Run("processes", func(t *testing.T) {
		out := s.ok(t, "shell", `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; echo; done`)
		require.Contains(t, out, "sandbox-runner serve")
		require.NotContains(t, out, filepath.Base(os.Args[0]))
		require.Less(t, strings.Count(out, "\n"), 9, out) // three are spare interpreters
	})
	t.Run("loopback services", func(t *testing.T) {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, mark) }))
		defer h.Close()
		_, port, err := net.SplitHostPort(h.Listener.Addr().String())
		require.NoError(t, err)
		out, err := s.run(t, "shell", "exec 3<>/dev/tcp/127.0.0.1/"+port+" && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3")
		require.Error(t, err)
		require.NotContains(t, out, mark)
	})
	t.Run("abstract sockets", func(t *testing.T) {
		l, err := net.Listen("unix", "@host-socket-2c1f")
		require.NoError(t, err)
		defer func() { _ = l.Close() }()
		out, err := s.run(t, "python", `import socket; s = socket.socket(socket.AF_UNIX); s.connect("\0host-socket-2c1f")`)
		require.Error(t, err)
		require.Contains(t, out, "refused")
	})
	t.Run("devices", func(t *testing.T) {
		out := s.ok(t, "shell", "ls /dev")
		for _, dev := range []string{"sda", "vda", "kvm", "mem"} {
			require.NotContains(t, strings.Fields(out), dev)
		}
	})
	t.Run("privileges", func(t *testing.T) {
		out := s.ok(t, "shell", "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status; dmesg | head -1")
		require.Contains(t, out, "65532\n")
		require.Contains(t, out, "CapEff:\t0000000000000000")
		require.Contains(t, out, "gVisor")
	})
	t.Run("writing to programs", func(t *testing.T) {
		out, err := s.run(t, "shell", "touch /usr/bin/x; touch /x; touch /etc/x; touch /opt/sandbox-runner/x")
		require.Error(t, err)
		require.Equal(t, 4, strings.Count(out, "touch: "), out)
	})
	t.Run("another sandbox", func(t *testing.T) {
		a, err := s.Acquire(within(t, time.Minute), "test")
		require.NoError(t, err)
		defer func() { _ = a.Release(within(t, time.Minute)) }()
		require.NoError(t, a.Script("shell", "echo mine > /workspace/file; echo mine > /tmp/file").Run(within(t, time.Minute)))
		require.Empty(t, s.ok(t, "shell", "ls -A /tmp; ls -A /workspace | grep -v main || true"))
	})
}

func TestHogsEndAndTheNextRunIsUnaffected(t *testing.T) {
	o := options(t, local.RuntimeRunsc, local.Pool{Name: "test", Warm: 1, Limits: local.Limits{Memory: 128 << 20, Processes: 64}})
	s := newSite(t, o, broker.PoolConfig{Name: "test", DefaultTimeout: 30 * time.Second})
	for name, hog := range map[string]struct {
		language, code string
		ends           func(t *testing.T, n sandboxclient.Ending, out string)
	}{
		"memory": {"python", "x = []\nwhile True: x.append(bytearray(4 << 20))", func(t *testing.T, n sandboxclient.Ending, _ string) {
			require.Equal(t, wire.ReasonOOM, n.Reason)
			require.Contains(t, n.Message, "memory")
		}},
		"files": {"shell", "head -c 100M /dev/zero > big", func(t *testing.T, n sandboxclient.Ending, out string) {
			require.Equal(t, wire.ReasonExited, n.Reason)
			require.Contains(t, out, "No space left on device")
		}},
		"files on every disk": {
			"shell", "for d in /workspace /tmp /home/sandbox /dev/shm; do head -c 30M /dev/zero > $d/big & done; wait; python3 -c 'x = bytearray(60 << 20); import time; time.sleep(20)'",
			func(t *testing.T, n sandboxclient.Ending, _ string) { require.Equal(t, wire.ReasonOOM, n.Reason) },
		},
		"processes": {"shell", "for i in $(seq 100); do sleep 20 & done; wait", func(t *testing.T, n sandboxclient.Ending, _ string) {
			require.Equal(t, wire.ReasonSignaled, n.Reason)
			require.Contains(t, n.Message, "processes and threads; the limit is 64")
		}},
		"threads": {"python", "import threading, time\nfor i in range(100): threading.Thread(target=time.sleep, args=(20,)).start()", func(t *testing.T, n sandboxclient.Ending, _ string) {
			require.Equal(t, wire.ReasonSignaled, n.Reason)
			require.Contains(t, n.Message, "the limit is 64")
		}},
		"a fork bomb": {"shell", "f() { f | f & }; f; sleep 25", func(t *testing.T, n sandboxclient.Ending, _ string) {
			require.Contains(t, []wire.Reason{wire.ReasonOOM, wire.ReasonSignaled, wire.ReasonTimeout}, n.Reason)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := s.run(t, hog.language, hog.code)
			var exit *sandboxclient.ExitError
			require.ErrorAs(t, err, &exit)
			hog.ends(t, exit.Ending, out)
			require.Equal(t, "fine\n", s.ok(t, "shell", "echo fine"))
		})
	}
	t.Run("processor", func(t *testing.T) {
		_, err := s.Run(within(t, time.Minute), sandboxclient.Code{Pool: "test", Language: "shell", Source: "while :; do :; done", Timeout: time.Second})
		var exit *sandboxclient.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, wire.ReasonTimeout, exit.Ending.Reason)
		require.Equal(t, "fine\n", s.ok(t, "shell", "echo fine"))
	})
}
