package sandboxclient_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// testTimeout bounds every call of a test that is expected to return.
const testTimeout = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect starts a scripted broker and a client for it. At the test's end both
// are closed, and no goroutine may be left.
func connect(t *testing.T, script brokertest.Script, opts ...sandboxclient.Option) (*sandboxclient.Client, *brokertest.Server) {
	t.Helper()
	// Cleanups run last first: the client closes before the server, then the check.
	t.Cleanup(func() { goleak.VerifyNone(t) })
	server := brokertest.New(t, script)
	client, err := sandboxclient.New(server.URL, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client, server
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func exited(code int) wire.Ending { return wire.Ending{Reason: wire.ReasonExited, ExitCode: code} }

// lines is a writer whose writes can be awaited one by one.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// next is the next write.
func (l lines) next(t *testing.T) string {
	t.Helper()
	select {
	case s := <-l:
		return s
	case <-time.After(testTimeout):
		require.Fail(t, "nothing was written")
		return ""
	}
}

// blockedWriter blocks in Write until it is opened.
type blockedWriter struct {
	entered chan struct{} // closed at the first Write
	opened  chan struct{}
	once    sync.Once
}

func newBlockedWriter() *blockedWriter {
	return &blockedWriter{entered: make(chan struct{}), opened: make(chan struct{})}
}

func (w *blockedWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.entered) })
	<-w.opened
	return len(p), nil
}
