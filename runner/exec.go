package runner

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// termGrace is the time between SIGTERM and SIGKILL when a program is ended.
const termGrace = time.Second

// execution is one program and all it started. It ends once, see wait.
type execution struct {
	id       string
	sup      *supervisor
	pid      int
	spare    *spare // what the first process was before; nil: nothing
	started  time.Time
	kills    int64  // how often the kernel had killed for memory before it
	scratch  string // see command
	in       *input // nil: the program reads end of file
	out, err *output
	budget   *budget // of both outputs
	deadline time.Time

	struck atomic.Bool   // a client has sent SIGKILL
	exited atomic.Bool   // the first process has ended
	gone   chan struct{} // closed when the exec is forgotten

	mu     sync.Mutex // guards the rest
	stop   wire.Reason
	why    string      // what the ending says of it
	timer  *time.Timer // the deadline, then the grace after SIGTERM
	ending *wire.Ending
	reader *attachment // the one stream that gets the output
	past   []string    // the names of the newest superseded readers
	heard  []uint64    // the numbers of the newest signals; see signalOnce
}

// start runs a command. Its ID is free: the supervisor holds it.
func (s *supervisor) start(id string, c command, prog *wire.Program, timeout time.Duration) (*execution, error) {
	kills := kernelKills()
	p, err := s.launch(&c, prog.Stdin)
	if err != nil {
		return nil, err
	}
	b := &budget{limit: uint64(prog.OutputLimit)}
	e := &execution{
		id: id, sup: s, pid: p.pid, spare: p.spare, started: p.started, kills: kills, scratch: c.scratch, budget: b,
		out: newOutput(prog.Retention, b, s.retained), err: newOutput(prog.Retention, b, s.retained), gone: make(chan struct{}),
	}
	b.over = func() { e.kill(wire.ReasonOutputLimit, "") }
	// Before anything that may end the program: the first read of its output can.
	e.mu.Lock()
	e.deadline = time.Now().Add(timeout)
	e.timer = time.AfterFunc(timeout, func() { e.end(wire.ReasonTimeout) })
	e.mu.Unlock()
	if prog.Stdin {
		e.in = newInput(e.wake)
		go e.in.feed(p.ours[0], e.gone)
	}
	var outputs sync.WaitGroup
	outputs.Go(func() { e.out.fill(p.ours[1], &e.exited, e.gone, e.wake) })
	outputs.Go(func() { e.err.fill(p.ours[2], &e.exited, e.gone, e.wake) })
	read := make(chan struct{})
	go func() {
		outputs.Wait()
		s.reaper.look() // it has mostly ended then, and its signal is on its way
		close(read)
	}()
	go func() {
		st := <-p.ended
		e.afterExit(st, p, read)
	}()
	return e, nil
}

// terms are what a broker is told of the exec when it opens a stream.
func (e *execution) terms(started bool) channel.Started {
	s := channel.Started{New: started, OutputLimit: int64(e.budget.limit)}
	if e.ended() == nil {
		s.Left = max(1, time.Until(e.deadline))
	}
	return s
}

// end asks the program to end, for the first reason given: SIGTERM to its
// group, SIGKILL after a grace. What it started otherwise dies after it.
func (e *execution) end(reason wire.Reason) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != "" || e.exited.Load() {
		return
	}
	e.stop = reason
	e.timer.Stop()
	e.sup.reaper.kill(e.pid, true, unix.SIGTERM)
	// A stopped process sees SIGTERM only when it goes on.
	e.sup.reaper.kill(e.pid, true, unix.SIGCONT)
	e.timer = time.AfterFunc(termGrace, func() { e.sup.reaper.kill(e.pid, true, unix.SIGKILL) })
}

// kill ends the program at once, for the first reason given.
func (e *execution) kill(reason wire.Reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != "" || e.exited.Load() {
		return
	}
	e.stop, e.why = reason, message
	e.timer.Stop()
	e.sup.reaper.kill(e.pid, true, unix.SIGKILL)
}

// signal passes a signal to the program's group.
func (e *execution) signal(sig unix.Signal) {
	if sig == unix.SIGKILL {
		e.struck.Store(true)
	}
	e.sup.reaper.kill(e.pid, true, sig)
}

// maxHeard bounds the signals of which an exec remembers the number. Several clients
// that come back, each with all it may send again, have room.
const maxHeard = 64

// signalOnce passes a signal on unless one with its number came before: a client that
// comes back cannot know what has arrived. 0 is no number.
func (e *execution) signalOnce(number uint64, sig unix.Signal) {
	if number != 0 {
		e.mu.Lock()
		known := slices.Contains(e.heard, number)
		if !known {
			e.heard = append(e.heard[max(0, len(e.heard)-maxHeard+1):], number)
		}
		e.mu.Unlock()
		if known {
			return
		}
	}
	e.signal(sig)
}

// leftoverPause is how long the outputs of a program that has ended may take to their
// end before something it left behind is taken to hold them.
const leftoverPause = 5 * time.Millisecond

// tidyPause is how long what can wait waits for the ending to arrive: whatever the sandbox
// does meanwhile holds up those that carry it.
const tidyPause = 10 * time.Millisecond

// afterExit ends the exec once its first process has ended: the output is read to its
// end, which closes read, the ending made, and what the program left behind killed. That
// comes last if nothing of it holds an output, so that nobody waits for it but the next
// program.
func (e *execution) afterExit(st exitStatus, p launched, read <-chan struct{}) {
	e.exited.Store(true)
	wall := time.Since(e.started)
	e.mu.Lock()
	e.timer.Stop()
	e.mu.Unlock()
	e.sup.tidying.RLock()
	late := time.NewTimer(leftoverPause)
	defer late.Stop()
	select {
	case <-read:
		e.finish(st, wall)
		late.Reset(tidyPause)
		select {
		case <-e.gone:
		case <-late.C:
		}
		e.sup.killTree(e)
		e.sup.tidying.RUnlock()
	case <-late.C:
		e.sup.killTree(e)
		e.sup.tidying.RUnlock()
		// The fillers see exited before their next read; this is for the one they
		// may be waiting in.
		for _, f := range p.ours[1:] {
			_ = f.SetReadDeadline(time.Now().Add(strayTimeout))
		}
		<-read // which a reader that does not take the output can put off
		e.finish(st, wall)
	}
	closeAll(nil, p.ours[1:]) // input closes its own
	if p.spare != nil {
		closeAll(nil, p.spare.over)
	}
}

// finish makes the ending. The output has been read to its end.
func (e *execution) finish(st exitStatus, wall time.Duration) {
	if e.scratch != "" {
		_ = os.Remove(e.scratch) // the program may have removed it
	}
	e.mu.Lock()
	e.ending = e.makeEnding(st, wall)
	e.mu.Unlock()
	e.wake()
}

// makeEnding reads the wait status. mu is held.
func (e *execution) makeEnding(st exitStatus, wall time.Duration) *wire.Ending {
	_, outN := e.out.bounds()
	_, errN := e.err.bounds()
	n := &wire.Ending{
		StdoutBytes: outN, StderrBytes: errN, Complete: true,
		Usage: &wire.Usage{
			WallMS:      wall.Milliseconds(),
			UserMS:      time.Duration(st.usage.Utime.Nano()).Milliseconds(),
			SystemMS:    time.Duration(st.usage.Stime.Nano()).Milliseconds(),
			MaxRSSBytes: st.usage.Maxrss << 10, // getrusage(2) counts KiB
		},
	}
	if e.spare != nil {
		*n.Usage = e.spare.usageSince(*n.Usage)
	}
	switch {
	case e.budget.exceeded(): // whatever else ended it: output was dropped
		n.Reason, n.Message = wire.ReasonOutputLimit, fmt.Sprintf("the program wrote more than the limit of %d bytes", e.budget.limit)
		if st.status.Exited() {
			n.ExitCode = st.status.ExitStatus()
		}
	case e.stop != "":
		n.Reason, n.Message = e.stop, e.why
		if st.status.Exited() {
			n.ExitCode = st.status.ExitStatus()
		}
		if e.stop == wire.ReasonSignaled {
			n.Signal = unix.SignalName(unix.SIGKILL)
		}
	case st.status.Signaled() && st.status.Signal() == unix.SIGKILL && !e.struck.Load() && kernelKills() > e.kills:
		n.Reason, n.Message = wire.ReasonOOM, "the kernel killed it: the sandbox reached its memory limit"
	case st.status.Signaled():
		n.Reason, n.Signal = wire.ReasonSignaled, unix.SignalName(st.status.Signal())
	default:
		n.Reason, n.ExitCode = wire.ReasonExited, st.status.ExitStatus()
	}
	return n
}

// wake tells the reader that there may be something for it.
func (e *execution) wake() {
	e.mu.Lock()
	a := e.reader
	e.mu.Unlock()
	if a != nil {
		a.wake()
	}
}

// maxPast bounds the superseded readers of which an exec remembers the name.
const maxPast = 64

// attach makes a the reader, if there is what it wants to begin with; the one before it is
// told that it was superseded. The later one wins: neither a reader that was superseded
// already, and comes back over another channel, nor the one that started the exec, if it
// was overtaken on its way here, takes the place of another.
func (e *execution) attach(a *attachment, started bool) error {
	e.mu.Lock()
	// Together with the swap: what the reader before acknowledges later is not heard.
	for _, fd := range []wire.FD{wire.Stdout, wire.Stderr} {
		if acked, end := e.output(fd).bounds(); a.sent[fd] < acked || a.sent[fd] > end {
			e.mu.Unlock()
			return wire.Invalid(fd.String()+".acked", int64(end), "%s at offset %d is not available: %d to %d are", fd, a.sent[fd], acked, end)
		}
	}
	old := e.reader
	if old != nil && (started || a.name != "" && slices.Contains(e.past, a.name)) {
		old = a
	} else {
		e.reader = a
	}
	if old != nil && old.name != "" && old.name != e.reader.name {
		e.past = append(e.past[max(0, len(e.past)-maxPast+1):], old.name)
	}
	if e.reader == a {
		e.setRead(true)
	}
	e.mu.Unlock()
	if old != nil {
		old.supersede()
	}
	a.wake()
	return nil
}

// detach notes that a's stream has ended. a stays the one that others have come after.
func (e *execution) detach(a *attachment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reader == a {
		e.setRead(false)
	}
}

// setRead notes for both outputs whether there is a reader. mu is held.
func (e *execution) setRead(read bool) {
	e.out.setRead(read)
	e.err.setRead(read)
}

// acknowledge drops output that a has, if a is still the reader: what it was owed, it may
// give up, but not what another one is owed now.
func (e *execution) acknowledge(a *attachment, fd wire.FD, offset uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reader != a {
		return nil
	}
	return e.output(fd).ack(offset)
}

// isReader reports whether the output goes to a.
func (e *execution) isReader(a *attachment) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reader == a
}

// ended returns the terminal event, or nil while there is none.
func (e *execution) ended() *wire.Ending {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ending
}
