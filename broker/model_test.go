package broker

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
)

// puppet is a provider whose every step the model decides.
type puppet struct {
	mu        sync.Mutex // guards the rest
	takes     []chan error
	live      map[string]*puppetSandbox
	made, bad int
	says      string                // what each runner answers, in JSON; empty: an empty object
	record    func(Record) error    // what comes of writing a lease down; nil: it is written
	as        Provider              // whom the pool takes it for; nil: itself
	extend    func(time.Time) error // what comes of moving an end; nil: it is moved
}

func (p *puppet) Take(ctx context.Context, _ TakeRequest) (Sandbox, error) {
	decided := make(chan error, 1)
	p.mu.Lock()
	p.takes = append(p.takes, decided)
	p.mu.Unlock()
	select {
	case err := <-decided:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
	s := &puppetSandbox{p: p, name: fmt.Sprintf("s%d", p.made), identity: channel.NewIdentity()}
	p.live[s.name] = s
	return s, nil
}

func (p *puppet) List(context.Context) ([]Sandbox, error) { return nil, nil }

func (p *puppet) Watch(ctx context.Context, _ func(SandboxID, Fate)) error {
	<-ctx.Done()
	return nil
}

// pool makes a pool of the puppet's sandboxes.
func (p *puppet) pool(life context.Context, cfg PoolConfig) *pool {
	var provider Provider = p
	if p.as != nil {
		provider = p.as
	}
	return newPool(life, cfg.WithDefaults(), false, provider, "me", secret(strings.Repeat("s", MinSecret)), newMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
}

// decide answers the oldest take under way.
func (p *puppet) decide(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.takes) > 0 {
		p.takes[0] <- err
		p.takes = p.takes[1:]
	}
}

type puppetSandbox struct {
	p        *puppet
	name     string
	identity *channel.Identity
	conns    []net.Conn
	handed   bool // to a caller of the model
}

func (s *puppetSandbox) ID() SandboxID     { return SandboxID{Name: s.name, Claim: s.name, Pod: s.name} }
func (s *puppetSandbox) Info() SandboxInfo { return SandboxInfo{} }

func (s *puppetSandbox) Record(_ context.Context, r Record) error {
	if s.p.record == nil {
		return nil
	}
	return s.p.record(r)
}

func (s *puppetSandbox) Extend(_ context.Context, until time.Time) error {
	if s.p.extend == nil {
		return nil
	}
	return s.p.extend(until)
}

func (s *puppetSandbox) End(context.Context) error {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.live[s.name] == nil {
		s.p.bad++ // ended twice
	}
	delete(s.p.live, s.name)
	return nil
}

// Dial connects to a runner that does nothing but answer.
func (s *puppetSandbox) Dial(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	s.p.mu.Lock()
	s.conns = append(s.conns, ours)
	s.p.mu.Unlock()
	go func() {
		if s.identity.Accept(theirs) != nil {
			_ = theirs.Close()
			return
		}
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		srv := &http.Server{Protocols: &protocols, ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, cmp.Or(s.p.says, "{}"))
		})}
		_ = srv.Serve(&oneConn{conn: theirs})
	}()
	return ours, nil
}

// oneConn is a listener that yields one connection.
type oneConn struct{ conn net.Conn }

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{} }

// caller is one who waits for a sandbox, or has one.
type caller struct {
	cancel context.CancelFunc
	answer chan waitAnswer
}

// play runs the pool through steps, each a number that says what happens and to whom,
// and reports what broke an invariant.
func play(cfg PoolConfig, steps []int) (broken error) {
	life, end := context.WithCancel(context.Background())
	pp := &puppet{live: map[string]*puppetSandbox{}}
	p := pp.pool(life, cfg)
	p.start()
	var waiting []*caller
	var held []*member
	check := func(step int) {
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if n := p.taking + len(p.stock) + p.leased + p.ending; n > cfg.MaxSandboxes && broken == nil {
			broken = fmt.Errorf("step %d: %d sandboxes of %d", step, n, cfg.MaxSandboxes)
		}
		if p.waiters.Len() > 0 && len(p.stock) > 0 && broken == nil {
			broken = fmt.Errorf("step %d: somebody waits beside a stock of %d", step, len(p.stock))
		}
		if p.leased < 0 || p.ending < 0 || p.taking < 0 {
			broken = fmt.Errorf("step %d: counts below nothing: %d %d %d", step, p.taking, p.leased, p.ending)
		}
	}
	receive := func(step int) {
		rest := waiting[:0]
		for _, c := range waiting {
			select {
			case a := <-c.answer:
				if a.m == nil {
					continue
				}
				s := a.m.sb.(*puppetSandbox)
				if s.handed && broken == nil {
					broken = fmt.Errorf("step %d: sandbox %s was handed to two", step, s.name)
				}
				s.handed = true
				held = append(held, a.m)
			default:
				rest = append(rest, c)
			}
		}
		waiting = rest
	}
	for i, step := range steps {
		what, who := step%8, step/8
		switch what {
		case 0, 1: // somebody comes
			ctx, cancel := context.WithCancel(life)
			c := &caller{cancel: cancel, answer: make(chan waitAnswer, 1)}
			waiting = append(waiting, c)
			go func() {
				m, err := p.acquire(ctx)
				c.answer <- waitAnswer{m, err}
			}()
		case 2: // somebody gives up, perhaps as the answer comes
			if len(waiting) > 0 {
				pp.decide(nil)
				for range 8 * who {
					runtime.Gosched()
				}
				waiting[who%len(waiting)].cancel()
			}
		case 3, 4:
			pp.decide(nil)
		case 5:
			pp.decide(errors.New("no"))
		case 6: // a lease ends
			if len(held) > 0 {
				j := who % len(held)
				m := held[j]
				held = append(held[:j], held[j+1:]...)
				m.ch.Close()
				p.release(m.sb)
			}
		case 7: // a sandbox in stock dies
			p.mu.Lock()
			var victim *puppetSandbox
			if len(p.stock) > 0 {
				victim = p.stock[who%len(p.stock)].sb.(*puppetSandbox)
			}
			p.mu.Unlock()
			if victim != nil && who%2 == 0 {
				p.died(victim.ID())
			} else if victim != nil {
				_ = victim.conns[len(victim.conns)-1].Close()
			}
		}
		check(i)
		receive(i)
		if who%4 == 0 { // time passes: delays and pauses after failures are over
			time.Sleep(takeBackoffMax)
			check(i)
			receive(i)
		}
	}
	for _, m := range held {
		m.ch.Close()
		p.release(m.sb)
	}
	synctest.Wait()
	end()
	p.close()
	synctest.Wait()
	if n := len(pp.live); n > 0 && broken == nil {
		broken = fmt.Errorf("%d sandboxes are left", n)
	}
	if pp.bad > 0 && broken == nil {
		broken = fmt.Errorf("%d sandboxes were ended twice", pp.bad)
	}
	for _, c := range waiting {
		a := <-c.answer
		if a.err == nil && broken == nil {
			broken = errors.New("a caller got a sandbox of a pool that had closed")
		}
	}
	return broken
}

// TestPoolModel holds the pool's invariants against whatever order things happen in.
func TestPoolModel(t *testing.T) {
	require.NoError(t, errors.Join(flag.Set("rapid.checks", "1000"), flag.Set("rapid.nofailfile", "true")))
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 5).Draw(rt, "maxSandboxes")
		cfg := PoolConfig{
			Name: "p", MaxSandboxes: limit, Stock: rapid.IntRange(0, limit).Draw(rt, "stock"),
			QueueLength: rapid.IntRange(1, 4).Draw(rt, "queue"), QueueTimeout: time.Hour, ReadyTimeout: time.Hour, Spares: []string{},
		}
		steps := rapid.SliceOfN(rapid.IntRange(0, 8*16-1), 1, 60).Draw(rt, "steps")
		var broken error
		synctest.Test(t, func(*testing.T) { broken = play(cfg, steps) })
		if broken != nil {
			rt.Fatal(broken)
		}
	})
}
