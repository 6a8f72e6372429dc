package sandboxclient

import (
	"errors"
	"fmt"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Error is what the broker answers when it refuses a request or fails at it. It
// is never the failure of a program; that is an [ExitError].
type Error = wire.Error

// ErrorCode classifies an [Error].
type ErrorCode = wire.Code

// Ending says how a program ended.
type Ending = wire.Ending

// Reason is the first thing to look at in an [Ending].
type Reason = wire.Reason

// Cause says why a program was lost, when its [Reason] is [ReasonLost].
type Cause = wire.Cause

// Retention says what becomes of a program's output that nobody takes, once the
// sandbox keeps 2 MiB of it.
type Retention = wire.Retention

// The retentions.
const (
	RetainAll    = wire.RetainAll
	RetainNewest = wire.RetainNewest
)

// The reasons of an [Ending].
const (
	ReasonExited      = wire.ReasonExited
	ReasonSignaled    = wire.ReasonSignaled
	ReasonTimeout     = wire.ReasonTimeout
	ReasonCanceled    = wire.ReasonCanceled
	ReasonOOM         = wire.ReasonOOM
	ReasonOutputLimit = wire.ReasonOutputLimit
	ReasonLost        = wire.ReasonLost
)

// These match, with errors.Is, every [Error] of their code.
var (
	ErrInvalid         = wire.ErrInvalid
	ErrUnauthenticated = wire.ErrUnauthenticated
	ErrForbidden       = wire.ErrForbidden
	ErrNotFound        = wire.ErrNotFound
	ErrConflict        = wire.ErrConflict
	ErrLeaseExpired    = wire.ErrLeaseExpired
	ErrExhausted       = wire.ErrExhausted
	ErrInternal        = wire.ErrInternal
	ErrUnavailable     = wire.ErrUnavailable
	ErrNotReady        = wire.ErrNotReady
)

var (
	// ErrClosed is the error of every call on a closed [Client].
	ErrClosed = errors.New("sandboxclient: the client is closed")

	// ErrStartUnknown says that the connection was lost after a request was sent
	// and before it was answered. Whether the program started, or the lease was
	// granted, is not known; the client does not try again by itself.
	ErrStartUnknown = errors.New("sandboxclient: the connection was lost before the broker answered; whether anything was started is not known")

	// ErrProtocol says that the broker sent what the protocol does not allow. The
	// connection is given up.
	ErrProtocol = errors.New("sandboxclient: the broker broke the protocol")

	// ErrOutputTruncated is the error of [Cmd.Output] and [Cmd.CombinedOutput] when
	// the program wrote more than they keep. The beginning is returned with it.
	ErrOutputTruncated = errors.New("sandboxclient: the program wrote more than is kept")

	// errNotSent says that nothing of a request left this process.
	errNotSent = errors.New("sandboxclient: the connection ended before the request was sent")
)

// protocolErrorf describes a breach of the protocol by the broker.
func protocolErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// ExitError says that a program ran and ended other than by exiting with 0.
type ExitError struct {
	Ending Ending
}

// ExitCode is the program's exit code, or -1 when it did not exit by itself.
func (e *ExitError) ExitCode() int {
	if e.Ending.Reason != ReasonExited {
		return -1
	}
	return e.Ending.ExitCode
}

// Error tells the ending in a few words.
func (e *ExitError) Error() string {
	s := e.summary()
	if e.Ending.Message != "" {
		s += ": " + e.Ending.Message
	}
	return s
}

func (e *ExitError) summary() string {
	switch e.Ending.Reason {
	case ReasonExited:
		return fmt.Sprintf("exit status %d", e.Ending.ExitCode)
	case ReasonSignaled:
		return "ended by signal " + e.Ending.Signal
	case ReasonTimeout:
		return "ended by its timeout"
	case ReasonCanceled:
		return "canceled"
	case ReasonOOM:
		return "out of memory"
	case ReasonOutputLimit:
		return "ended for writing more output than allowed"
	case ReasonLost:
		return fmt.Sprintf("lost with its sandbox (%s)", e.Ending.Cause)
	default:
		return fmt.Sprintf("ended: %s", e.Ending.Reason)
	}
}

// DisconnectedError says that the connection to the broker ended under a program,
// and that the program could not be reached again: in time, or at all. What came
// before has been delivered, but the output is not complete and the ending is not
// known. The program may still be running: a run for the broker's grace, a program in
// a lease until the lease's end; [Client.Attach] takes it up.
//
// Err may be an [*Error] that says why there is nothing to come back to:
// [ErrLeaseExpired], [ErrNotFound], or [ErrConflict] when another reader took its
// place.
type DisconnectedError struct {
	Exec  string // the program's handle
	Lease string // the handle of its lease
	Err   error  // why the connection ended, or why it could not be made again
}

// Error names the cause.
func (e *DisconnectedError) Error() string {
	return fmt.Sprintf("sandboxclient: the connection was lost under a running program, whose output is incomplete: %v", e.Err)
}

// Unwrap gives the reason.
func (e *DisconnectedError) Unwrap() error { return e.Err }
