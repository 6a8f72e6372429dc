package server_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/server"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// nothing is a broker that nobody should reach.
type nothing struct{}

func (nothing) Do(context.Context, broker.Caller, wire.Request, []byte, broker.Stream) error {
	return wire.Errorf(wire.CodeInternal, "nothing should be asked for")
}
func (nothing) Pools(string) []wire.Pool { return nil }

// Without authentication the broker trusts this machine, and a web page that
// somebody looks at here must not pass for it.
func TestWithoutAuthenticationOnlyThisMachineIsServed(t *testing.T) {
	edge := server.New(server.Options{Broker: nothing{}})
	for name, c := range map[string]struct {
		host, origin string
		status       int
	}{
		"loopback":                    {"127.0.0.1:8443", "", http.StatusOK},
		"loopback by name":            {"localhost:8443", "", http.StatusOK},
		"loopback without a port":     {"127.0.0.1", "", http.StatusOK},
		"loopback of IPv6":            {"[::1]:8443", "", http.StatusOK},
		"a name that points here":     {"evil.example:8443", "", http.StatusBadRequest},
		"another address":             {"192.0.2.1:8443", "", http.StatusBadRequest},
		"a page of another site":      {"127.0.0.1:8443", "http://evil.example", http.StatusForbidden},
		"a page of the broker itself": {"127.0.0.1:8443", "http://127.0.0.1:8443", http.StatusForbidden},
		"a page of a name like ours":  {"localhost.evil.example:8443", "http://localhost.evil.example:8443", http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			for _, pattern := range edge.Patterns() {
				path := pattern[len("GET "):]
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
				r.Host = c.host
				if c.origin != "" {
					r.Header.Set("Origin", c.origin)
				}
				w := httptest.NewRecorder()
				edge.ServeHTTP(w, r)
				if c.status == http.StatusOK && path == wire.Path {
					require.NotEqual(t, http.StatusForbidden, w.Code) // it only lacks the upgrade
					continue
				}
				require.Equal(t, c.status, w.Code, "%s: %s", path, w.Body)
			}
		})
	}
}
