package sandboxclient_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestNewChecksItsArguments(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	tests := map[string]struct {
		url  string
		opts []sandboxclient.Option
		text string // empty: no error
	}{
		"http":                 {"http://broker:8443", nil, ""},
		"with a path":          {"https://example.com/sandboxes/", nil, ""},
		"no scheme":            {"broker:8443", nil, "must begin with http:// or https://"},
		"other scheme":         {"ftp://broker", nil, "must begin with"},
		"no host":              {"https://", nil, "names no host"},
		"user":                 {"https://me:secret@broker", nil, "must not carry a user"},
		"query":                {"https://broker?a=b", nil, "must end with its path"},
		"not a URL":            {"https://me:secret@bro ker", nil, "invalid character"},
		"token over https":     {"https://broker", []sandboxclient.Option{sandboxclient.WithToken("t")}, ""},
		"token over http":      {"http://broker", []sandboxclient.Option{sandboxclient.WithToken("t")}, "in the clear to broker"},
		"token file over http": {"http://10.0.0.1:80", []sandboxclient.Option{sandboxclient.WithTokenFile("f")}, "in the clear to 10.0.0.1:80"},
		"token to localhost":   {"http://localhost:1", []sandboxclient.Option{sandboxclient.WithToken("t")}, ""},
		"token to ::1":         {"http://[::1]:1", []sandboxclient.Option{sandboxclient.WithToken("t")}, ""},
		"insecure token":       {"http://broker", []sandboxclient.Option{sandboxclient.WithToken("t"), sandboxclient.WithInsecureToken()}, ""},
		"empty token":          {"https://broker", []sandboxclient.Option{sandboxclient.WithToken("")}, "token is empty"},
		"empty token file":     {"https://broker", []sandboxclient.Option{sandboxclient.WithTokenFile("")}, "token file's name is empty"},
		"no CA file":           {"https://broker", []sandboxclient.Option{sandboxclient.WithCAFile("missing")}, "reading the CA file"},
		"empty CA file":        {"https://broker", []sandboxclient.Option{sandboxclient.WithCAFile(empty)}, "no PEM certificate"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := sandboxclient.New(tt.url, tt.opts...)
			if tt.text == "" {
				require.NoError(t, err)
				require.NoError(t, c.Close())
				return
			}
			require.ErrorContains(t, err, tt.text)
			assert.NotContains(t, err.Error(), "secret")
		})
	}
}

func TestTokenFileIsReadForEveryConnection(t *testing.T) {
	tokens := make(chan string, 10)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("first\n"), 0o600))
	c, _ := connect(t, func(conn *brokertest.Conn) {
		tokens <- conn.Header.Get("Authorization")
		conn.Hello()
		conn.Serve(func(s *brokertest.Stream) { s.Conn.Cut() })
	}, sandboxclient.WithTokenFile(file))

	_, err := run(t, c, sandboxclient.Code{})
	require.Error(t, err)
	assert.Equal(t, "Bearer first", <-tokens)

	require.NoError(t, os.WriteFile(file, []byte("second\n"), 0o600))
	_, err = run(t, c, sandboxclient.Code{})
	require.Error(t, err)
	assert.Equal(t, "Bearer second", <-tokens)

	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = run(t, c, sandboxclient.Code{})
	assert.ErrorContains(t, err, "is empty")
}

func TestHandshakeRefused(t *testing.T) {
	tests := map[string]struct {
		status  int
		body    string
		matches error // nil: no code
		text    string
	}{
		"by the broker":    {401, `{"code":"unauthenticated","message":"no valid token","request_id":"r1"}`, sandboxclient.ErrUnauthenticated, "no valid token [request r1]"},
		"overloaded":       {503, `{"code":"unavailable","message":"stopping"}`, sandboxclient.ErrUnavailable, "stopping"},
		"by a proxy":       {502, "<html>", sandboxclient.ErrUnavailable, "502 Bad Gateway, which no sandbox-broker"},
		"proxy asks login": {401, "who are you", sandboxclient.ErrUnauthenticated, "401"},
		"another server":   {404, "404 page not found", nil, "404 Not Found, which no sandbox-broker"},
		"success":          {200, "welcome", nil, "200 OK"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, wire.Path, r.URL.Path)
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer server.Close()
			c, err := sandboxclient.New(server.URL)
			require.NoError(t, err)
			defer c.Close()
			_, err = run(t, c, sandboxclient.Code{})
			require.ErrorContains(t, err, tt.text)
			if tt.matches != nil {
				assert.ErrorIs(t, err, tt.matches)
			}
			if e := wire.AsError(err); e != nil && e.RequestID != "" {
				assert.EqualValues(t, 7000, e.RetryAfterMS)
			}
		})
	}
}

func TestGreetingFails(t *testing.T) {
	tests := map[string]struct {
		script brokertest.Script
		text   string
	}{
		"refused": {func(c *brokertest.Conn) {
			c.Send(wire.JSONFrame(wire.KindError, 0, wire.Errorf(wire.CodeForbidden, "not you")))
		}, "not you"},
		"closed":       {func(c *brokertest.Conn) { c.Close(4503, "stopping") }, "stopping"},
		"other frame":  {func(c *brokertest.Conn) { c.Send(wire.Frame{Kind: wire.KindExit, Stream: 1}) }, "first frame is a exit"},
		"no streams":   {func(c *brokertest.Conn) { c.Send(wire.JSONFrame(wire.KindHello, 0, wire.Hello{})) }, "allows 0 streams"},
		"not JSON":     {func(c *brokertest.Conn) { c.Send(wire.Frame{Kind: wire.KindHello, Payload: []byte("{")}) }, "not the JSON"},
		"cut at once":  {func(c *brokertest.Conn) { c.Cut() }, "waiting for its hello"},
		"text message": {func(c *brokertest.Conn) { c.SendMessage(1, []byte("hi")) }, "text message"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, tt.script)
			_, err := run(t, c, sandboxclient.Code{})
			require.ErrorContains(t, err, tt.text)
			assert.NotErrorIs(t, err, sandboxclient.ErrStartUnknown, "nothing was asked for yet")
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		c, err := sandboxclient.New(server.URL)
		require.NoError(t, err)
		defer c.Close()
		_, err = run(t, c, sandboxclient.Code{})
		assert.ErrorContains(t, err, "connection refused")
	})
}

func TestCallerLeavesWhileConnecting(t *testing.T) {
	connecting := make(chan struct{})
	c, _ := connect(t, func(conn *brokertest.Conn) {
		close(connecting)
		_ = conn.CloseReason() // says nothing
	})
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		<-connecting
		cancel()
	}()
	_, err := c.Run(ctx, sandboxclient.Code{})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, c.Close(), "Close ends the dial")
}

func TestTLS(t *testing.T) {
	broker := brokertest.NewTLS(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Exit(exited(0))
	}))
	t.Run("unknown authority", func(t *testing.T) {
		c, err := sandboxclient.New(broker.URL)
		require.NoError(t, err)
		defer c.Close()
		_, err = run(t, c, sandboxclient.Code{})
		assert.ErrorContains(t, err, "certificate")
	})
	t.Run("CA file", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "ca.crt")
		block := &pem.Block{Type: "CERTIFICATE", Bytes: broker.Certificate().Raw}
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
		c, err := sandboxclient.New(broker.URL, sandboxclient.WithCAFile(file), sandboxclient.WithToken("t"))
		require.NoError(t, err)
		defer c.Close()
		_, err = run(t, c, sandboxclient.Code{})
		require.NoError(t, err)
	})
}

func TestSpans(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	parents := make(chan string, 10)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		parents <- s.Request.Traceparent
		s.Respond(accepted)
		if s.Request.Op == wire.OpAcquire {
			return
		}
		s.Exit(exited(3))
	}), sandboxclient.WithTracerProvider(provider))
	_, err := run(t, c, sandboxclient.Code{Language: "python", Source: "secret code", Args: []string{"secret"}})
	require.Error(t, err)
	require.Error(t, newLease(t, c).Command("secret").Run(testContext(t)))

	spans := recorder.Ended()
	require.Len(t, spans, 3)
	for i, name := range []string{"sandboxclient.Run", "sandboxclient.Acquire", "sandboxclient.Exec"} {
		assert.Equal(t, name, spans[i].Name())
		assert.Contains(t, <-parents, spans[i].SpanContext().TraceID().String())
		for _, a := range spans[i].Attributes() {
			assert.NotContains(t, a.Value.String(), "secret")
		}
	}
	sum := sha256.Sum256([]byte("secret code"))
	found := map[string]string{}
	for _, a := range spans[0].Attributes() {
		found[string(a.Key)] = a.Value.String()
	}
	assert.Equal(t, map[string]string{
		"sandbox.pool": "p", "sandbox.language": "python", "sandbox.request_id": "r1",
		"sandbox.code.size":        "11",
		"sandbox.code.sha256":      hex.EncodeToString(sum[:]),
		"sandbox.ending.reason":    "exited",
		"sandbox.ending.exit_code": "3",
	}, found)
}

// What imports the client must not get Kubernetes with it.
func TestImportsNoKubernetes(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./...").Output()
	require.NoError(t, err)
	allowed := []string{
		"github.com/sandbox-broker/sandbox-broker/sandboxclient",
		"github.com/gorilla/websocket",
		"go.opentelemetry.io/",
		// Of the OpenTelemetry API.
		"github.com/go-logr/", "github.com/cespare/xxhash/",
	}
	for _, pkg := range strings.Fields(string(out)) {
		assert.NotContains(t, pkg, "k8s.io")
		first, _, _ := strings.Cut(pkg, "/")
		if !strings.Contains(first, ".") {
			continue // of the standard library
		}
		if !hasAnyPrefix(pkg, allowed) && !strings.HasPrefix(pkg, "golang.org/x/") {
			assert.Fail(t, "the client depends on "+pkg)
		}
	}
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
