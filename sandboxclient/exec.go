package sandboxclient

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// execution is one program from its request to its end, for Run and for Cmd.
type execution struct {
	client  *Client
	stream  *stream
	out     *output
	stdin   io.Reader // nil: the program reads end of file
	span    trace.Span
	started time.Time

	aborts chan error    // what ends the program: the first failure of a writer, or of whole input; capacity of one for each
	pumped chan struct{} // one token for each pump that has ended
	done   chan struct{} // closed when early and err are set
	early  error         // what went wrong on this side
	err    error
}

// startExec sends the request for a program and starts the goroutines that serve
// it. They end with the program, or soon after ctx.
func (c *Client) startExec(ctx context.Context, span trace.Span, req wire.Request, code []byte, stdio stdio) (*execution, error) {
	out := newOutput(orDiscard(stdio.stdout), orDiscard(stdio.stderr))
	pumps := len(out.queues)
	e := &execution{
		client: c, out: out, stdin: stdio.stdin, span: span, started: time.Now(),
		stream: newExecStream(out),
		aborts: make(chan error, pumps+1),
		pumped: make(chan struct{}, pumps),
		done:   make(chan struct{}),
	}
	req.Program.Stdin = e.stdin != nil
	req.Stdout, req.Stderr = out.credit(), out.credit()
	injectTrace(ctx, &req)
	if err := c.open(ctx, e.stream, req, code); err != nil {
		return nil, err
	}
	for _, q := range out.queues {
		go func() {
			out.pump(q, e.grant, func(err error) { e.aborts <- err })
			e.pumped <- struct{}{}
		}()
	}
	if e.stdin != nil {
		var abort func(error)
		if stdio.whole {
			abort = func(err error) { e.aborts <- err }
		}
		go e.stream.in.copy(e.stdin, e.stream.send, abort)
	}
	go e.supervise(ctx)
	return e, nil
}

// stdio is what a program's streams are connected to; nil means nothing.
type stdio struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	whole          bool // a stdin that fails has no end: the program is ended instead
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

func (e *execution) grant(w wire.Window) { e.stream.send(w.Frame(0)) }

// awaitStart returns when the broker has accepted the program. The error is that
// of a program that never started.
func (e *execution) awaitStart() error {
	<-e.stream.responded
	if e.stream.outcome().response != nil {
		return nil
	}
	<-e.done
	return e.err
}

// supervise sees the program to its end and says what came of it.
func (e *execution) supervise(ctx context.Context) {
	defer close(e.done)
	patience := patience{bound: e.client.cancelWait}
	e.early = e.awaitEnd(ctx, &patience)
	select {
	case <-e.stream.ended:
		e.stream.finish()
		if err := e.awaitPumps(ctx, &patience); e.early == nil {
			e.early = err
		}
		if e.stdin != nil {
			if err := e.stream.in.settle(); e.early == nil {
				e.early = err
			}
		}
	default:
		e.abandon()
	}
	r := e.stream.outcome()
	e.err = verdict(e.early, r)
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
	case <-e.stream.ended:
		return nil
	case early = <-e.aborts:
	case <-ctx.Done():
		select {
		case <-e.stream.ended: // both at once: the ending counts
			return nil
		default:
		}
		early = fmt.Errorf("sandboxclient: %w", ctx.Err())
	}
	patience.start()
	e.stream.cancel()
	select {
	case <-e.stream.ended:
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
// is written, and its room is given back when the ending comes after all. The
// connection gets no new streams, because its broker may be stuck.
func (e *execution) abandon() {
	e.out.mute()
	e.stream.conn.retire()
	e.client.goBackground(func() {
		timer := time.NewTimer(abandonWait)
		defer timer.Stop()
		select {
		case <-e.stream.ended:
		case <-e.client.closing:
			return // the connection ends, and the stream with it
		case <-timer.C:
			e.out.end()
			e.stream.in.end()
		}
		e.stream.finish()
	})
}

// verdict makes the execution's error of what the broker said and of what went
// wrong here.
func verdict(early error, r streamResult) error {
	var err error
	switch {
	case r.refused != nil:
		err = r.refused
	case r.ending != nil:
		if r.ending.Reason != ReasonExited || r.ending.ExitCode != 0 {
			err = &ExitError{Ending: *r.ending}
		}
	case r.lost != nil && r.response == nil:
		err = fmt.Errorf("%w: %w", ErrStartUnknown, r.lost)
	case r.lost != nil:
		err = &DisconnectedError{Exec: r.response.Exec, Lease: r.response.Lease, Err: r.lost}
	default:
		err = errors.New("the broker did not confirm the end in time")
	}
	switch {
	case early == nil:
		return err
	case err == nil:
		return early
	default:
		return fmt.Errorf("%w (%w)", early, err)
	}
}
