package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Exit codes that are not the program's own. They are those of timeout(1), of
// shells and of container tools.
const (
	exitTimeout     = 124 // the program's time was over
	exitBroker      = 125 // the broker, or this command, failed
	exitSignal      = 128 // plus the number of the signal that ended the program
	exitInterrupted = 130 // this command was told to stop
	exitLimit       = 137 // the program used too much memory or wrote too much
)

// exitError is an error with the exit code it asks for.
type exitError struct {
	code int
	err  error // nil: there is nothing to print
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// report prints a command's error on one line and returns the exit code.
func report(err error, w io.Writer) int {
	if err == nil {
		return 0
	}
	code := exitBroker
	var exit *exitError
	if errors.As(err, &exit) {
		code, err = exit.code, exit.err
	}
	if err != nil {
		fmt.Fprintln(w, "sandbox-broker:", oneLine(err.Error()))
	}
	return code
}

// oneLine keeps what others say from looking like more than one message, and
// from steering the terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}

// programError turns the error of a run into an exit code and what to print.
func programError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return &exitError{code: exitInterrupted}
	}
	var exit *sandboxclient.ExitError
	if !errors.As(err, &exit) {
		return &exitError{exitBroker, advise(err)}
	}
	switch end := exit.Ending; end.Reason {
	case sandboxclient.ReasonExited:
		return &exitError{code: end.ExitCode}
	case sandboxclient.ReasonTimeout:
		return &exitError{exitTimeout, fmt.Errorf("the program was %w", exit)}
	case sandboxclient.ReasonOOM:
		return &exitError{exitLimit, fmt.Errorf("the program ran %w", exit)}
	case sandboxclient.ReasonOutputLimit:
		return &exitError{exitLimit, fmt.Errorf("the program was %w", exit)}
	case sandboxclient.ReasonSignaled:
		if n, ok := signalNumbers[end.Signal]; ok {
			return &exitError{exitSignal + n, fmt.Errorf("the program was %w", exit)}
		}
	case sandboxclient.ReasonLost:
		return &exitError{exitBroker, fmt.Errorf("the program was %w; run it again if that does no harm", exit)}
	}
	// Its reason is new to this command, or it was ended because a stream of this
	// command failed, which the error tells.
	return &exitError{exitBroker, err}
}

// callError turns the error of a call that runs no program into an exit code and
// what to print. again says what to do when the connection was lost under it.
func callError(ctx context.Context, err error, again string) error {
	var disconnected *sandboxclient.DisconnectedError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &exitError{code: exitInterrupted}
	case errors.As(err, &disconnected), errors.Is(err, sandboxclient.ErrStartUnknown):
		return &exitError{exitBroker, fmt.Errorf("%w; %s", err, again)}
	}
	return &exitError{exitBroker, advise(err)}
}

// advise adds to a failure what can be done about it.
func advise(err error) error {
	if advice := advice(err); advice != "" {
		return fmt.Errorf("%w; %s", err, advice)
	}
	return err
}

func advice(err error) string {
	var unknownAuthority x509.UnknownAuthorityError
	var unreachable *net.OpError
	var broker *sandboxclient.Error
	var disconnected *sandboxclient.DisconnectedError
	switch {
	case errors.As(err, &broker) && broker.Reason == wire.ReasonSuperseded:
		return "another command has its output now"
	case errors.As(err, &disconnected) && errors.Is(err, sandboxclient.ErrLeaseExpired):
		return "its sandbox is gone"
	case errors.As(err, &disconnected):
		return "the program may go on for a while without this command"
	case errors.Is(err, sandboxclient.ErrStartUnknown):
		return "the program may have run, so it is not started again"
	case errors.Is(err, sandboxclient.ErrUnauthenticated):
		return "give a valid token with --token-file or " + sandboxclient.EnvTokenFile
	case errors.As(err, &broker) && broker.Reason == wire.ReasonNoSpace:
		return "remove something there first"
	case errors.As(err, &broker) && broker.RetryAfterMS > 0:
		return fmt.Sprintf("try again in %s", broker.RetryAfter())
	case errors.Is(err, sandboxclient.ErrExhausted), errors.Is(err, sandboxclient.ErrUnavailable):
		return "try again later"
	case errors.As(err, &unknownAuthority):
		return "give the authority of the broker's certificate with --ca-file or " + sandboxclient.EnvCAFile
	case errors.As(err, &unreachable) && unreachable.Op == "dial":
		return "is the broker running there? --server or " + sandboxclient.EnvURL + " says where it is"
	}
	return ""
}

// signalNumbers are Linux's, because that is what runs in a sandbox, whatever
// this command runs on.
var signalNumbers = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8,
	"SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12, "SIGPIPE": 13, "SIGALRM": 14, "SIGTERM": 15,
	"SIGSTKFLT": 16, "SIGCHLD": 17, "SIGCONT": 18, "SIGSTOP": 19, "SIGTSTP": 20, "SIGTTIN": 21, "SIGTTOU": 22,
	"SIGURG": 23, "SIGXCPU": 24, "SIGXFSZ": 25, "SIGVTALRM": 26, "SIGPROF": 27, "SIGWINCH": 28, "SIGIO": 29,
	"SIGPWR": 30, "SIGSYS": 31,
}
