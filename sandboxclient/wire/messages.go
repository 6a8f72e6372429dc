package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
)

// Op names what a request asks for.
type Op string

// The operations of version 1.
const (
	// OpRun takes a sandbox from a pool, runs one program in it and destroys it.
	OpRun Op = "run"
	// OpAcquire takes a lease on a sandbox.
	OpAcquire Op = "acquire"
	// OpExec runs one program in a lease.
	OpExec Op = "exec"
	// OpAttach takes up the streams of a running or just ended exec.
	OpAttach Op = "attach"
	// OpRelease ends a lease and destroys its sandbox.
	OpRelease Op = "release"
)

// Ops lists the operations, for tests that none may escape.
var Ops = []Op{OpRun, OpAcquire, OpExec, OpAttach, OpRelease}

// Hello is the server's first message.
type Hello struct {
	Version string `json:"version"` // the broker's version, for people
	// HeartbeatMS is how often the broker pings; a client that hears nothing for
	// three times as long may take the connection for dead.
	HeartbeatMS int64 `json:"heartbeat_ms"`
	// MaxStreams bounds how many streams may be open on this connection.
	MaxStreams int `json:"max_streams"`
}

// GoAway asks the client to open a new connection; streams on this one end with
// the connection, what they stand for goes on.
type GoAway struct {
	Reason string `json:"reason"`
}

// Program says what to start. Exactly one of Language (the code follows the
// JSON), Argv and File is set; with Language, Argv may be set too.
type Program struct {
	Language string            `json:"language,omitempty"`
	Argv     []string          `json:"argv,omitempty"` // with Language: arguments after the script's name
	Env      map[string]string `json:"env,omitempty"`
	Dir      string            `json:"dir,omitempty"` // working directory; relative to the workspace
	// TimeoutMS bounds the run in milliseconds; 0 takes the pool's default.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Stdin says that input will be sent; without it the program reads end of file.
	Stdin bool `json:"stdin,omitempty"`
	// Retention says what becomes of output that nobody takes.
	Retention Retention `json:"retention,omitempty"`
	// OutputLimit bounds what the program may write to both outputs together, in bytes;
	// 0 takes the pool's limit. One that writes more is ended, and what lies beyond is
	// not kept.
	OutputLimit int64 `json:"output_limit,omitempty"`
	// File moves a file instead of running code. Of the other keys it goes with
	// TimeoutMS, where 0 takes the pool's maximum, and with Stdin alone.
	File *FileOp `json:"file,omitempty"`
}

// Retention says what becomes of a program's output when nobody takes it and the
// sandbox keeps as much of it as it may.
type Retention string

// The retentions.
const (
	// RetainAll makes the program wait with its next write: nothing is lost. It is
	// what the empty Retention means, too.
	RetainAll Retention = "block"
	// RetainNewest lets the program go on and discards the oldest output.
	RetainNewest Retention = "ring"
)

// Request opens a stream.
type Request struct {
	Op   Op     `json:"op"`
	Pool string `json:"pool,omitempty"` // run, acquire

	// Lease is a lease's handle (exec, release).
	Lease string `json:"lease,omitempty"`
	// ID is the client's name for a new exec in that lease, see [CheckExecID];
	// starting one that exists attaches to it. Empty: the broker
	// makes one.
	ID string `json:"id,omitempty"`
	// Exec is an exec's handle (attach).
	Exec string `json:"exec,omitempty"`

	// TTLMS bounds the life of an acquired lease in milliseconds; 0 takes the
	// pool's default.
	TTLMS int64 `json:"ttl_ms,omitempty"`

	Program *Program `json:"program,omitempty"` // run, exec

	// Stdout and Stderr are the first windows for the output. Acked is where the
	// output shall start (attach); Limit minus Acked is the credit. Absent: from
	// 0 with DefaultWindow.
	Stdout *Credit `json:"stdout,omitempty"`
	Stderr *Credit `json:"stderr,omitempty"`

	// Traceparent and Tracestate carry the caller's trace (W3C Trace Context).
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
}

// maxExecID bounds an exec's ID, in characters.
const maxExecID = 64

var execID = regexp.MustCompile(`^[0-9A-Za-z_-]{1,64}$`)

// CheckExecID says whether an exec may be called so: 1 to 64 characters of
// [0-9A-Za-z_-]. The error is an *Error with code [CodeInvalid].
func CheckExecID(id string) error {
	if !execID.MatchString(id) {
		return invalid("id", maxExecID, "an exec's ID has 1 to %d characters of 0-9, A-Z, a-z, _ and -", maxExecID)
	}
	return nil
}

// Credit is a Window without its FD.
type Credit struct {
	Acked uint64 `json:"acked"`
	Limit uint64 `json:"limit"`
}

// Response answers a request. For run and exec it comes before the program
// starts and names it; after a connection was lost the handle finds it again.
type Response struct {
	Lease string `json:"lease,omitempty"` // handle of the lease (acquire, run)
	Exec  string `json:"exec,omitempty"`  // handle of the exec (run, exec, attach)
	// ExpiresMS is the lease's hard end, in milliseconds since the Unix epoch.
	ExpiresMS int64 `json:"expires_ms,omitempty"`
	// DetachGraceMS is how long a run lives without a connection.
	DetachGraceMS int64 `json:"detach_grace_ms,omitempty"`
	// Isolation names what isolates the sandbox, e.g. the RuntimeClass; "none" is said aloud.
	Isolation string `json:"isolation,omitempty"`
	RequestID string `json:"request_id,omitempty"`
}

// Signal asks for a signal to the program, by its POSIX name.
type Signal struct {
	Name string `json:"name"`
}

// Reason says how an exec ended.
type Reason string

// The reasons.
const (
	ReasonExited      Reason = "exited"       // by itself, with an exit code
	ReasonSignaled    Reason = "signaled"     // by a signal
	ReasonTimeout     Reason = "timeout"      // its deadline passed
	ReasonCanceled    Reason = "canceled"     // the caller ended it
	ReasonOOM         Reason = "oom"          // it exceeded its memory
	ReasonOutputLimit Reason = "output_limit" // it wrote more than allowed
	ReasonLost        Reason = "lost"         // its sandbox went away; see Cause
)

// Cause says why an exec was lost.
type Cause string

// The causes.
const (
	CauseDeleted      Cause = "deleted"       // the pod, sandbox or claim was deleted
	CauseEvicted      Cause = "evicted"       // the node evicted the pod
	CausePreempted    Cause = "preempted"     // a pod of higher priority took its place
	CauseNodeLost     Cause = "node_lost"     // the node went away
	CauseRunnerKilled Cause = "runner_killed" // the sandbox's first process died
	CauseChannelLost  Cause = "channel_lost"  // the sandbox could not be reached again
)

// Ending is the terminal event of an exec; there is exactly one.
type Ending struct {
	Reason   Reason `json:"reason"`
	ExitCode int    `json:"exit_code"`        // for ReasonExited: 0-255
	Signal   string `json:"signal,omitempty"` // for ReasonSignaled: its POSIX name
	Cause    Cause  `json:"cause,omitempty"`  // for ReasonLost
	Message  string `json:"message,omitempty"`

	// StdoutBytes and StderrBytes are how much the program wrote, as far as known.
	StdoutBytes uint64 `json:"stdout_bytes"`
	StderrBytes uint64 `json:"stderr_bytes"`
	// Complete says that all of these bytes were delivered on this stream or
	// acknowledged before.
	Complete bool `json:"complete"`
	// StdoutDiscardedTo and StderrDiscardedTo are where the last gap in what was
	// delivered ends; 0 is none. See [RetainNewest].
	StdoutDiscardedTo uint64 `json:"stdout_discarded_to,omitempty"`
	StderrDiscardedTo uint64 `json:"stderr_discarded_to,omitempty"`

	Usage *Usage `json:"usage,omitempty"`
}

// Usage is what an exec consumed.
type Usage struct {
	WallMS      int64 `json:"wall_ms"`
	UserMS      int64 `json:"user_ms"`
	SystemMS    int64 `json:"system_ms"`
	MaxRSSBytes int64 `json:"max_rss_bytes"` // of the largest single process
}

// Marshal encodes a control message.
func Marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		// Every type of this package encodes; another one is a mistake in the caller.
		panic("wire: " + err.Error())
	}
	return b
}

// Unmarshal decodes the JSON of a control frame. Unknown keys are an error:
// a misspelt one must not be ignored. Errors are *Error with code [CodeInvalid].
func Unmarshal(k Kind, data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return invalid(k.String(), 0, "the %s frame is not the JSON it must be: %v", k, err)
	}
	// Not More: it takes a stray closing bracket for the end.
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalid(k.String(), 0, "the %s frame carries more than one JSON value", k)
	}
	return nil
}

// RequestFrame builds the frame that opens a stream.
func RequestFrame(stream uint32, r Request, code []byte) Frame {
	b := Marshal(r)
	return Frame{Kind: KindRequest, Stream: stream, Offset: uint64(len(b)), Payload: append(b, code...)}
}

// ParseRequest splits a KindRequest frame into its request and code. The code
// aliases the payload.
func ParseRequest(f Frame) (Request, []byte, error) {
	var r Request
	f.Kind = KindRequest // whatever it was, it must hold as one
	if err := f.check(); err != nil {
		return r, nil, err
	}
	if err := Unmarshal(KindRequest, f.Payload[:f.Offset], &r); err != nil {
		return r, nil, err
	}
	return r, f.Payload[f.Offset:], nil
}

// JSONFrame builds a control frame of any other kind.
func JSONFrame(k Kind, stream uint32, v any) Frame {
	return Frame{Kind: k, Stream: stream, Payload: Marshal(v)}
}
