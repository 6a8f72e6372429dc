package simulated

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// errGone is what a dial to a sandbox gets that is no more.
var errGone = errors.New("simulated: the sandbox is gone")

// fateDeleted is what became of a sandbox whose end or life was over.
var fateDeleted = broker.Fate{Reason: wire.ReasonLost, Cause: wire.CauseDeleted, Message: "the simulated sandbox was deleted"}

// Sandbox implements broker.Sandbox.
type Sandbox struct {
	p      *Provider
	dice   dice
	number uint64
	id     broker.SandboxID
	pool   string

	mu     sync.Mutex // guards the rest
	gone   bool
	dials  int
	writes int
	record *broker.Record
	end    *time.Timer // its own end
	life   *time.Timer // its death; nil: none is set
	news   *time.Timer // the report of its death; nil: it is not dead
}

// start sets the sandbox's clocks.
func (s *Sandbox) start(until time.Time, life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return // the provider has been closed meanwhile
	}
	s.end = time.AfterFunc(time.Until(until), func() { s.Die(fateDeleted) })
	if life > 0 {
		s.life = time.AfterFunc(life, func() { s.Die(fateDeleted) })
	}
}

// stopTimers stops all clocks.
func (s *Sandbox) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	for _, t := range []*time.Timer{s.end, s.life, s.news} {
		if t != nil {
			t.Stop()
		}
	}
}

// Die makes the sandbox vanish at once, by nobody's order. The provider reports
// it after the delay of a death.
func (s *Sandbox) Die(f broker.Fate) {
	if !s.p.bury(s) {
		return
	}
	s.stopTimers()
	_ = s.p.end(s) // without runners nothing is left of it anyway
	delay := s.dice.draw(s.p.delays.Death, drawDeath, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.news = time.AfterFunc(delay, func() { s.p.report(s, f) })
}

// bury moves a sandbox from the living to the dead; false if it was ended or died
// before.
func (p *Provider) bury(s *Sandbox) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sandboxes[s.number] == nil {
		return false
	}
	delete(p.sandboxes, s.number)
	p.dead[s.number] = s
	return true
}

// ID implements broker.Sandbox.
func (s *Sandbox) ID() broker.SandboxID { return s.id }

// Info implements broker.Sandbox.
func (s *Sandbox) Info() broker.SandboxInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return broker.SandboxInfo{Pool: s.pool, Isolation: isolation, Warm: true, Record: s.record}
}

// Dial implements broker.Sandbox.
func (s *Sandbox) Dial(ctx context.Context) (net.Conn, error) {
	s.mu.Lock()
	nth, gone := s.dials, s.gone
	s.dials++
	s.mu.Unlock()
	if gone {
		return nil, errGone
	}
	if err := sleep(ctx, s.dice.draw(s.p.delays.Attach, drawAttach, nth)); err != nil {
		return nil, fmt.Errorf("simulated: dialling %s: %w", s.id.Name, err)
	}
	conn, err := s.p.connect(ctx, s.number)
	if err != nil {
		return nil, fmt.Errorf("simulated: dialling %s: %w", s.id.Name, err)
	}
	return conn, nil
}

// write takes the time of a write to the cluster's API.
func (s *Sandbox) write(ctx context.Context) error {
	s.mu.Lock()
	nth := s.writes
	s.writes++
	s.mu.Unlock()
	return sleep(ctx, s.dice.draw(s.p.delays.Write, drawWrite, nth))
}

// Record implements broker.Sandbox.
func (s *Sandbox) Record(ctx context.Context, r broker.Record) error {
	if err := s.write(ctx); err != nil {
		return fmt.Errorf("simulated: recording %s: %w", s.id.Name, err)
	}
	s.mu.Lock()
	s.record = &r
	s.mu.Unlock()
	s.moveEnd(r.Until)
	return nil
}

// Extend implements broker.Sandbox.
func (s *Sandbox) Extend(ctx context.Context, until time.Time) error {
	if err := s.write(ctx); err != nil {
		return fmt.Errorf("simulated: extending %s: %w", s.id.Name, err)
	}
	s.moveEnd(until)
	return nil
}

// moveEnd sets when the sandbox ends by itself.
func (s *Sandbox) moveEnd(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone && s.end != nil {
		s.end.Reset(time.Until(until))
	}
}

// End implements broker.Sandbox.
func (s *Sandbox) End(ctx context.Context) error {
	if err := s.write(ctx); err != nil {
		return fmt.Errorf("simulated: ending %s: %w", s.id.Name, err)
	}
	if !s.p.forget(s) {
		return nil // it is gone already
	}
	s.stopTimers()
	if err := s.p.end(s); err != nil {
		return fmt.Errorf("simulated: ending %s: %w", s.id.Name, err)
	}
	return nil
}
