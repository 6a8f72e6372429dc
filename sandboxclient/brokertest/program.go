package brokertest

import (
	"fmt"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Programs is a broker whose programs outlive their connections, for tests of what a
// caller sees when one breaks. play speaks for each program that is started, once; it
// may [Program.Cut] the client's connection as it likes. Clients that attach get the
// output from where they ask for it.
//
// Of what a client sends only the cancel is looked at; see Program.Canceled.
func Programs(play func(*Program)) Script {
	b := &programs{play: play, byHandle: map[string]*Program{}}
	return Each(b.serve)
}

// programs are those that a server has started.
type programs struct {
	play func(*Program)

	mu       sync.Mutex // guards the rest
	byHandle map[string]*Program
}

// Program is a program that runs in the script alone.
type Program struct {
	Request wire.Request // that started it
	Code    string

	response wire.Response
	canceled chan struct{}
	once     sync.Once

	mu       sync.Mutex // guards the rest
	changed  sync.Cond
	out      [2][]byte
	ending   *wire.Ending
	reader   *Stream // the client that has it; nil: none
	attached int
	closed   bool
}

func (b *programs) serve(s *Stream) {
	switch s.Request.Op {
	case wire.OpRun, wire.OpExec:
		p := b.add(s)
		s.Respond(p.response)
		p.join(s)
		go p.carry(s)
		go p.endWith(s.Conn.closing)
		b.play(p)
	case wire.OpAttach:
		b.mu.Lock()
		p := b.byHandle[s.Request.Exec]
		b.mu.Unlock()
		if p == nil {
			s.Fail(wire.Errorf(wire.CodeNotFound, "no such lease or exec"))
			return
		}
		s.Respond(p.response)
		p.join(s)
		p.carry(s)
	default:
		s.Respond(wire.Response{Lease: "lease"})
	}
}

func (b *programs) add(s *Stream) *Program {
	b.mu.Lock()
	defer b.mu.Unlock()
	handle := fmt.Sprintf("exec-%d", len(b.byHandle)+1)
	p := &Program{
		Request: s.Request, Code: s.Code, canceled: make(chan struct{}),
		response: wire.Response{Lease: "lease", Exec: handle, DetachGraceMS: 10_000, Isolation: "none", RequestID: handle},
	}
	p.changed.L = &p.mu
	b.byHandle[handle] = p
	return p
}

// Stdout makes the program write text.
func (p *Program) Stdout(text string) { p.write(wire.Stdout, text) }

// Stderr makes the program write text.
func (p *Program) Stderr(text string) { p.write(wire.Stderr, text) }

func (p *Program) write(fd wire.FD, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out[fd-wire.Stdout] = append(p.out[fd-wire.Stdout], text...)
	p.changed.Broadcast()
}

// Exit makes the program end. What its client is told of the output is filled in.
func (p *Program) Exit(e wire.Ending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.StdoutBytes, e.StderrBytes, e.Complete = uint64(len(p.out[0])), uint64(len(p.out[1])), true
	p.ending = &e
	p.changed.Broadcast()
}

// Cut breaks the client's connection, if there is one.
func (p *Program) Cut() {
	p.mu.Lock()
	s := p.reader
	p.mu.Unlock()
	if s != nil {
		s.Conn.Cut()
	}
}

// Canceled is closed when a client has asked for the program's end, or the server has
// ended.
func (p *Program) Canceled() <-chan struct{} { return p.canceled }

// AwaitClients waits until so many clients have had the program, the one that started
// it included. It is false when the server has ended instead.
func (p *Program) AwaitClients(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.attached < n && !p.closed {
		p.changed.Wait()
	}
	return p.attached >= n
}

// endWith sets the script free when the server ends.
func (p *Program) endWith(closing <-chan struct{}) {
	<-closing
	p.once.Do(func() { close(p.canceled) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.changed.Broadcast()
}

// join makes a client the one that has the program.
func (p *Program) join(s *Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reader != nil && p.reader != s {
		go p.reader.Fail(&wire.Error{Code: wire.CodeConflict, Reason: wire.ReasonSuperseded, Message: "another client attached to this exec"})
	}
	p.reader = s
	p.attached++
	p.changed.Broadcast()
}

// carry gives a client the output, from where it asked for it, and the ending.
func (p *Program) carry(s *Stream) {
	go p.listen(s)
	for {
		fd, text, ending := p.due(s)
		switch {
		case text != nil:
			s.write(fd, text)
		case ending != nil:
			s.Exit(*ending)
			return
		default:
			return
		}
	}
}

// listen notes a cancel, and the connection's end.
func (p *Program) listen(s *Stream) {
	if _, ok := s.Await(wire.KindCancel); ok {
		p.once.Do(func() { close(p.canceled) })
		for ok {
			_, ok = s.Next()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reader == s {
		p.reader = nil
	}
	p.changed.Broadcast()
}

// due waits for what the client shall be sent next; nothing when it has gone.
func (p *Program) due(s *Stream) (wire.FD, []byte, *wire.Ending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; p.reader == s; p.changed.Wait() {
		for i, b := range p.out {
			if at := s.offset(wire.Stdout + wire.FD(i)); at < uint64(len(b)) {
				return wire.Stdout + wire.FD(i), b[at:], nil
			}
		}
		if p.ending != nil {
			return 0, nil, p.ending
		}
	}
	return 0, nil, nil
}
