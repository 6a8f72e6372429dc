package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
)

const (
	// spareStartTimeout bounds an interpreter's start, until it waits for code.
	spareStartTimeout = 10 * time.Second
	// spareDelay is the most that a program which took a spare runs before the next
	// one starts: most programs are over by then. It starts as soon as an exec has
	// been confirmed.
	spareDelay = 50 * time.Millisecond
	// spareBackoff is the pause after a first failure; it doubles up to
	// maxSpareBackoff.
	spareBackoff    = 100 * time.Millisecond
	maxSpareBackoff = 10 * time.Second
	// maxSpareFailures in a row end the attempts: the sandbox serves without.
	maxSpareFailures = 5
	// pressedPause is how long spares that gave way to programs stay away, unless an
	// exec ends before.
	pressedPause = 10 * time.Second
)

// preloadTimeout bounds the import of one module ahead; tests shorten it.
var preloadTimeout = 10 * time.Second

// nursery keeps one spare interpreter of one language.
type nursery struct {
	sup     *supervisor
	lang    string
	modules []string      // to import ahead
	kick    chan struct{} // ends a pause early; room for one
	done    chan struct{} // closed when the runner ends
	ended   sync.WaitGroup
	used    atomic.Uint64

	mu       sync.Mutex // guards the rest
	current  *spare     // started, and not taken
	ready    bool       // current waits for code
	closed   bool
	pressed  bool // current had to give way
	fresh    bool // no spare has been used: the first one is for a rehearsal
	failed   bool // the last start failed
	started  uint64
	dropped  map[string]bool // modules that are not imported ahead any more
	problems []string
}

// startSpares starts keeping spares, for the languages that are asked for and have
// none yet.
func (s *supervisor) startSpares(p channel.Prepare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lang := range p.Spares {
		if l, ok := languages[lang]; !ok || l.spare == nil {
			s.opts.Log.Warn("there are no spare interpreters for this language", "language", lang)
			continue
		}
		if s.closed || s.nurseries[lang] != nil {
			continue
		}
		n := &nursery{sup: s, lang: lang, modules: p.Preload[lang], kick: make(chan struct{}, 1), done: make(chan struct{}), fresh: true, dropped: map[string]bool{}}
		s.nurseries[lang] = n
		n.ended.Go(n.run)
	}
}

// sparePoll is how often whoever waits for the spares looks.
const sparePoll = 20 * time.Millisecond

// awaitSpares waits until every spare is ready or has failed, at most PrepareWait.
func (s *supervisor) awaitSpares(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, channel.PrepareWait)
	defer cancel()
	t := time.NewTicker(sparePoll)
	defer t.Stop()
	for slices.ContainsFunc(s.allNurseries(), (*nursery).starting) {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// starting reports whether a spare may soon be ready that is not yet.
func (n *nursery) starting() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return (!n.ready || n.fresh) && !n.closed && !n.failed
}

// run keeps a spare until the runner ends or too many fail in a row.
func (n *nursery) run() {
	log := n.sup.opts.Log.With("language", n.lang)
	pause := spareBackoff
	for failures := 0; failures < maxSpareFailures; {
		sp, err := n.raise()
		if err == nil {
			pause = spareBackoff
			n.rehearse()
			select {
			case <-sp.taken:
			case <-sp.dead:
				err = errSpareDied
			case <-n.done:
			}
			if sp.isTaken() { // and perhaps over already
				failures = 0
				if !n.rest(spareDelay) {
					return
				}
				continue
			}
		}
		pressed := n.lose()
		var bad *preloadError
		switch {
		case n.over():
			return
		case pressed: // it was not its fault
			if !n.rest(pressedPause) {
				return
			}
			continue
		case errors.As(err, &bad):
			log.Warn("a module is not imported ahead", "module", bad.module, "problem", bad.problem)
			n.drop(bad)
			continue
		}
		failures++
		log.Warn("a spare interpreter failed", "error", err, "failures", failures)
		n.note(err.Error())
		n.mu.Lock()
		n.failed = true
		n.mu.Unlock()
		if errors.Is(err, errNoInterpreter) || errors.Is(err, errWorkspaceOnPath) {
			return // it would be so again
		}
		if !n.rest(pause) {
			return
		}
		pause = min(2*pause, maxSpareBackoff)
	}
	log.Error("no more spare interpreters are started: too many failed in a row")
}

// rehearse uses the first spare up, if it may.
func (n *nursery) rehearse() {
	n.mu.Lock()
	fresh := n.fresh
	n.mu.Unlock()
	if fresh {
		n.sup.rehearse(n.lang)
	}
	n.mu.Lock()
	n.fresh = false
	n.mu.Unlock()
}

// over reports whether the runner ends.
func (n *nursery) over() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed
}

// raise starts a spare and sees it through the preload, until it waits for code.
func (n *nursery) raise() (sp *spare, err error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, os.ErrClosed
	}
	n.started++
	mark := fmt.Sprintf("spare/%s/%d", n.lang, n.started)
	n.mu.Unlock()
	// A start is long: it must not hold up what programs ask meanwhile.
	if sp, err = n.sup.startSpare(n.lang, mark); err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.current = sp
	if n.closed {
		n.sup.reaper.kill(sp.pid, true, unix.SIGKILL)
	}
	n.mu.Unlock()
	if err := sp.awaitHello(); err != nil {
		return nil, err
	}
	for _, module := range n.modules {
		if n.isDropped(module) {
			continue
		}
		if err := sp.preload(module); err != nil {
			return nil, err
		}
	}
	if err := sp.look(); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current != sp { // it gave way meanwhile
		return nil, errSpareDied
	}
	n.ready, n.failed = true, false
	return sp, nil
}

// take gives the spare away if it does for c; it never waits for one.
func (n *nursery) take(c *command, stdin bool) *spare {
	n.mu.Lock()
	defer n.mu.Unlock()
	sp := n.current
	if sp == nil || !n.ready || !sp.fits(c, stdin) {
		return nil
	}
	n.current, n.ready = nil, false
	select {
	case <-n.kick: // it was for programs before this one
	default:
	}
	close(sp.taken)
	if sp.stale() {
		n.sup.discard(sp)
		return nil
	}
	return sp
}

// isTaken reports whether the nursery has given the spare away.
func (sp *spare) isTaken() bool {
	select {
	case <-sp.taken:
		return true
	default:
		return false
	}
}

// lose ends the spare there is. It reports whether it was made to give way.
func (n *nursery) lose() (pressed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current != nil {
		n.sup.discard(n.current)
	}
	n.current, n.ready = nil, false
	pressed, n.pressed = n.pressed, false
	return pressed
}

// giveWay ends the spare there is because programs need the memory, and reports
// whether there was one.
func (n *nursery) giveWay() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current == nil {
		return false
	}
	n.sup.discard(n.current)
	n.current, n.ready, n.pressed = nil, false, true
	return true
}

// rest waits for a time or a kick; false: the runner ends.
func (n *nursery) rest(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-n.kick:
	case <-n.done:
		return false
	}
	return true
}

func (n *nursery) drop(bad *preloadError) {
	n.mu.Lock()
	n.dropped[bad.module] = true
	n.mu.Unlock()
	n.note(bad.Error())
}

func (n *nursery) isDropped(module string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dropped[module]
}

// maxProblems bounds what is told of a nursery; the log has the rest.
const maxProblems = 16

func (n *nursery) note(problem string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.problems) < maxProblems && !slices.Contains(n.problems, problem) {
		n.problems = append(n.problems, problem)
	}
}

func (n *nursery) status() channel.Spare {
	n.mu.Lock()
	defer n.mu.Unlock()
	return channel.Spare{Ready: n.ready && !n.fresh, Used: n.used.Load(), Problems: slices.Clone(n.problems)}
}

// root is the process of the spare that waits, and what stands for an exec's ID.
func (n *nursery) root() (pid int, mark string, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current == nil {
		return 0, "", false
	}
	return n.current.pid, n.current.mark, true
}

func (n *nursery) close() {
	n.mu.Lock()
	n.closed = true
	if n.current != nil {
		n.sup.reaper.kill(n.current.pid, true, unix.SIGKILL)
	}
	n.mu.Unlock()
	close(n.done)
	n.ended.Wait()
}
