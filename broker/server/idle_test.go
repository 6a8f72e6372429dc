package server_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/processtest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// impatientProxy passes connections on, and cuts each on which nothing has moved either
// way for idle: what load balancers do. It returns its address, and counts what it
// accepted.
func impatientProxy(t *testing.T, target string, idle time.Duration) (string, *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	accepted := new(atomic.Int64)
	var links sync.WaitGroup
	links.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			b, err := net.Dial("tcp", target)
			if err != nil {
				_ = a.Close()
				continue
			}
			cut := func() { _, _ = a.Close(), b.Close() }
			timer := time.AfterFunc(idle, cut)
			pass := func(to, from net.Conn) {
				defer cut()
				buf := make([]byte, 32<<10)
				for {
					n, err := from.Read(buf)
					if err != nil {
						return
					}
					timer.Reset(idle)
					if _, err := to.Write(buf[:n]); err != nil {
						return
					}
				}
			}
			links.Go(func() { pass(a, b) })
			links.Go(func() { pass(b, a) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		links.Wait()
	})
	return l.Addr().String(), accepted
}

// A program that says nothing for longer than a proxy suffers is no idle connection:
// both ends ping.
func TestAQuietProgramIsNoIdleConnection(t *testing.T) {
	t.Parallel()
	s := &site{t: t, provider: processtest.New(t), metrics: prometheus.NewRegistry(), log: &syncBuffer{}, beat: 2 * time.Second}
	s.serve()
	addr, accepted := impatientProxy(t, s.address(), 10*time.Second)
	c, err := sandboxclient.New("http://"+addr, sandboxclient.WithToken(tokenA))
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	res, err := c.Run(deadline(t), sandboxclient.Code{Pool: "test", Language: "shell", Source: "sleep 15; echo done", Stdin: blocked(t)})
	require.NoError(t, err)
	require.Equal(t, "done\n", string(res.Stdout))
	require.EqualValues(t, 1, accepted.Load(), "the connection was not cut")
}

// blocked is an input that never comes.
func blocked(t *testing.T) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	return io.MultiReader(strings.NewReader(""), r)
}
