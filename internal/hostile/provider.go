// Package hostile provides sandboxes for tests whose runner lies. What goes before the
// lie is real: the handshake with the sandbox's key, and HTTP/2 unless the lie is about
// that. Nothing runs in them, and nothing is isolated.
package hostile

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/channel"
)

// Play is a runner's part on one channel, after the handshake. It returns when the
// connection ends; then the connection is closed.
type Play func(net.Conn)

// Provider implements broker.Provider.
type Provider struct {
	conns sync.WaitGroup // plays under way

	mu        sync.Mutex // guards the rest
	play      Play
	sandboxes map[string]*Sandbox
	ended     int
	dials     int
}

// New makes a provider whose sandboxes all play the same until [Provider.Act] says
// otherwise. They end with the test.
func New(t *testing.T, play Play) *Provider {
	p := &Provider{play: play, sandboxes: map[string]*Sandbox{}}
	t.Cleanup(func() {
		p.mu.Lock()
		for _, s := range p.sandboxes {
			s.cut()
		}
		p.mu.Unlock()
		p.conns.Wait()
	})
	return p
}

// Act changes what channels play that are opened from now on.
func (p *Provider) Act(play Play) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.play = play
}

// Live is how many sandboxes have not been ended.
func (p *Provider) Live() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sandboxes)
}

// Ended is how many the broker has ended.
func (p *Provider) Ended() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// Dials is how many channels were opened.
func (p *Provider) Dials() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

// Take implements broker.Provider.
func (p *Provider) Take(_ context.Context, req broker.TakeRequest) (broker.Sandbox, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	name := "liar-" + hex.EncodeToString(b[:])
	s := &Sandbox{p: p, id: broker.SandboxID{Name: name, Claim: name, Pod: name}, pool: req.Pool, identity: channel.NewIdentity()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sandboxes[name] = s
	return s, nil
}

// List implements broker.Provider.
func (p *Provider) List(context.Context) ([]broker.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []broker.Sandbox
	for _, s := range p.sandboxes {
		out = append(out, s)
	}
	return out, nil
}

// Watch implements broker.Provider: no death is ever reported, since the broker has to
// find out by itself.
func (p *Provider) Watch(ctx context.Context, _ func(broker.SandboxID, broker.Fate)) error {
	<-ctx.Done()
	return nil
}

// Sandbox implements broker.Sandbox.
type Sandbox struct {
	p        *Provider
	id       broker.SandboxID
	pool     string
	identity *channel.Identity

	mu     sync.Mutex // guards the rest
	record *broker.Record
	conns  []net.Conn
	gone   bool
}

// ID implements broker.Sandbox.
func (s *Sandbox) ID() broker.SandboxID { return s.id }

// Info implements broker.Sandbox.
func (s *Sandbox) Info() broker.SandboxInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return broker.SandboxInfo{Pool: s.pool, Isolation: "none", Warm: true, Record: s.record}
}

// Dial implements broker.Sandbox.
func (s *Sandbox) Dial(context.Context) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, errors.New("hostile: the sandbox is gone")
	}
	ours, theirs := net.Pipe()
	s.conns = append(s.conns, theirs)
	s.p.mu.Lock()
	play := s.p.play
	s.p.dials++
	s.p.mu.Unlock()
	s.p.conns.Go(func() {
		defer func() { _ = theirs.Close() }()
		if s.identity.Accept(theirs) == nil {
			play(theirs)
		}
	})
	return ours, nil
}

// Record implements broker.Sandbox.
func (s *Sandbox) Record(_ context.Context, r broker.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = &r
	return nil
}

// Extend implements broker.Sandbox.
func (s *Sandbox) Extend(context.Context, time.Time) error { return nil }

// End implements broker.Sandbox.
func (s *Sandbox) End(context.Context) error {
	s.p.mu.Lock()
	if s.p.sandboxes[s.id.Name] == s {
		s.p.ended++
	}
	delete(s.p.sandboxes, s.id.Name)
	s.p.mu.Unlock()
	s.cut()
	return nil
}

// cut closes every connection for good.
func (s *Sandbox) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	for _, c := range s.conns {
		_ = c.Close()
	}
}
