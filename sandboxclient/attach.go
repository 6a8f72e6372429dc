package sandboxclient

import (
	"context"
	"errors"
	"io"
)

// AttachOptions say where the streams of a program go that is attached to. The zero
// value discards all output.
type AttachOptions struct {
	// Stdout and Stderr receive the output, as those of a [Cmd] do.
	Stdout, Stderr io.Writer

	// StdoutOffset and StderrOffset are how many bytes of each the caller has
	// already; the output goes on from there. What lies before an offset that was
	// acknowledged once cannot be had again, and what was not written yet cannot be
	// skipped: both are an [*Error] that matches [ErrInvalid] and names the field. Of
	// a program with RetainNewest the output goes on where there is some.
	StdoutOffset, StderrOffset uint64

	// Stdin, if not nil, is the program's whole input from its first byte: what the
	// program has already is skipped. The program must have been started with one.
	Stdin io.Reader
}

// Attach takes up the output of a program by its handle, which [Cmd.Handle] or
// [Code].Started gave, perhaps to another process of the same tenant. A program has
// one reader: the one before gets a [*DisconnectedError] that matches [ErrConflict].
//
// It returns when the broker has answered; that the exec is over and confirmed, or an
// offset is wrong, Wait tells. When ctx ends the program is killed, as by
// [Cmd.Start]. To leave it running, close the client.
func (c *Client) Attach(ctx context.Context, handle string, opts AttachOptions) (*Cmd, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	if handle == "" {
		return nil, errors.New("sandboxclient: there is no handle to attach to")
	}
	ctx, span := c.startSpan(ctx, "Attach", "", nil, nil)
	streams := stdio{
		stdin: opts.Stdin, stdout: opts.Stdout, stderr: opts.Stderr,
		stdoutAt: opts.StdoutOffset, stderrAt: opts.StderrOffset,
	}
	e := c.newExecution(ctx, span, streams)
	e.attaching, e.handle = true, handle
	e.serve(ctx, nil, streams)
	if err := e.awaitStart(); err != nil {
		return nil, err
	}
	return &Cmd{Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, used: true, exec: e}, nil
}
