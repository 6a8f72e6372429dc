//go:build e2e

package e2e

import (
	"io"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandbox-broker/sandbox-broker/internal/cutproxy"
	"github.com/sandbox-broker/sandbox-broker/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// startBehind runs a broker that reaches the API server through a proxy.
func startBehind(t *testing.T) (*brokerProcess, *cutproxy.Proxy) {
	t.Helper()
	config, err := kube.Config("")
	require.NoError(t, err)
	server, err := url.Parse(config.Host)
	require.NoError(t, err)
	proxy, err := cutproxy.Listen(server.Host, cutproxy.Plan{})
	require.NoError(t, err)
	t.Cleanup(proxy.Close)

	access, err := clientcmd.NewDefaultClientConfigLoadingRules().Load()
	require.NoError(t, err)
	for _, cluster := range access.Clusters {
		cluster.Server, cluster.TLSServerName = "https://"+proxy.Addr(), server.Hostname()
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*access, path))
	b, err := startBroker(dir, "e2e-behind", "KUBECONFIG="+path)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.stop())
		if t.Failed() {
			t.Logf("the end of its log:\n%s", b.log.tail(40))
		}
	})
	return b, proxy
}

// A sandbox that stays out of reach is given up after a while, and what came before
// has been delivered. A shorter time out of reach is survived.
func TestASandboxOutOfReach(t *testing.T) {
	settle(t)
	broker, proxy := startBehind(t)
	ctx := within(t, 4*time.Minute)
	c := broker.client(t)
	out := &timedWriter{}
	stdin, goOn := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, sandboxclient.Code{Pool: slow, Language: "shell", Source: "echo up; read x; echo on; sleep 200", Stdin: stdin, Stdout: out, Timeout: 4 * time.Minute})
		done <- err
	}()
	eventually(t, time.Minute, "the program runs", func() bool { return out.String() != "" })
	proxy.Refuse(true)
	proxy.Cut()
	before := proxy.Accepted()
	eventually(t, 10*time.Second, "the broker tries again", func() bool { return proxy.Accepted() > before })
	proxy.Refuse(false)
	_, err := io.WriteString(goOn, "x\n")
	require.NoError(t, err)
	eventually(t, 30*time.Second, "the program goes on", func() bool { return out.String() == "up\non\n" })

	proxy.Refuse(true)
	proxy.Cut()
	cut := time.Now()
	err = <-done
	took := time.Since(cut)
	proxy.Refuse(false)
	got := ending(t, err)
	require.Equal(t, sandboxclient.ReasonLost, got.Reason, got.Message)
	require.EqualValues(t, "channel_lost", got.Cause, got.Message)
	require.False(t, got.Complete)
	require.EqualValues(t, len(out.String()), got.StdoutBytes)
	require.Equal(t, "up\non\n", out.String())
	require.InDelta(t, 60, took.Seconds(), 15, "when it was given up")
	eventually(t, time.Minute, "nothing is left", func() bool {
		claims, err := claimsOf(ctx, "e2e-behind")
		require.NoError(t, err)
		for _, claim := range claims {
			if claim.Labels["sandbox-broker.dev/pool"] == slow {
				return false
			}
		}
		return true
	})
}
