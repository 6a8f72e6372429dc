package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Stream is a client's stream, as the edge provides it.
type Stream interface {
	// Send passes a frame to the client; the edge sets the stream's number. It
	// blocks for a bounded time, is done with the payload when it returns, and
	// fails when the client is gone.
	Send(wire.Frame) error
	// Frames yields the client's frames after the request.
	Frames() <-chan wire.Frame
	// Canceled is closed when a KindCancel frame has come. It comes by Frames
	// too; this is for who waits and reads no frames yet.
	Canceled() <-chan struct{}
}

// forgetTimeout bounds the wait for a runner to take note that an ending arrived.
const forgetTimeout = 2 * time.Second

// forwardTimeout bounds how long a runner may take for a frame of the client's: it
// reads what it gave credit for whatever its program does.
const forwardTimeout = 15 * time.Second

// startPatience bounds how long a program whose client has gone may still be on its way
// to the sandbox: the client has its handle, and may come back for it.
const startPatience = 5 * time.Second

// startPatience is that bound for a lease: a run has its grace if that is longer, a
// program in a lease as long as a channel may be lost.
func (l *lease) startPatience() time.Duration {
	if l.kind == KindRun {
		return max(startPatience, l.pool.cfg.DetachGrace)
	}
	return reattachWindow
}

// errChannel marks a failure of the channel, as opposed to one of the client or
// of the request.
var errChannel = errors.New("the channel broke")

// relay carries one exec between a client and its runner. It survives the
// channel: what is needed to attach again is kept here, bounded by the windows.
type relay struct {
	lease  *lease
	id     string
	client Stream
	// onFirst is called once, before the first byte of output goes to the client.
	onFirst func()

	mu        sync.Mutex // guards the rest; forward holds it over a send, which keeps frames in order
	start     channel.Start
	code      []byte              // until the exec has started
	paid      func()              // lets go of what the code takes of the budget
	began     time.Time           // when it did
	stream    *channel.ExecStream // nil while there is none
	abort     context.CancelFunc  // frees what the stream's opening took
	sent      [3]uint64           // by FD: offset after the last byte passed to the client
	granted   [3]bool             // by FD: the client has sent a window
	stdin     []byte              // input the runner has not acknowledged
	stdinAt   uint64              // offset of its first byte
	file      bool                // moves a file; without its client it is of no use
	joined    bool                // the exec was another relay's, and its input's offset is not known yet
	ours      bool                // the exec started with this relay
	made      time.Time           // when the relay was
	agreed    bool                // limit and deadline are settled; see terms.go
	heard     bool                // the runner's answer has come over this stream
	limit     uint64              // what the program may write to both outputs together; 0: not known, or no limit
	credit    uint64              // how far the client may send input
	credited  bool                // the client was told so
	stdinTo   *uint64             // the input's length, once known
	signals   []wire.Frame        // the newest the client has sent
	canceled  bool                // the client has sent a cancel
	fresh     bool                // this broker made the exec's ID: whatever its runner says, it started here
	overtime  *overtime           // what the runner may still do after the deadline; see backstop.go
	gapTo     [3]uint64           // by FD: where the last gap in what was passed on ends (1, 2)
	running   chan struct{}       // closed when the runner has answered
	confirmed chan struct{}       // closed when the client has the ending
	hasDone   bool                // confirmed is closed
}

func newRelay(l *lease, x program, client Stream, onFirst func()) *relay {
	st := x.start
	r := &relay{lease: l, id: x.id, fresh: x.fresh, client: client, onFirst: sync.OnceFunc(onFirst), start: st, code: x.code, paid: x.paid, joined: st.AttachOnly, made: time.Now(), file: st.Program != nil && st.Program.File != nil, running: make(chan struct{}), confirmed: make(chan struct{})}
	r.start.Reader = randomID()
	if st.Program != nil {
		r.limit = uint64(st.Program.OutputLimit)
	}
	r.sent[wire.Stdout], r.sent[wire.Stderr] = st.Stdout.Acked, st.Stderr.Acked
	return r
}

// run carries the exec to its ending, delivers that, and waits for the client to
// confirm it, at most Linger. An error without an ending is one of starting, one
// of the client's frames, or the cause of ctx's end: then the exec, if it
// started, goes on without this client. Confirmed says that nobody needs the
// exec any more.
func (r *relay) run(ctx context.Context) (n *wire.Ending, confirmed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.close()
	go func() {
		if err := r.fromClient(ctx); err != nil {
			cancel(err)
		}
	}()
	starting, stop := r.outlasting(ctx)
	n, err = r.loop(starting)
	stop()
	if err != nil {
		return nil, false, err
	}
	if err := r.client.Send(wire.JSONFrame(wire.KindExit, 0, n)); err != nil {
		return n, false, err
	}
	linger := time.NewTimer(r.lease.pool.cfg.Linger)
	defer linger.Stop()
	select {
	case <-r.confirmed:
		return n, true, nil
	case <-linger.C:
		return n, false, nil
	case <-ctx.Done():
		return n, false, context.Cause(ctx)
	}
}

// outlasting is ctx, but a client that goes away ends it only when the program is
// there: it has the handle, and going away is no cancel. A file that nobody can take
// up is not moved for nobody.
func (r *relay) outlasting(ctx context.Context) (context.Context, func()) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	starts := !r.file && !r.start.AttachOnly
	stop := context.AfterFunc(ctx, func() {
		if starts && isClientGone(context.Cause(ctx)) {
			r.lease.hurry()
			r.awaitRunning(longer)
		}
		end(context.Cause(ctx))
	})
	return longer, func() {
		stop()
		end(nil)
	}
}

// awaitRunning waits, for a client that has gone, until the program has started. If the
// client comes back meanwhile it is waited for as long as that stays.
func (r *relay) awaitRunning(relayed context.Context) {
	late := time.NewTimer(r.lease.startPatience())
	defer late.Stop()
	for {
		select {
		case <-r.running:
			return
		case <-relayed.Done():
			return // it cannot start any more
		case <-r.lease.dead:
			return
		case <-r.lease.pool.life.Done():
			return
		case <-late.C:
			if !r.lease.shared() {
				return
			}
			late.Reset(startPatience)
		}
	}
}

// close lets go of the runner's stream. If the client has the ending and the
// sandbox lives on, the runner is told first, so that it forgets the exec.
func (r *relay) close() {
	r.mu.Lock()
	if r.overtime != nil {
		r.overtime.timer.Stop()
		r.overtime = nil
	}
	if r.abort != nil {
		defer r.abort()
	}
	s, forget := r.stream, r.hasDone && r.lease.kind == KindLease
	r.stream = nil
	r.mu.Unlock()
	if s == nil {
		return
	}
	defer s.Close()
	late := time.AfterFunc(forgetTimeout, s.Close)
	defer late.Stop()
	if !forget || s.Send(wire.Frame{Kind: wire.KindDone}) != nil {
		return
	}
	// Closing at once could overtake the frame. The runner ends the stream when
	// it has read it; nobody else reads here any more.
	for {
		if _, err := s.Recv(); err != nil {
			return
		}
	}
}

// loop attaches until there is an ending.
func (r *relay) loop(ctx context.Context) (*wire.Ending, error) {
	for {
		ch, err := r.lease.channel(ctx)
		if errors.Is(err, errLeaseDead) {
			if r.lease.isAway() {
				return nil, &wire.Error{Code: wire.CodeUnavailable, Reason: wire.ReasonMoved, Message: "another replica has taken the exec over; attach again"}
			}
			return r.lost(), nil
		}
		if err != nil {
			return nil, err
		}
		n, err := r.over(ctx, ch)
		switch {
		case err == nil:
			return n, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		if e := wire.AsError(err); e != nil {
			return r.refused(e)
		}
		if !errors.Is(err, errChannel) {
			return nil, err
		}
		// A sandbox that died is reported by the provider; until then its channel
		// is dialled again.
		r.reaches(false)
		ch.Close()
	}
}

// over carries the exec over one channel, as far as that goes.
func (r *relay) over(ctx context.Context, ch *channel.Client) (*wire.Ending, error) {
	s, err := r.attach(ctx, ch)
	if err != nil {
		if wire.AsError(err) != nil {
			return nil, err
		}
		return nil, errors.Join(errChannel, err)
	}
	stop := context.AfterFunc(ctx, func() { r.leave(s, context.Cause(ctx)) })
	defer stop()
	r.reaches(true)
	for {
		f, err := s.Recv()
		switch {
		case errors.Is(err, channel.ErrMalformed):
			return nil, r.hostile("sent what is no frame")
		case err != nil:
			return nil, errors.Join(errChannel, err)
		}
		n, err := r.fromRunner(f)
		if n != nil || err != nil {
			return n, err
		}
	}
}

// leave ends a stream whose client has gone. The exec goes on, unless it moves a
// file: nobody can take that up, so the runner is told first, and the stream is
// closed when it has had the time to say that it has ended it.
func (r *relay) leave(s *channel.ExecStream, why error) {
	if r.file && isClientGone(why) {
		time.AfterFunc(forgetTimeout, s.Close)
		if s.Send(wire.Frame{Kind: wire.KindCancel}) == nil {
			return
		}
	}
	s.Close()
}

// attach opens the exec's stream from where the last one broke. Input, credit and orders
// that the broken one may not have delivered go again; the runner skips the
// bytes it has.
func (r *relay) attach(ctx context.Context, ch *channel.Client) (*channel.ExecStream, error) {
	r.mu.Lock()
	r.heard = false
	if r.overtime == nil {
		r.watchDeadline(r.unanswered())
	}
	st, code := r.start, r.code
	st.Stdout.Acked, st.Stderr.Acked = r.sent[wire.Stdout], r.sent[wire.Stderr]
	if old := r.stream; old != nil {
		r.stream = nil
		old.Close()
		r.abort()
	}
	r.mu.Unlock()
	// ctx ends the opening; what its end means for an open stream, leave decides.
	opening, abort := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, abort)
	s, err := ch.Exec(opening, r.id, st, code)
	if !stop() && err == nil {
		s.Close()
		err = ctx.Err()
	}
	if err != nil {
		abort()
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream, r.abort = s, abort
	for at := 0; at < len(r.stdin); at += wire.MaxData {
		b := r.stdin[at:min(at+wire.MaxData, len(r.stdin))]
		r.forward(wire.Frame{Kind: wire.KindStdin, Offset: r.stdinAt + uint64(at), Payload: b})
	}
	if r.stdinTo != nil {
		r.forward(wire.Frame{Kind: wire.KindStdinEnd, Offset: *r.stdinTo})
	}
	r.repeatCredit()
	r.repeatOrders()
	return s, nil
}

// refused reads the runner's refusal of a start or an attach.
func (r *relay) refused(e *wire.Error) (*wire.Ending, error) {
	if channel.IsBoundElsewhere(e) {
		if r.lease.boundElsewhere() {
			return r.lost(), nil
		}
		return nil, wire.Errorf(wire.CodeUnavailable, "%s", r.lease.fate.Message)
	}
	if gone := e.Code == wire.CodeNotFound; gone || !r.hasStarted() && !r.attaches() {
		r.lease.doesNotGoOn(r.id)
	}
	if r.hasStarted() && e.Code == wire.CodeNotFound && e.Reason != wire.ReasonConfirmed {
		// The runner that was bound does not forget: somebody tampered with it.
		_ = r.hostile("no longer knows the exec")
		return r.lost(), nil
	}
	return nil, checkRefusal(e)
}

// lost makes the ending of an exec whose lease is dead.
func (r *relay) lost() *wire.Ending {
	f := r.lease.fate
	r.mu.Lock()
	defer r.mu.Unlock()
	return &wire.Ending{
		Reason: f.Reason, Cause: f.Cause, Message: f.Message,
		StdoutBytes: r.sent[wire.Stdout], StderrBytes: r.sent[wire.Stderr],
	}
}

// hostile ends a lease whose runner breaks the protocol: it is not ours any more.
func (r *relay) hostile(what string) error {
	r.lease.end(hostileFate(what))
	return errChannel
}

// attaches reports whether the program is one that should be there.
func (r *relay) attaches() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.start.AttachOnly
}

// hasStarted reports whether the runner has started the program, or knew it.
func (r *relay) hasStarted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.began.IsZero()
}

// stdinBytes is how much input the client has sent.
func (r *relay) stdinBytes() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stdinAt + uint64(len(r.stdin))
}

// forward passes a client's frame to the runner. A failure is the channel's: the
// stream's reader finds it. mu is held; a runner that does not take what it gave
// credit for must not keep it.
func (r *relay) forward(f wire.Frame) {
	if r.stream != nil {
		_ = r.passOn(f)
	}
}

// passOn sends a frame on the present stream, which ends when the runner does not take
// it. mu is held.
func (r *relay) passOn(f wire.Frame) error {
	late := time.AfterFunc(forwardTimeout, r.stream.Close)
	defer late.Stop()
	return r.stream.Send(f)
}

// longest is how long the program can have run; 0: the start was not seen. mu is held.
func (r *relay) longest() time.Duration {
	if !r.ours {
		return 0
	}
	return time.Since(r.made)
}
