// Package processtest provides sandboxes for tests that are plain processes on
// this machine: the test binary started again as the runner. It isolates
// nothing. Everything else is real: the runner, its socket, the channel. What a
// real provider cannot be made to do on demand, a test tells this one to do.
package processtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Provider implements broker.Provider.
type Provider struct {
	t *testing.T

	mu        sync.Mutex // guards the rest
	sandboxes map[string]*Sandbox
	watchers  map[int]func(broker.SandboxID, broker.Fate)
	watches   int
	replicas  []*Replica
	takeError error
	hold      chan struct{}
	records   chan struct{} // Record waits for it; nil: it does not
	taken     int
}

// New makes a provider whose sandboxes end with the test.
func New(t *testing.T) *Provider {
	p := &Provider{t: t, sandboxes: map[string]*Sandbox{}, watchers: map[int]func(broker.SandboxID, broker.Fate){}}
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, s := range p.sandboxes {
			s.stop()
		}
	})
	return p
}

// FailTakes makes every Take fail with err, until it is nil again.
func (p *Provider) FailTakes(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takeError = err
}

// HoldTakes makes every Take wait until release is called.
func (p *Provider) HoldTakes() (release func()) {
	hold := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = hold
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(hold)
		p.hold = nil
	})
}

// HoldRecords makes every Record wait until release is called.
func (p *Provider) HoldRecords() (release func()) {
	hold := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records = hold
	return sync.OnceFunc(func() { close(hold) })
}

// Live is how many sandboxes exist.
func (p *Provider) Live() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sandboxes)
}

// Taken is how many sandboxes were ever taken.
func (p *Provider) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// Any returns one of the sandboxes; the test fails if there is none.
func (p *Provider) Any() *Sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sandboxes {
		return s
	}
	p.t.Fatal("processtest: there is no sandbox")
	return nil
}

// RecordedCount is how many sandboxes have a record.
func (p *Provider) RecordedCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, s := range p.sandboxes {
		if s.Recorded() != nil {
			n++
		}
	}
	return n
}

// TouchAll makes an empty file in every sandbox's workspace.
func (p *Provider) TouchAll(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.sandboxes {
		errs = append(errs, s.Touch(name))
	}
	return errors.Join(errs...)
}

// Take implements broker.Provider.
func (p *Provider) Take(ctx context.Context, req broker.TakeRequest) (broker.Sandbox, error) {
	p.mu.Lock()
	err, hold := p.takeError, p.hold
	p.mu.Unlock()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, fmt.Errorf("processtest: taking: %w", ctx.Err())
		}
	}
	var b [8]byte
	_, _ = rand.Read(b[:])
	name := "sbx-" + hex.EncodeToString(b[:])
	s := &Sandbox{p: p, id: broker.SandboxID{Name: name, Claim: name + "-claim", Pod: name + "-pod"}, pool: req.Pool, owner: req.Owner, socket: "@processtest-" + name}
	if err := s.start(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken++
	p.sandboxes[name] = s
	s.moveEnd(req.Until)
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

// Watch implements broker.Provider.
func (p *Provider) Watch(ctx context.Context, died func(broker.SandboxID, broker.Fate)) error {
	p.mu.Lock()
	p.watches++
	id := p.watches
	p.watchers[id] = died
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watchers, id)
	return nil
}

func (p *Provider) remove(s *Sandbox) {
	p.mu.Lock()
	delete(p.sandboxes, s.id.Name)
	p.mu.Unlock()
	s.mu.Lock()
	s.end.Stop()
	s.mu.Unlock()
	s.stop()
}

// moveEnd sets when the sandbox ends by itself.
func (s *Sandbox) moveEnd(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		s.end.Stop()
	}
	s.end = time.AfterFunc(time.Until(until), func() { s.p.remove(s) })
}

// Sandbox implements broker.Sandbox.
type Sandbox struct {
	p      *Provider
	id     broker.SandboxID
	pool   string
	socket string
	dir    string

	mu       sync.Mutex // guards the rest
	owner    string
	cmd      *exec.Cmd
	end      *time.Timer // the sandbox's own end
	record   *broker.Record
	endError error
	apart    bool // Dial fails
	conns    []*conn
}

func (s *Sandbox) self(role string) *exec.Cmd {
	cmd := exec.Command(os.Args[0]) //nolint:gosec // the test binary itself
	// The race detector's pause at an exit is long, and so many files' helpers exit.
	cmd.Env = append(os.Environ(), envRole+"="+role, envSocket+"="+s.socket, "GORACE=atexit_sleep_ms=0")
	return cmd
}

func (s *Sandbox) start() error {
	s.dir = s.p.t.TempDir()
	cmd := s.self("serve")
	cmd.Dir = s.dir
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("processtest: starting a runner: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd = cmd
	return nil
}

func (s *Sandbox) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
		EndAllIn(s.dir)
	}
}

// Die kills the sandbox and reports the fate, as a provider that watches would.
func (s *Sandbox) Die(f broker.Fate) {
	s.p.remove(s)
	s.p.mu.Lock()
	watchers := slices.Collect(maps.Values(s.p.watchers))
	s.p.mu.Unlock()
	for _, died := range watchers {
		died(s.id, f)
	}
}

// Replace kills the runner and starts a blank one under the same name and
// socket, as agent-sandbox does with a pod that vanished.
func (s *Sandbox) Replace() error {
	s.stop()
	return s.start()
}

// Cut breaks every open connection; the runner lives on.
func (s *Sandbox) Cut() {
	s.mu.Lock()
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// Part breaks every open connection and lets none be opened, until parted is false
// again; the runner lives on.
func (s *Sandbox) Part(parted bool) {
	s.mu.Lock()
	s.apart = parted
	s.mu.Unlock()
	if parted {
		s.Cut()
	}
}

// Touch makes an empty file in the workspace.
func (s *Sandbox) Touch(name string) error {
	return os.WriteFile(filepath.Join(s.dir, name), nil, 0o600)
}

// Has reports whether the workspace has a file of that name.
func (s *Sandbox) Has(name string) bool {
	_, err := os.Stat(filepath.Join(s.dir, name))
	return err == nil
}

// Dir is the workspace.
func (s *Sandbox) Dir() string { return s.dir }

// FailEnds makes End fail with err, until it is nil again.
func (s *Sandbox) FailEnds(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endError = err
}

// Recorded is what Record last wrote.
func (s *Sandbox) Recorded() *broker.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

// Owner is the replica that owns the sandbox.
func (s *Sandbox) Owner() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owner
}

// ID implements broker.Sandbox.
func (s *Sandbox) ID() broker.SandboxID { return s.id }

// Info implements broker.Sandbox.
func (s *Sandbox) Info() broker.SandboxInfo {
	return broker.SandboxInfo{Pool: s.pool, Owner: s.Owner(), Isolation: "none", Warm: true, Record: s.Recorded()}
}

// Dial implements broker.Sandbox.
func (s *Sandbox) Dial(context.Context) (net.Conn, error) {
	s.mu.Lock()
	apart := s.apart
	s.mu.Unlock()
	if apart {
		return nil, errors.New("processtest: nothing reaches the sandbox")
	}
	cmd := s.self("connect")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("processtest: dialling: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("processtest: dialling: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("processtest: dialling: %w", err)
	}
	c := &conn{r: out, w: in, cmd: cmd}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, c)
	return c, nil
}

// Record implements broker.Sandbox.
func (s *Sandbox) Record(ctx context.Context, r broker.Record) error {
	s.p.mu.Lock()
	hold := s.p.records
	s.p.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.moveEnd(r.Until)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = &r
	return nil
}

// Extend implements broker.Sandbox.
func (s *Sandbox) Extend(_ context.Context, until time.Time) error {
	s.moveEnd(until)
	return nil
}

// End implements broker.Sandbox.
func (s *Sandbox) End(context.Context) error {
	s.mu.Lock()
	err := s.endError
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.p.remove(s)
	return nil
}

// OOM is the fate of a sandbox that exceeded its memory.
var OOM = broker.Fate{Reason: wire.ReasonOOM, Message: "the sandbox exceeded its memory limit"}

// conn is a connect process as a connection. Deadlines are not supported.
type conn struct {
	r    io.ReadCloser
	w    io.WriteCloser
	cmd  *exec.Cmd
	once sync.Once
	err  error
}

func (c *conn) Read(b []byte) (int, error)  { return c.r.Read(b) }
func (c *conn) Write(b []byte) (int, error) { return c.w.Write(b) }
func (c *conn) Close() error {
	c.once.Do(func() {
		_ = c.cmd.Process.Kill()
		c.err = errors.Join(c.w.Close(), c.r.Close())
		_ = c.cmd.Wait() // it was killed
	})
	return c.err
}
func (c *conn) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "unix"} }
func (c *conn) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "unix"} }
func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
