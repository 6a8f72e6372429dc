package sandboxclient

import (
	"context"
	"errors"
	"io"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Cmd is a program to run in a [Lease], as exec.Cmd is one for this machine. It is
// used once. Its fields are set before it starts.
type Cmd struct {
	// Stdin is what the program reads; nil is end of file. It is read only as far
	// as the program reads. After the program has ended it is not read again, but a
	// Read that blocks then cannot be taken back: its goroutine ends when the Read
	// returns, and what it brings is lost. Close the reader to set it free.
	Stdin io.Reader

	// Stdout and Stderr receive the output as it appears; nil discards it. Equal
	// writers are never written concurrently. An error of a writer ends the
	// program. A writer that blocks makes the program wait, once the window
	// (1.5 MiB) is full.
	Stdout, Stderr io.Writer

	Env map[string]string // added to the sandbox's environment
	Dir string            // working directory; relative to the workspace, empty is the workspace

	// Timeout bounds the program, in steps of a millisecond. 0 takes the pool's
	// default.
	Timeout time.Duration

	// Retention says what becomes of output that nobody takes: RetainAll, which it is
	// when empty, makes the program wait; RetainNewest discards the oldest.
	Retention Retention

	// OutputLimit bounds what the program may write to both outputs together, in bytes;
	// one that writes more is ended with [ReasonOutputLimit]. 0 takes the pool's limit.
	OutputLimit int64

	// ID is the caller's name for the program, 1 to 64 characters of 0-9, A-Z, a-z,
	// _ and -, unique in its lease. Empty: the broker makes one. To start an ID again
	// attaches to the program that has it, and never runs anything a second time; so
	// a Start that failed with [ErrStartUnknown] may be repeated with the same ID.
	// Stdin must then have the whole input again: what the program has is skipped.
	ID string

	lease *Lease     // nil: the program was attached to
	code  Code       // language and source, or argv
	used  bool       // Start was called
	exec  *execution // nil until it has started
}

// Command is a program of the sandbox with its arguments.
func (l *Lease) Command(name string, args ...string) *Cmd {
	return &Cmd{lease: l, code: Code{Argv: append([]string{name}, args...)}}
}

// Script is code in one of the pool's languages.
func (l *Lease) Script(language, source string, args ...string) *Cmd {
	return &Cmd{lease: l, code: Code{Language: language, Source: source, Args: args}}
}

// Run starts the program and waits for its end.
func (c *Cmd) Run(ctx context.Context) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	return c.Wait()
}

// Start returns when the broker has accepted the program. ctx governs all of its
// life: when it ends the program is killed, and Wait returns an error that matches
// ctx.Err() within about 5 s.
func (c *Cmd) Start(ctx context.Context) error {
	if c.used {
		return errors.New("sandboxclient: the command was started before")
	}
	c.used = true
	client := c.lease.client
	if err := client.usable(ctx); err != nil {
		return err
	}
	if c.ID != "" {
		if err := wire.CheckExecID(c.ID); err != nil {
			return err
		}
	}
	code := c.code
	code.Env, code.Dir, code.Timeout, code.Retention, code.OutputLimit = c.Env, c.Dir, c.Timeout, c.Retention, c.OutputLimit
	program, source, err := code.program()
	if err != nil {
		return err
	}
	var span trace.Span
	ctx, span = client.startSpan(ctx, "Exec", "", program, source)
	req := wire.Request{Op: wire.OpExec, Lease: c.lease.handle, ID: c.ID, Program: program}
	e, err := client.startExec(ctx, span, req, source, stdio{stdin: c.Stdin, stdout: c.Stdout, stderr: c.Stderr})
	if err != nil {
		endSpan(span, streamResult{}, err)
		return err
	}
	if err := e.awaitStart(); err != nil {
		return err
	}
	c.exec = e
	return nil
}

// Wait waits for the program's end, and until all of its output has been written.
// The error is nil if it exited with 0 and nothing went wrong, an [*ExitError] if
// it ended otherwise, a [*DisconnectedError] if the program could not be reached any
// more, or else what a writer or reader failed with. It may be called more than once.
func (c *Cmd) Wait() error {
	if c.exec == nil {
		return errors.New("sandboxclient: the command was not started")
	}
	<-c.exec.done
	return c.exec.err
}

// Output runs the program and returns its stdout, at most [DefaultMaxOutput]
// bytes of it. If there was more the error is [ErrOutputTruncated].
func (c *Cmd) Output(ctx context.Context) ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("sandboxclient: Stdout is already set")
	}
	return c.runCaptured(ctx, false)
}

// CombinedOutput is Output with stdout and stderr in the order of their arrival.
func (c *Cmd) CombinedOutput(ctx context.Context) ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("sandboxclient: Stdout or Stderr is already set")
	}
	return c.runCaptured(ctx, true)
}

func (c *Cmd) runCaptured(ctx context.Context, combined bool) ([]byte, error) {
	kept := &capture{limit: DefaultMaxOutput}
	c.Stdout = kept
	if combined {
		c.Stderr = kept
	}
	err := c.Run(ctx)
	data, truncated := kept.close()
	if truncated && err == nil {
		err = ErrOutputTruncated
	}
	return data, err
}

// Signal sends a signal to the running program, by its POSIX name such as
// SIGTERM. It is sent once, also when the connection breaks meanwhile. A program that
// has ended gets none, and that is no error.
func (c *Cmd) Signal(name string) error {
	if c.exec == nil {
		return errors.New("sandboxclient: the command was not started")
	}
	c.exec.signal(name)
	return nil
}

// Handle names the program to the broker. With it and the tenant's credentials
// [Client.Attach] takes up the output, also from another process. It is empty before
// the start.
func (c *Cmd) Handle() string {
	if c.exec == nil {
		return ""
	}
	if r := c.exec.outcome().response; r != nil {
		return r.Exec
	}
	return ""
}

// Ending tells how the program ended; ok is false while it runs, and when it is
// not known.
func (c *Cmd) Ending() (ending Ending, ok bool) {
	if c.exec == nil {
		return Ending{}, false
	}
	e := c.exec.outcome().ending
	if e == nil {
		return Ending{}, false
	}
	return *e, true
}
