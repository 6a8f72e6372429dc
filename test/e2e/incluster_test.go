//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// inCluster is a client of the broker that runs in the cluster, as the service
// account whose token the file holds.
func inCluster(t *testing.T, tokenFile string) *sandboxclient.Client {
	t.Helper()
	url, ca := os.Getenv(sandboxclient.EnvURL), os.Getenv(sandboxclient.EnvCAFile)
	require.NotEmpty(t, url, "%s is not set: paste the last line of `make cluster-up`", sandboxclient.EnvURL)
	c, err := sandboxclient.New(url, sandboxclient.WithTokenFile(tokenFile), sandboxclient.WithCAFile(ca))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func agentToken() string { return os.Getenv(sandboxclient.EnvTokenFile) }

func TestCommandLineThroughTheClustersBroker(t *testing.T) {
	cmd := exec.CommandContext(within(t, 2*time.Minute), filepath.Join(root(), "bin", "sandbox-broker"), "run", "--pool", "python-gvisor", "--language", "python", "-")
	cmd.Stdin = strings.NewReader("print(1+1)\n")
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "2\n", string(out))
}

func TestServiceAccountsAreTenants(t *testing.T) {
	ctx := within(t, 2*time.Minute)
	lease, err := inCluster(t, agentToken()).Acquire(ctx, "python-gvisor")
	require.NoError(t, err)
	other := inCluster(t, filepath.Join(filepath.Dir(agentToken()), "other.token"))
	require.ErrorIs(t, other.Lease(lease.Handle()).Command("true").Run(ctx), sandboxclient.ErrNotFound)
	require.ErrorIs(t, other.Lease(lease.Handle()).Release(ctx), sandboxclient.ErrNotFound)
	require.NoError(t, lease.Command("true").Run(ctx))
	require.NoError(t, lease.Release(ctx))
}

func TestForgedTokenIsRefused(t *testing.T) {
	forged := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(forged, []byte("eyJhbGciOiJub25lIn0.e30."), 0o600))
	_, err := inCluster(t, forged).Run(within(t, time.Minute), sandboxclient.Code{Pool: "python-gvisor", Language: "shell", Source: "true"})
	require.ErrorIs(t, err, sandboxclient.ErrUnauthenticated)
}

// A sandbox reaches nothing: not the API server, not its neighbours, not what
// plays the internet.
func TestNetworkIsDenied(t *testing.T) {
	res, err := inCluster(t, agentToken()).Run(within(t, 2*time.Minute), sandboxclient.Code{Pool: "python-gvisor", Language: "python", Source: `
import socket
for host, port in [("10.96.0.1", 443), ("10.89.0.1", 6443), ("198.51.100.10", 80), ("203.0.113.10", 80)]:
    s = socket.socket()
    s.settimeout(2)
    try:
        s.connect((host, port))
        print("reached", host, port)
    except OSError:
        pass
`})
	require.NoError(t, err)
	require.Empty(t, string(res.Stdout))
}
