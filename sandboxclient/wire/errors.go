package wire

import (
	"errors"
	"fmt"
	"time"
)

// Code classifies a failure of the broker (never of the program it ran).
type Code string

// The codes, each with its HTTP status. The broker's edge and this table are the
// only places where the two meet; a WebSocket closes with 4000 + status.
const (
	CodeInvalid         Code = "invalid"         // 400
	CodeUnauthenticated Code = "unauthenticated" // 401
	CodeForbidden       Code = "forbidden"       // 403
	CodeNotFound        Code = "not_found"       // 404
	CodeConflict        Code = "conflict"        // 409
	CodeLeaseExpired    Code = "lease_expired"   // 410
	CodeExhausted       Code = "exhausted"       // 429
	CodeInternal        Code = "internal"        // 500
	CodeUnavailable     Code = "unavailable"     // 503
	CodeNotReady        Code = "not_ready"       // 504
)

var statuses = map[Code]int{
	CodeInvalid: 400, CodeUnauthenticated: 401, CodeForbidden: 403, CodeNotFound: 404, CodeConflict: 409,
	CodeLeaseExpired: 410, CodeExhausted: 429, CodeInternal: 500, CodeUnavailable: 503, CodeNotReady: 504,
}

// Status is the HTTP status of the code; 500 for one this version does not know.
func (c Code) Status() int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return statuses[CodeInternal]
}

// CodeOfStatus finds the code of an HTTP status; ok is false when none has it.
func CodeOfStatus(status int) (code Code, ok bool) {
	for c, s := range statuses {
		if s == status {
			return c, true
		}
	}
	return "", false
}

// Error is the one error type of the broker's answers.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Field names what was wrong in the request, for CodeInvalid.
	Field string `json:"field,omitempty"`
	// Limit is the bound that was passed, in the field's own unit, if there is one.
	Limit int64 `json:"limit,omitempty"`
	// Reason narrows the code: image_error, unschedulable, quota, moved, ….
	Reason string `json:"reason,omitempty"`
	// RequestID finds the request in the broker's logs and traces.
	RequestID string `json:"request_id,omitempty"`
	// RetryAfterMS is the wait after which a retry makes sense, in milliseconds; 0 is unknown.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// Error formats the message with its code, field and request ID.
func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Message
	if e.Field != "" {
		s = string(e.Code) + " (" + e.Field + "): " + e.Message
	}
	if e.RequestID != "" {
		s += " [request " + e.RequestID + "]"
	}
	return s
}

// Is makes errors.Is(err, ErrNotFound) and its like compare codes only.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// RetryAfter is RetryAfterMS as a duration.
func (e *Error) RetryAfter() time.Duration { return time.Duration(e.RetryAfterMS) * time.Millisecond }

// Sentinels for errors.Is: they match every *Error of their code.
var (
	ErrInvalid         = &Error{Code: CodeInvalid}
	ErrUnauthenticated = &Error{Code: CodeUnauthenticated}
	ErrForbidden       = &Error{Code: CodeForbidden}
	ErrNotFound        = &Error{Code: CodeNotFound}
	ErrConflict        = &Error{Code: CodeConflict}
	ErrLeaseExpired    = &Error{Code: CodeLeaseExpired}
	ErrExhausted       = &Error{Code: CodeExhausted}
	ErrInternal        = &Error{Code: CodeInternal}
	ErrUnavailable     = &Error{Code: CodeUnavailable}
	ErrNotReady        = &Error{Code: CodeNotReady}
)

// Errorf makes an *Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AsError finds the *Error in err's chain, or nil.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// Invalid makes a CodeInvalid error that names the field and its limit.
func Invalid(field string, limit int64, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Field: field, Limit: limit, Message: fmt.Sprintf(format, args...)}
}

// ReasonConfiguration is the Reason of an [Error] that an admin has to mend.
const ReasonConfiguration = "configuration"

const (
	// ReasonMoved is the Reason of an [Error] for an exec that goes on at another
	// replica of the broker: attach again.
	ReasonMoved = "moved"
	// ReasonSuperseded is the Reason for a reader whose place another one took.
	ReasonSuperseded = "superseded"
	// ReasonConfirmed is the Reason for an exec that is over and confirmed: its ID
	// is not used again.
	ReasonConfirmed = "confirmed"
)

// NotReady makes an error with CodeNotReady: a failure to get a sandbox that no
// waiting mends.
func NotReady(reason, format string, args ...any) *Error {
	return &Error{Code: CodeNotReady, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// invalid is Invalid for this package's own int constants, as a plain error.
func invalid(field string, limit int, format string, args ...any) error {
	return Invalid(field, int64(limit), format, args...)
}
