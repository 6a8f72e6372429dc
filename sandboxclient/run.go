package sandboxclient

import (
	"context"
	"io"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// DefaultMaxOutput is how much of each output [Client.Run] and [Cmd.Output] keep
// when they are not told otherwise, in bytes.
const DefaultMaxOutput = 16 << 20

// Code is a program for [Client.Run]. Either Language and Source are set, or
// Argv.
type Code struct {
	Pool string // the pool to take the sandbox from

	Language string   // such as python, node or shell; the pool says which it has
	Source   string   // the code, at most 16 MiB; the pool may allow less
	Args     []string // arguments for the code

	Argv []string // a program of the sandbox with its arguments

	Env map[string]string // added to the sandbox's environment
	Dir string            // working directory; relative to the workspace, empty is the workspace

	// Timeout bounds the run, in steps of a millisecond. 0 takes the pool's default.
	Timeout time.Duration

	// Stdin is what the program reads. When it is nil the program reads end of
	// file. A Read that blocks does not hold up the end of the run; see [Cmd].
	Stdin io.Reader

	// Stdout and Stderr receive the output as it appears. What is nil is kept in
	// the Result. Equal writers are never written concurrently. An error of a
	// writer ends the program.
	Stdout, Stderr io.Writer

	// Retention says what becomes of output that nobody takes: RetainAll, which it is
	// when empty, makes the program wait; RetainNewest discards the oldest.
	Retention Retention

	// OutputLimit bounds what the program may write to both outputs together, in bytes;
	// one that writes more is ended with [ReasonOutputLimit]. 0 takes the pool's limit.
	OutputLimit int64

	// Started, if not nil, is called with the program's handle when the broker has
	// accepted it; see [Client.Attach].
	Started func(handle string)

	// MaxOutput is how much of each output the Result keeps, in bytes; the rest is
	// dropped. 0 is DefaultMaxOutput.
	MaxOutput int64
}

// Result is what became of a [Code].
type Result struct {
	Stdout, Stderr []byte // what was kept of the outputs without a writer
	Truncated      bool   // there was more of one than MaxOutput

	// Ending is zero when it is not known. Its Complete is false if output was lost;
	// with RetainNewest its offsets say where the last gap ends.
	Ending Ending
	Lease  string // the handle of the sandbox's lease
	Exec   string // the handle of the program

	// Isolation names what isolates the sandbox.
	Isolation string
	// RequestID finds the run in the broker's logs and traces.
	RequestID string
	Timings   Timings
}

// Timings are measured from the call on. What did not happen is 0.
type Timings struct {
	Response  time.Duration // the broker had a sandbox
	FirstByte time.Duration // the first output came
	Exit      time.Duration // the program had ended
}

// Run takes a sandbox from a pool, runs one program in it and has the sandbox
// destroyed. It waits while the pool has none free.
//
// The Result is nil if the program did not start. Otherwise it is there beside any
// error: [*ExitError] for a program that did not exit with 0, [*DisconnectedError]
// for one that could not be reached any more, the error of a writer or reader.
//
// When ctx ends the program is killed. Run waits for its ending, at most 5 s,
// and returns an error that matches ctx.Err(); what was written before has been
// delivered.
func (c *Client) Run(ctx context.Context, code Code) (*Result, error) {
	program, source, err := code.program()
	if err != nil {
		return nil, err
	}
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	ctx, span := c.startSpan(ctx, "Run", code.Pool, program, source)
	keep := code.MaxOutput
	if keep == 0 {
		keep = DefaultMaxOutput
	}
	stdout, stderr := &capture{limit: keep}, &capture{limit: keep}
	streams := stdio{stdin: code.Stdin, stdout: code.Stdout, stderr: code.Stderr}
	if streams.stdout == nil {
		streams.stdout = stdout
	}
	if streams.stderr == nil {
		streams.stderr = stderr
	}
	e, err := c.startExec(ctx, span, wire.Request{Op: wire.OpRun, Pool: code.Pool, Program: program}, source, streams)
	if err != nil {
		endSpan(span, streamResult{}, err)
		return nil, err
	}
	<-e.responded
	if r := e.outcome().response; r != nil && code.Started != nil {
		code.Started(r.Exec)
	}
	<-e.done
	return e.runResult(stdout, stderr), e.err
}

// program is what goes into the request, and the code that follows it.
func (code Code) program() (*wire.Program, []byte, error) {
	p := &wire.Program{Env: code.Env, Dir: code.Dir, TimeoutMS: milliseconds(code.Timeout), Retention: code.Retention, OutputLimit: code.OutputLimit}
	if len(code.Argv) == 0 {
		p.Language, p.Argv = code.Language, code.Args
		return p, []byte(code.Source), nil
	}
	if code.Language != "" || code.Source != "" || len(code.Args) > 0 {
		return nil, nil, wire.Invalid("argv", 0, "a program is either Argv, or Language with Source and Args")
	}
	p.Argv = code.Argv
	return p, nil, nil
}

// milliseconds rounds away from zero: a tiny timeout must not become the default.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	switch rest := d % time.Millisecond; {
	case rest > 0:
		ms++
	case rest < 0:
		ms--
	}
	return ms
}

// runResult collects what a run has brought; nil if it never started.
func (e *execution) runResult(stdout, stderr *capture) *Result {
	r := e.outcome()
	if r.response == nil {
		return nil
	}
	res := &Result{
		Lease: r.response.Lease, Exec: r.response.Exec,
		Isolation: r.response.Isolation, RequestID: r.response.RequestID,
		Timings: Timings{
			Response:  e.since(r.responseAt),
			FirstByte: e.since(r.firstByteAt),
		},
	}
	if r.ending != nil {
		res.Ending = *r.ending
		res.Timings.Exit = e.since(r.endAt)
	}
	var cutOut, cutErr bool
	res.Stdout, cutOut = stdout.close()
	res.Stderr, cutErr = stderr.close()
	res.Truncated = cutOut || cutErr
	return res
}

func (e *execution) since(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return t.Sub(e.started)
}
