package channel

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What a closed channel held must be free before long: a broker closes one with
// every run. net/http alone takes 5 s.
func TestClosedClientIsGarbage(t *testing.T) {
	noLeaks(t)
	id := NewIdentity()
	ours, theirs := net.Pipe()
	var runner sync.WaitGroup
	runner.Go(func() {
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		if id.Accept(theirs) != nil {
			return
		}
		l := &oneConn{conn: theirs, closed: make(chan struct{})}
		srv := &http.Server{Handler: http.NotFoundHandler(), Protocols: &protocols, ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				_ = l.Close()
			}
		}}
		_ = srv.Serve(l)
		_ = srv.Close()
	})
	freed := make(chan struct{})
	func() {
		c, err := Open(testContext(t), ours, testKey(1), "")
		require.NoError(t, err)
		require.NoError(t, c.alive(testContext(t)))
		runtime.AddCleanup(c, func(done chan struct{}) { close(done) }, freed)
		c.Close()
	}()
	runner.Wait()
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	}, pingAfter/2, time.Millisecond, "something still holds the closed channel")
}

// Any answer is a sign of life, also that there is no such thing.
func TestAliveTakesAnyAnswer(t *testing.T) {
	c := openHTTP(t, http.NotFound)
	require.NoError(t, c.alive(testContext(t)))
	c.Close()
	require.Error(t, c.alive(testContext(t)))
}

func TestPulse(t *testing.T) {
	const after, patience = 10 * time.Second, 3 * time.Second
	newPulse := func(ask func(context.Context) error) (p *pulse, asked *atomic.Int32, died chan time.Time) {
		asked, died = new(atomic.Int32), make(chan time.Time, 2)
		return &pulse{after: after, patience: patience, dead: func() { died <- time.Now() }, ask: func(ctx context.Context) error {
			asked.Add(1)
			return ask(ctx)
		}}, asked, died
	}
	silent := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	t.Run("who is heard is not asked", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, asked, _ := newPulse(silent)
			p.start()
			defer p.stop()
			for range 10 {
				time.Sleep(after - time.Second)
				p.hear()
			}
			require.Zero(t, asked.Load())
		})
	})
	t.Run("who answers lives", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, asked, died := newPulse(func(context.Context) error { return nil })
			p.start()
			time.Sleep(5*after + time.Second)
			require.EqualValues(t, 5, asked.Load())
			require.Empty(t, died)
			p.stop()
			time.Sleep(5 * after)
			require.EqualValues(t, 5, asked.Load(), "a stopped pulse asks no more")
		})
	})
	t.Run("who does not is dead in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, _, died := newPulse(silent)
			began := time.Now()
			p.start()
			require.Equal(t, after+patience, (<-died).Sub(began))
		})
	})
	t.Run("so is whose connection broke", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, _, died := newPulse(func(context.Context) error { return errors.New("broken") })
			began := time.Now()
			p.start()
			require.Equal(t, after, (<-died).Sub(began))
		})
	})
	t.Run("a pulse stopped before its start never beats", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p, asked, _ := newPulse(silent)
			p.stop()
			p.start()
			time.Sleep(5 * after)
			require.Zero(t, asked.Load())
		})
	})
}
