//go:build linux

package local_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/broker/server"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// site is a broker with its edge on a local provider, and a client of it.
type site struct {
	*sandboxclient.Client
	options  local.Options
	provider *local.Provider
}

func newSite(t *testing.T, o local.Options, pools ...broker.PoolConfig) *site {
	t.Helper()
	p := open(t, o)
	if len(pools) == 0 {
		pools = []broker.PoolConfig{{Name: "test"}}
	}
	b, err := broker.New(t.Context(), broker.Options{Pools: pools, Provider: p, Secret: []byte(strings.Repeat("s", broker.MinSecret))})
	require.NoError(t, err)
	edge := server.New(server.Options{Broker: b})
	h := httptest.NewServer(edge)
	c, err := sandboxclient.New(h.URL)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, c.Close())
		require.NoError(t, edge.Close(ctx))
		h.Close()
		require.NoError(t, b.Close(ctx))
	})
	return &site{Client: c, options: o, provider: p}
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// run runs code; the test fails if the broker does. What the program's end was
// is in the error.
func (s *site) run(t *testing.T, language, source string) (string, error) {
	t.Helper()
	res, err := s.Run(within(t, 2*time.Minute), sandboxclient.Code{Pool: "test", Language: language, Source: source})
	var exit *sandboxclient.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit)
	}
	return string(res.Stdout) + string(res.Stderr), err
}

// ok runs code that must exit with 0, and returns its output.
func (s *site) ok(t *testing.T, language, source string) string {
	t.Helper()
	out, err := s.run(t, language, source)
	require.NoError(t, err, out)
	return out
}
