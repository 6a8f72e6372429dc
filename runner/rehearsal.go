package runner

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// A rehearsal takes the first spare of a language through a whole program, from the
// hand-over to the confirmed ending, in a sandbox that is nobody's yet. What is done
// for the first time is slow in gVisor: each page of the runner, the interpreter and
// its libraries has to be mapped when it is touched. So it is done when nobody waits.
//
// A rehearsal starts only while the sandbox is not bound, and no exec starts before it
// has ended: nothing of a tenant's ever runs beside it, and it leaves nothing behind.

// rehearsalTimeout bounds one.
const rehearsalTimeout = 5 * time.Second

// rehearsalID begins the exec ID of one. No tenant's can be alike: wire.CheckExecID lets
// no slash pass.
const rehearsalID = "rehearsal/"

// rehearse uses up the spare of a language that waits, unless the sandbox is bound.
func (s *supervisor) rehearse(lang string) {
	s.rehearsing.RLock()
	defer s.rehearsing.RUnlock()
	e := s.startRehearsal(lang)
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), rehearsalTimeout)
	defer cancel()
	credit := wire.Credit{Limit: wire.MaxData}
	a := newAttachment(e, channel.NewFrameWriter(io.Discard, func() error { return nil }), channel.Start{Stdout: credit, Stderr: credit})
	err := e.attach(a, true)
	if err == nil {
		err = errors.Join(a.handle(wire.Frame{Kind: wire.KindDone}), a.send(ctx)) // confirmed as soon as it is told
	}
	if err != nil {
		s.opts.Log.Warn("a rehearsal did not end", "language", lang, "error", err)
	}
	e.kill(wire.ReasonCanceled, "")
	s.forget(e)
}

// startRehearsal starts the program; nil: it must not be, or cannot.
func (s *supervisor) startRehearsal(lang string) *execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bound != nil || s.closed {
		return nil
	}
	program := &wire.Program{Language: lang}
	id := rehearsalID + lang
	c, err := s.resolve(id, program, []byte(languages[lang].rehearsal))
	if err != nil {
		s.opts.Log.Warn("a rehearsal could not start", "language", lang, "error", err)
		return nil
	}
	e, err := s.start(id, c, program, rehearsalTimeout)
	if err != nil {
		s.opts.Log.Warn("a rehearsal could not start", "language", lang, "error", err)
		return nil
	}
	s.execs[id] = e
	return e
}
