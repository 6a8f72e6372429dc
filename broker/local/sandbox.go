//go:build linux

package local

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// sandbox is one runner process and what was made for it.
type sandbox struct {
	p    *Provider
	pool *pool
	id   broker.SandboxID
	dir  string // its files; removed with it

	cmd    *exec.Cmd
	stderr *tail
	dead   chan struct{} // closed when the process has ended and its traces are gone

	dialling sync.WaitGroup // the connections that are being made

	mu     sync.Mutex // guards the rest
	taken  bool
	ending bool // its end is wanted: no death to report
	ended  bool
	timer  *time.Timer // the sandbox's own end
	record *broker.Record
	links  map[*conn]struct{} // the connections to it
}

// newSandbox names a sandbox and records it, before anything of it exists.
func (p *Provider) newSandbox(pl *pool) (*sandbox, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	name := "sbx-" + hex.EncodeToString(b[:])
	dir, err := p.state.newSandbox(name)
	if err != nil {
		return nil, err
	}
	s := &sandbox{p: p, pool: pl, dir: dir, stderr: &tail{}, dead: make(chan struct{}), links: map[*conn]struct{}{}}
	// A name is never given again here; the process completes the ID.
	s.id = broker.SandboxID{Name: name, Claim: "local-" + name}
	return s, nil
}

// start starts the process and waits until its runner listens. When it fails nothing is
// left behind, unless that takes long: then it is being removed.
func (s *sandbox) start(ctx context.Context) error {
	cmd, err := s.p.runtime.command(s)
	if err == nil {
		s.cmd = cmd
		cmd.Stderr = s.stderr
		var ready *os.File
		if ready, err = s.spawn(); err == nil {
			return s.awaitReady(ctx, ready)
		}
	}
	s.p.jobs.Go(func() {
		s.p.discard(s)
		close(s.dead)
	})
	s.awaitGone()
	return fmt.Errorf("local: starting sandbox %s: %w", s.id.Name, err)
}

// spawn starts the command; what the runner says on its standard output can be
// read from ready.
func (s *sandbox) spawn() (ready *os.File, err error) {
	ready, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.cmd.Stdout = w
	err = s.p.spawner.start(s.cmd)
	_ = w.Close()
	if err != nil {
		_ = ready.Close()
		return nil, err
	}
	s.id.Pod = fmt.Sprintf("%s-%d", s.id.Name, s.cmd.Process.Pid)
	s.p.add(s)
	s.p.jobs.Go(s.reap)
	if s.p.life.Err() != nil {
		s.kill() // Close may have looked just before
	}
	return ready, nil
}

// awaitReady waits for the runner's first line.
func (s *sandbox) awaitReady(ctx context.Context, ready *os.File) error {
	defer func() { _ = ready.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := bufio.NewReader(ready).ReadString('\n'); err == nil {
		return nil
	}
	s.kill()
	s.awaitGone()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("local: waiting for sandbox %s: %w", s.id.Name, err)
	}
	return fmt.Errorf("local: sandbox %s did not start (%v): %s", s.id.Name, s.cmd.ProcessState, s.stderr)
}

// awaitGone waits until nothing of the sandbox is left, but not for ever.
func (s *sandbox) awaitGone() {
	late := time.NewTimer(removeTimeout)
	defer late.Stop()
	select {
	case <-s.dead:
	case <-late.C:
	}
}

// reap waits for the process, reports a death that nobody wanted, and removes what is
// left of the sandbox.
func (s *sandbox) reap() {
	err := s.cmd.Wait()
	fate := s.p.runtime.fate(s, err)
	s.mu.Lock()
	s.ended = true
	news := s.taken && !s.ending
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	if news {
		s.p.log.Info("a sandbox died", "sandbox", s.id.Name, "reason", fate.Reason, "stderr", s.stderr.String())
		s.p.report(s.id, fate)
	} else if s.p.life.Err() == nil {
		s.pool.drop(s)
	}
	s.p.discard(s)
	s.p.remove(s)
	close(s.dead)
}

// discardPause is how long what does not go is left alone before the next attempt.
const discardPause = time.Second

// discard removes what was made for a sandbox whose process is gone, and then its
// record. It returns when nothing is left; once the provider closes, what does not go
// is the next start's.
func (p *Provider) discard(s *sandbox) {
	s.disconnect()
	for told := false; ; told = true {
		err := p.runtime.remove(s.id.Name, s.dir)
		if err == nil {
			err = os.RemoveAll(s.dir)
		}
		if err == nil {
			return
		}
		if !told {
			p.log.Warn("traces of a sandbox do not go yet", "sandbox", s.id.Name, "error", err)
		}
		select {
		case <-time.After(discardPause):
		case <-p.life.Done():
			p.log.Warn("traces of a sandbox are left for the next start to remove", "sandbox", s.id.Name, "error", err)
			return
		}
	}
}

// disconnect ends what connects to the sandbox: it writes in the sandbox's folder while
// it starts. What the runner has said can still be read.
func (s *sandbox) disconnect() {
	s.dialling.Wait() // Dial begins none to a sandbox that has ended
	s.mu.Lock()
	links := s.links
	s.links = nil
	s.mu.Unlock()
	for c := range links {
		c.stop()
	}
}

// take hands the sandbox out; false if it is dead.
func (s *sandbox) take(req broker.TakeRequest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.taken = true
	s.moveEnd(req.Until)
	return true
}

// moveEnd sets when the sandbox ends by itself. mu is held.
func (s *sandbox) moveEnd(until time.Time) {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(time.Until(until), s.kill)
}

// kill ends the process because that is wanted; reap does the rest.
func (s *sandbox) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	if !s.ended {
		_ = s.cmd.Process.Kill() // it may have just ended
	}
}

func (s *sandbox) isTaken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken && !s.ended
}

func (s *sandbox) isDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// ID implements broker.Sandbox.
func (s *sandbox) ID() broker.SandboxID { return s.id }

// Info implements broker.Sandbox.
func (s *sandbox) Info() broker.SandboxInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return broker.SandboxInfo{Pool: s.pool.cfg.Name, Isolation: s.p.runtime.isolation(), Warm: true, Record: s.record}
}

// Dial implements broker.Sandbox.
func (s *sandbox) Dial(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, fmt.Errorf("local: sandbox %s is gone", s.id.Name)
	}
	s.dialling.Add(1)
	s.mu.Unlock()
	defer s.dialling.Done()
	c, err := dial(s.p.spawner, s.p.runtime.connect(s))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links[c] = struct{}{}
	go s.hangUp(c)
	return c, nil
}

// hangUp forgets a connection when its process has ended.
func (s *sandbox) hangUp(c *conn) {
	<-c.gone
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, c)
}

// Record implements broker.Sandbox.
func (s *sandbox) Record(_ context.Context, r broker.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = &r
	s.moveEnd(r.Until)
	return nil
}

// Extend implements broker.Sandbox.
func (s *sandbox) Extend(_ context.Context, until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moveEnd(until)
	return nil
}

// End implements broker.Sandbox. It returns when nothing of the sandbox is left.
func (s *sandbox) End(ctx context.Context) error {
	s.kill()
	select {
	case <-s.dead:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("local: ending sandbox %s: %w", s.id.Name, ctx.Err())
	}
}

// lost is the fate of a sandbox that went away.
func lost(c wire.Cause, format string, args ...any) broker.Fate {
	return broker.Fate{Reason: wire.ReasonLost, Cause: c, Message: fmt.Sprintf(format, args...)}
}

// tailSize bounds what is kept of a process's complaints, in bytes.
const tailSize = 2 << 10

// tail keeps the end of what is written to it, for one line in an error.
type tail struct {
	mu sync.Mutex // guards b
	b  []byte
}

var _ io.Writer = (*tail)(nil)

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > tailSize {
		t.b = append([]byte(nil), t.b[len(t.b)-tailSize:]...)
	}
	return len(p), nil
}

// String is the last line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.b))
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if text == "" {
		return "it said nothing"
	}
	return text
}
