package runner

import (
	"maps"
	"slices"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// maxExecs bounds the execs a sandbox holds at once, running or not yet
// confirmed.
const maxExecs = 64

// maxOver bounds the execs that are over and whose ID the sandbox still knows, so that
// a client which starts one again learns of it instead of running it twice.
const maxOver = 1024

// supervisor holds the sandbox's one lease and its execs.
type supervisor struct {
	opts     Options
	identity *channel.Identity
	reaper   *reaper
	retained *retained

	renice   bool // a spare starts with a low priority
	priority int  // of programs

	// tidying is held for reading while something is removed that an ended program
	// left behind, and for writing by who starts the next one. Before mu.
	tidying sync.RWMutex

	// rehearsing is held for reading by a rehearsal, and for writing by who starts a
	// program. Before mu.
	rehearsing sync.RWMutex

	begun chan struct{} // an exec has; room for one

	mu        sync.Mutex // guards the rest; held while an exec starts, so that one ID never starts twice
	bound     *channel.Bind
	execs     map[string]*execution // by ID
	over      []string              // the IDs of the newest execs that were forgotten
	nurseries map[string]*nursery   // by language; none is ever removed
	closed    bool
}

func newSupervisor(o Options) *supervisor {
	s := &supervisor{opts: o, identity: channel.NewIdentity(), reaper: newReaper(), retained: newRetained(maxRetained), begun: make(chan struct{}, 1), execs: map[string]*execution{}, nurseries: map[string]*nursery{}}
	var err error
	s.priority, err = ownPriority()
	s.renice = err == nil && canRenice()
	return s
}

// bind gives the sandbox to a lease, once.
func (s *supervisor) bind(b channel.Bind) error {
	if b.Lease == "" {
		return wire.Invalid("lease", 0, "a bind names no lease")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bindLocked(b)
}

// bindLocked is bind; mu is held.
func (s *supervisor) bindLocked(b channel.Bind) error {
	switch {
	case s.bound == nil:
		s.bound = &b
		return nil
	case *s.bound == b:
		return nil
	}
	return &wire.Error{Code: wire.CodeConflict, Reason: channel.ReasonBoundElsewhere, Message: "this sandbox belongs to another lease"}
}

// open finds the exec id, or starts it. started says that it is new.
func (s *supervisor) open(id string, st channel.Start, code []byte) (e *execution, started bool, err error) {
	if !st.AttachOnly {
		// Once whatever is going on is over, and before anything else begins.
		s.rehearsing.Lock()
		s.tidying.Lock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !st.AttachOnly {
		s.tidying.Unlock()
		s.rehearsing.Unlock()
	}
	switch {
	case st.Lease == "":
		return nil, false, wire.Invalid("lease", 0, "a start names no lease")
	case s.bound == nil && st.AttachOnly: // nothing has run
	default:
		if err := s.bindLocked(st.Bind); err != nil {
			return nil, false, err
		}
	}
	if e, ok := s.execs[id]; ok {
		return e, false, nil
	}
	switch {
	case slices.Contains(s.over, id):
		code := wire.CodeConflict
		if st.AttachOnly {
			code = wire.CodeNotFound
		}
		return nil, false, &wire.Error{Code: code, Reason: wire.ReasonConfirmed, Message: "the exec is over and its ending was confirmed; an ID is not used again"}
	case st.AttachOnly:
		return nil, false, wire.Errorf(wire.CodeNotFound, "the sandbox knows no such exec")
	case len(s.execs) >= maxExecs:
		return nil, false, &wire.Error{Code: wire.CodeExhausted, Field: "exec", Limit: maxExecs, Message: "the lease holds as many execs as it may; wait for some to end, and attach to those that have for their endings"}
	case st.Stdout.Acked > 0 || st.Stderr.Acked > 0:
		return nil, false, wire.Invalid("acked", 0, "the exec is new: its output starts at 0")
	case st.Program == nil || st.Timeout <= 0:
		return nil, false, wire.Invalid("program", 0, "a start names no program or no timeout")
	}
	c, err := s.resolve(id, st.Program, code)
	if err != nil {
		return nil, false, err
	}
	e, err = s.start(id, c, st.Program, st.Timeout)
	if err != nil {
		return nil, false, err
	}
	s.execs[id] = e
	select {
	case s.begun <- struct{}{}:
	default:
	}
	if e.spare != nil {
		s.nurseries[c.language].used.Add(1)
	}
	return e, true, nil
}

// forget drops an exec whose ending has been confirmed.
func (s *supervisor) forget(e *execution) {
	defer s.kickSpares()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.execs[e.id] == e {
		delete(s.execs, e.id)
		s.over = append(s.over[max(0, len(s.over)-maxOver+1):], e.id)
		close(e.gone)
		e.out.drop()
		e.err.drop()
	}
}

// roots tells which processes and marks belong to which exec. A first process
// that has ended still names its session. A spare's own mark stands for an exec
// until it gets one.
func (s *supervisor) roots() roots {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := roots{sessions: make(map[int]string, len(s.execs)), marks: map[string]string{}}
	for id, e := range s.execs {
		r.sessions[e.pid] = id
		if e.spare != nil {
			r.marks[e.spare.mark] = id
		}
	}
	for _, n := range s.nurseries {
		if pid, mark, ok := n.root(); ok {
			r.sessions[pid] = mark
		}
	}
	return r
}

// rootsWith is roots with those of e, which may be forgotten already. Its session's number
// may be another process's by now: that one counts.
func (s *supervisor) rootsWith(e *execution) roots {
	r := s.roots()
	if _, ok := r.sessions[e.pid]; !ok {
		r.sessions[e.pid] = e.id
	}
	if e.spare != nil {
		r.marks[e.spare.mark] = e.id
	}
	return r
}

// spares reports whether pid is a process of the runner's own that outlives
// execs: a spare interpreter, or another exec's first process, which has an owner
// by itself.
func (s *supervisor) spares(pid int) bool { return s.reaper.owns(pid) }

// busy reports whether there are execs.
func (s *supervisor) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.execs) > 0
}

func (s *supervisor) status() channel.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := channel.Status{Boot: s.identity.Boot(), Bound: s.bound != nil, Execs: len(s.execs), Retained: s.retained.bytes()}
	for lang, n := range s.nurseries {
		if st.Spares == nil {
			st.Spares = map[string]channel.Spare{}
		}
		st.Spares[lang] = n.status()
	}
	return st
}

// close kills every exec and stops reaping.
func (s *supervisor) close() {
	s.mu.Lock()
	s.closed = true
	execs := slices.Collect(maps.Values(s.execs))
	s.mu.Unlock()
	for _, e := range execs {
		e.signal(9)
		s.killTree(e)
		s.forget(e)
	}
	for _, n := range s.allNurseries() {
		n.close()
	}
	s.reaper.close()
}
