package sandboxclient_test

import (
	"context"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

var twoPools = []sandboxclient.Pool{
	{Name: "python", Languages: []string{"python"}, MaxSandboxes: 8, Stock: 2, InStock: 1},
	{Name: "other", Problem: "no node takes the sandbox's pod"},
}

func TestPools(t *testing.T) {
	c, server := connect(t, brokertest.Each(func(*brokertest.Stream) {}))
	pools, err := c.Pools(testContext(t))
	require.NoError(t, err)
	require.Empty(t, pools)

	server.Pools(twoPools...)
	pools, err = c.Pools(testContext(t))
	require.NoError(t, err)
	require.Equal(t, twoPools, pools)
	require.Zero(t, server.Accepted(), "no WebSocket is needed for it")
}

// The question travels as everything else does: by TLS, with the token of the
// moment.
func TestPoolsOverTLS(t *testing.T) {
	server := brokertest.NewTLS(t, brokertest.Each(func(*brokertest.Stream) {}))
	authorization := make(chan string, 2)
	server.HandlePools(func(w http.ResponseWriter, r *http.Request) {
		authorization <- r.Header.Get("Authorization")
		_, _ = w.Write(wire.Marshal(twoPools))
	})
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(ca, block, 0o600))
	require.NoError(t, os.WriteFile(token, []byte("first\n"), 0o600))
	c, err := sandboxclient.New(server.URL, sandboxclient.WithCAFile(ca), sandboxclient.WithTokenFile(token))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	_, err = c.Pools(testContext(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(token, []byte("second"), 0o600))
	_, err = c.Pools(testContext(t))
	require.NoError(t, err)
	require.Equal(t, "Bearer first", <-authorization)
	require.Equal(t, "Bearer second", <-authorization)

	stranger, err := sandboxclient.New(server.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stranger.Close()) })
	_, err = stranger.Pools(testContext(t))
	require.ErrorContains(t, err, "certificate")
}

func TestPoolsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		handle http.HandlerFunc
		want   error
	}{
		"by the broker": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write(wire.Marshal(wire.Errorf(wire.CodeUnauthenticated, "the bearer token is not valid here")))
		}, sandboxclient.ErrUnauthenticated},
		"by a proxy": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no upstream", http.StatusBadGateway)
		}, sandboxclient.ErrUnavailable},
		"by sending it elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, nil},
		"with something else": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("<html>"))
		}, sandboxclient.ErrProtocol},
		"with far too much": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(" ", 5<<20)))
		}, sandboxclient.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			c, server := connect(t, brokertest.Each(func(*brokertest.Stream) {}))
			server.HandlePools(tt.handle)
			pools, err := c.Pools(testContext(t))
			require.Error(t, err)
			require.Nil(t, pools)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
		})
	}
}

func TestPoolsIsGivenUp(t *testing.T) {
	asked := make(chan struct{}, 2)
	silent := func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}
	t.Run("by the caller", func(t *testing.T) {
		c, server := connect(t, brokertest.Each(func(*brokertest.Stream) {}))
		server.HandlePools(silent)
		ctx, cancel := context.WithCancel(testContext(t))
		go func() {
			<-asked
			cancel()
		}()
		_, err := c.Pools(ctx)
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("by closing the client", func(t *testing.T) {
		c, server := connect(t, brokertest.Each(func(*brokertest.Stream) {}))
		server.HandlePools(silent)
		go func() {
			<-asked
			_ = c.Close()
		}()
		_, err := c.Pools(testContext(t))
		require.ErrorIs(t, err, sandboxclient.ErrClosed)
		_, err = c.Pools(testContext(t))
		require.ErrorIs(t, err, sandboxclient.ErrClosed)
	})
	t.Run("when its time is over", func(t *testing.T) {
		c, server := connect(t, brokertest.Each(func(*brokertest.Stream) {}))
		server.HandlePools(silent)
		ctx, cancel := context.WithTimeout(testContext(t), 20*time.Millisecond)
		defer cancel()
		_, err := c.Pools(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		<-asked
	})
}
