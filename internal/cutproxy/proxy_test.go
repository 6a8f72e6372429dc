package cutproxy

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	return c
}

// exchange sends n bytes and reads them back.
func exchange(c net.Conn, n int) error {
	if _, err := c.Write(make([]byte, n)); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, n))
	return err
}

func TestConnectionsAreCutAfterMoreBytes(t *testing.T) {
	t.Parallel()
	p, err := Listen(echo(t), Plan{Seed: 1})
	require.NoError(t, err)
	defer p.Close()
	before := time.Now()
	a, b := dial(t, p), dial(t, p)
	require.NoError(t, exchange(a, 100_000), "nothing is planned")
	require.NoError(t, exchange(b, 1))

	require.Equal(t, 2, p.CutAfter(1000))
	for _, c := range []net.Conn{a, b} {
		require.Error(t, exchange(c, 1000))
	}
	require.NoError(t, exchange(dial(t, p), 100_000), "a later one is spared")
	require.Equal(t, 2, p.Cuts())
	require.Len(t, p.Arrivals(before), 3)
	require.Empty(t, p.Arrivals(time.Now()))
}

func TestAPlanCutsOnlySoOften(t *testing.T) {
	t.Parallel()
	p, err := Listen(echo(t), Plan{Seed: 1, Cuts: 3, Least: 10, Most: 1000})
	require.NoError(t, err)
	defer p.Close()
	for range 3 {
		require.Error(t, exchange(dial(t, p), 1000))
	}
	require.NoError(t, exchange(dial(t, p), 1000))
	require.Equal(t, 3, p.Cuts())
}
