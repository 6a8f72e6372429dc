package sandboxclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// cancelWait bounds how long a caller whose context has ended waits for the
	// program's ending, and for a writer that blocks.
	cancelWait = 5 * time.Second
	// abandonWait bounds how long an ending that no caller waits for is awaited in
	// the background.
	abandonWait = 30 * time.Second
)

// execution is one program from its request to its end, for Run, Cmd and Attach. It
// outlives the connections that carry it; see legs.go.
type execution struct {
	client     *Client
	out        *output
	in         *input    // nil: nothing is sent
	stdin      io.Reader // nil: the program reads end of file
	span       trace.Span
	started    time.Time
	confirming bool               // only to tell that the ending came
	attaching  bool               // it was started by another call
	bound      bool               // it cannot outlive its connection: it moves a file
	until      time.Time          // the caller's deadline; zero: there is none
	life       context.Context    //nolint:containedctx // the execution's own, which outlasts the caller's a little
	quit       context.CancelFunc // ends life: nobody waits any more

	aborts    chan error    // what ends the program: the first failure of a writer, or of whole input; capacity of one for each
	pumped    chan struct{} // one token for each pump that has ended
	responded chan struct{} // closed with the first response, or with the end if there is none
	ended     chan struct{} // closed when nothing more will come
	done      chan struct{} // closed when early and err are set
	early     error         // what went wrong on this side
	err       error

	mu       sync.Mutex // guards what follows; taken inside a stream's mu, never around it
	leg      *stream    // what carries it now, or carried it last
	handle   string     // what it is attached to by; empty before it is known
	over     bool       // nothing counts any more that comes
	canceled bool
	signals  []wire.Frame // the newest ones sent
	doubted  time.Time    // since when, without another answer, it is said not to exist
	result   streamResult
}

// stdio is what a program's streams are connected to; nil means nothing.
type stdio struct {
	stdin              io.Reader
	stdout, stderr     io.Writer
	stdoutAt, stderrAt uint64 // what the caller has of them
	whole              bool   // a stdin that fails has no end: the program is ended instead
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// newExecution makes what serves a program; carry starts it.
func (c *Client) newExecution(ctx context.Context, span trace.Span, stdio stdio) *execution {
	out := newOutput(orDiscard(stdio.stdout), orDiscard(stdio.stderr), stdio.stdoutAt, stdio.stderrAt)
	pumps := len(out.queues)
	e := &execution{
		client: c, out: out, stdin: stdio.stdin, span: span, started: time.Now(),
		aborts: make(chan error, pumps+1),
		pumped: make(chan struct{}, pumps),

		responded: make(chan struct{}),
		ended:     make(chan struct{}),
		done:      make(chan struct{}),
	}
	e.life, e.quit = context.WithCancel(context.WithoutCancel(ctx))
	e.until, _ = ctx.Deadline()
	if e.stdin != nil {
		e.in = newInput()
	}
	return e
}

// startExec sends the request for a program and starts the goroutines that serve
// it. They end with the program, or soon after ctx.
func (c *Client) startExec(ctx context.Context, span trace.Span, req wire.Request, code []byte, stdio stdio) (*execution, error) {
	e := c.newExecution(ctx, span, stdio)
	e.bound = req.Program.File != nil
	req.Program.Stdin = e.stdin != nil
	req.Stdout, req.Stderr = e.out.credit(wire.Stdout), e.out.credit(wire.Stderr)
	injectTrace(ctx, &req)
	leg := e.newLeg()
	if err := c.open(ctx, leg, req, code); err != nil {
		e.quit()
		return nil, err
	}
	e.serve(ctx, leg, stdio)
	return e, nil
}

// serve starts the goroutines; leg is the first that carries the program, nil if it
// has to be attached to.
func (e *execution) serve(ctx context.Context, leg *stream, stdio stdio) {
	if leg != nil {
		e.begin(leg)
	}
	for _, q := range e.out.queues {
		go func() {
			e.out.pump(q, func(w wire.Window) { e.send(w.Frame(0)) }, func(err error) { e.aborts <- err })
			e.pumped <- struct{}{}
		}()
	}
	if e.in != nil {
		var abort func(error)
		if stdio.whole {
			abort = func(err error) { e.aborts <- err }
		}
		go e.in.read(e.stdin, abort)
		go e.in.send()
	}
	go e.carry(leg)
	go e.supervise(ctx)
}

// awaitStart returns when the broker has accepted the program. The error is that
// of a program that never started.
func (e *execution) awaitStart() error {
	<-e.responded
	if e.outcome().response != nil {
		return nil
	}
	<-e.done
	return e.err
}

// outcome is what has come so far; after ended it does not change.
func (e *execution) outcome() streamResult {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.result
}

// supervise sees the program to its end and says what came of it.
func (e *execution) supervise(ctx context.Context) {
	defer close(e.done)
	patience := patience{bound: e.client.cancelWait}
	e.early = e.awaitEnd(ctx, &patience)
	select {
	case <-e.ended:
		if err := e.awaitPumps(ctx, &patience); e.early == nil {
			e.early = err
		}
		if e.in != nil {
			if err := e.in.settle(); e.early == nil {
				e.early = err
			}
		}
	default:
		e.abandon()
	}
	r := e.outcome()
	e.err = e.verdict(r)
	endExecSpan(e.span, r, e.early, e.err)
}

// patience is the bound on all waiting after the context has ended or a writer
// has failed. Until it is started it never runs out.
type patience struct {
	bound time.Duration
	over  <-chan time.Time
}

func (p *patience) start() {
	if p.over == nil {
		p.over = time.After(p.bound)
	}
}

// awaitEnd waits for the end. When the context ends or a writer fails first it
// has the program ended, and waits no longer than patience. It returns what went
// wrong on this side.
func (e *execution) awaitEnd(ctx context.Context, patience *patience) error {
	var early error
	select {
	case <-e.ended:
		return nil
	case early = <-e.aborts:
	case <-ctx.Done():
		select {
		case <-e.ended: // both at once: the ending counts
			return nil
		default:
		}
		early = fmt.Errorf("sandboxclient: %w", ctx.Err())
	}
	patience.start()
	e.cancel()
	select {
	case <-e.ended:
	case <-patience.over:
	}
	return early
}

// awaitPumps waits until the output has been written. Like os/exec it waits for a
// writer that blocks, but once the context has ended no longer than patience.
func (e *execution) awaitPumps(ctx context.Context, patience *patience) error {
	canceled := ctx.Done()
	for range e.out.queues {
		for pumped := false; !pumped; {
			select {
			case <-e.pumped:
				pumped = true
			case <-canceled:
				canceled = nil // once is enough
				patience.start()
			case <-patience.over:
				e.out.mute()
				return fmt.Errorf("sandboxclient: output is left unwritten: %w", ctx.Err())
			}
		}
	}
	select {
	case err := <-e.aborts:
		return err
	default:
		return nil
	}
}

// abandon gives up an execution whose ending did not come in time: nothing more
// is written. For a while it is still told to end, also over another connection.
// The present one gets no new streams, because its broker may be stuck.
func (e *execution) abandon() {
	e.out.mute()
	e.mu.Lock()
	leg := e.leg
	e.mu.Unlock()
	if leg != nil {
		leg.conn.retire()
	}
	e.client.goBackground(func() {
		timer := time.NewTimer(abandonWait)
		defer timer.Stop()
		select {
		case <-e.ended:
		case <-e.client.closing:
			// The connection ends, and the leg with it.
		case <-timer.C:
		}
		e.quit()
	})
}

// verdict makes the execution's error of what the broker said and of what went
// wrong here.
func (e *execution) verdict(r streamResult) error {
	var err error
	switch {
	case r.refused != nil:
		err = r.refused
	case r.ending != nil:
		if r.ending.Reason != ReasonExited || r.ending.ExitCode != 0 {
			err = &ExitError{Ending: *r.ending}
		}
	case r.lost != nil && r.response != nil:
		err = &DisconnectedError{Exec: r.response.Exec, Lease: r.response.Lease, Err: r.lost}
	case r.lost != nil && e.attaching:
		err = fmt.Errorf("sandboxclient: attaching to the program: %w", r.lost)
	case r.lost != nil:
		err = fmt.Errorf("%w: %w", ErrStartUnknown, r.lost)
	default:
		err = errors.New("the broker did not confirm the end in time")
	}
	switch {
	case e.early == nil:
		return err
	case err == nil:
		return e.early
	default:
		return fmt.Errorf("%w (%w)", e.early, err)
	}
}
