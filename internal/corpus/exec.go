package corpus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// What tells two runs in one sandbox apart; Diff takes them for the same. The
// loader ignores the first variable, but its name looks as if it did not, so the
// program gets an interpreter of its own.
const (
	freshVar = "LD_SPARE_CORPUS"
	spareVar = "LDXSPARE_CORPUS"

	freshRun, spareRun = "-fresh-run", "-spare-run"
)

// IDs are exec IDs for the two runs.
func (c Case) IDs() (fresh, spare string) { return c.Name + freshRun, c.Name + spareRun }

// ForFresh is the program as it gets an interpreter of its own in any sandbox.
func (c Case) ForFresh() Case { return c.with(freshVar) }

// ForSpare is the program with as many variables as ForFresh has. A shell's spare
// takes no variables.
func (c Case) ForSpare() Case {
	if c.Language == "shell" {
		return c
	}
	return c.with(spareVar)
}

func (c Case) with(name string) Case {
	env := map[string]string{name: "1"}
	maps.Copy(env, c.Env)
	c.Env = env
	return c
}

// timeout bounds one program.
const timeout = 30 * time.Second

// ErrIncomplete says that output of a program is missing.
var ErrIncomplete = errors.New("corpus: the output is not complete")

// Exec runs the program in a sandbox, in the lease it is bound to.
func (c Case) Exec(ctx context.Context, ch *channel.Client, b channel.Bind, id string) (Result, *wire.Ending, error) {
	s, err := ch.Exec(ctx, id, channel.Start{
		Bind: b, Timeout: timeout,
		Program: &wire.Program{Language: c.Language, Argv: c.Args, Env: c.Env, Stdin: c.Stdin != nil},
		Stdout:  wire.Credit{Limit: wire.MaxWindow}, Stderr: wire.Credit{Limit: wire.MaxWindow},
	}, c.Code)
	if err != nil {
		return Result{}, nil, err
	}
	defer s.Close()
	if c.Stdin != nil {
		err = errors.Join(s.Send(wire.Frame{Kind: wire.KindStdin, Payload: []byte(*c.Stdin)}),
			s.Send(wire.Frame{Kind: wire.KindStdinEnd, Offset: uint64(len(*c.Stdin))}))
		if err != nil {
			return Result{}, nil, err
		}
	}
	return collect(s)
}

// collect reads a stream to its end and confirms it.
func collect(s *channel.ExecStream) (Result, *wire.Ending, error) {
	var out, errs bytes.Buffer
	for {
		f, err := s.Recv()
		if err != nil {
			return Result{}, nil, err
		}
		switch f.Kind {
		case wire.KindStdout, wire.KindStderr:
			fd, b := wire.Stdout, &out
			if f.Kind == wire.KindStderr {
				fd, b = wire.Stderr, &errs
			}
			b.Write(f.Payload)
			n := uint64(b.Len())
			if err := s.Send(wire.Window{FD: fd, Acked: n, Limit: n + wire.MaxWindow}.Frame(0)); err != nil {
				return Result{}, nil, err
			}
		case wire.KindExit:
			var end wire.Ending
			if err := json.Unmarshal(f.Payload, &end); err != nil {
				return Result{}, nil, err
			}
			if err := s.Send(wire.Frame{Kind: wire.KindDone}); err != nil {
				return Result{}, nil, err
			}
			// The runner ends the stream when it has forgotten the exec.
			if _, err := s.Recv(); !errors.Is(err, io.EOF) {
				return Result{}, nil, fmt.Errorf("corpus: after the end: %w", err)
			}
			if !end.Complete || end.StdoutBytes != uint64(out.Len()) || end.StderrBytes != uint64(errs.Len()) {
				return Result{}, nil, ErrIncomplete
			}
			return Result{
				Stdout: out.Bytes(), Stderr: errs.Bytes(),
				Reason: string(end.Reason), ExitCode: end.ExitCode, Signal: end.Signal,
			}, &end, nil
		case wire.KindError:
			return Result{}, nil, fmt.Errorf("corpus: the runner answered %s", f.Payload)
		}
	}
}
