package broker

import (
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// deadlineSlack is how much longer than a program's timeout the broker waits
	// for the runner to end it before it destroys the sandbox itself: the runner's
	// grace after SIGTERM, and room for a busy node.
	deadlineSlack = 10 * time.Second
	// drainGrace bounds how long after its program's end a run is kept for a client
	// that is slow to read.
	drainGrace = 5 * time.Minute
	// runnerKeeps bounds what a runner can still hold of one output when its
	// program has ended: its buffer, and a pipe's.
	runnerKeeps = channel.Retention + channel.PipeSize + 64<<10
)

// overtime is what the broker grants after a program's deadline. The runner's
// word that the program has ended comes behind the output, and that may wait for
// a slow client; so silence proves nothing while the client's credit is used up.
// What the broker can measure itself: a runner that kept the deadline has no more
// to send than it can have kept, and sends it when it may.
type overtime struct {
	timer   *time.Timer
	granted bool      // the deadline has passed
	dripped int       // looks since then that found output, and a client that waits for it
	until   [3]uint64 // by FD: how far the output may go then
	last    time.Time // when the runner sent output or the client granted credit
	// While the channel is lost, the runner can say nothing, and what it has kept comes
	// after it was opened again. But a runner can break its channel by itself: so that
	// counts for as long as a channel may be lost, and no longer.
	final time.Time
	lost  bool // there is no channel now
}

// maxDrips bounds how often overtime is granted for output that comes although nobody
// but the runner keeps it back: it could come byte by byte.
const maxDrips = int(drainGrace / deadlineSlack)

// watchDeadline has the program's end looked for after d, instead of when it was said
// before. mu is held.
func (r *relay) watchDeadline(d time.Duration) {
	if r.overtime == nil {
		r.overtime = &overtime{last: time.Now(), timer: time.AfterFunc(d, r.pastDeadline)}
	} else {
		r.overtime.timer.Reset(d)
		r.overtime.granted, r.overtime.dripped = false, 0
	}
	r.overtime.final = time.Now().Add(d + reattachWindow)
}

// reaches notes whether there is a channel by which the runner can be heard.
func (r *relay) reaches(runner bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.overtime
	if o == nil {
		return
	}
	o.lost = !runner
	if time.Now().Before(o.final) {
		o.last = time.Now()
	}
}

// moved notes that the exec's output goes on. mu is held.
func (r *relay) moved() {
	if r.overtime != nil {
		r.overtime.last = time.Now()
	}
}

// pastDeadline ends the sandbox unless only the client keeps the ending back.
func (r *relay) pastDeadline() {
	if r.mayGoOn() {
		return
	}
	r.lease.end(Fate{Reason: wire.ReasonTimeout, Message: "the sandbox did not end the program at its deadline"})
}

func (r *relay) mayGoOn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.overtime
	if o == nil {
		return true // the exec has just ended
	}
	if !o.granted {
		o.granted = true
		for fd, n := range r.sent {
			o.until[fd] = n + runnerKeeps
		}
	}
	blocked := o.lost && time.Now().Before(o.final)
	for _, fd := range []wire.FD{wire.Stdout, wire.Stderr} {
		if r.sent[fd] > o.until[fd] {
			return false
		}
		blocked = blocked || r.sent[fd] >= r.creditOf(fd).Limit
	}
	if !blocked {
		o.dripped++
		if o.dripped > maxDrips || time.Since(o.last) >= deadlineSlack {
			return false
		}
	}
	o.timer.Reset(deadlineSlack)
	return true
}
