package channel

import (
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Retention bounds what a runner keeps of one output until it is acknowledged, in
// bytes. At the bound the program's next write waits: nothing is lost. Of all outputs
// together it keeps less than so much of each.
const Retention = 2 << 20

// PipeSize is what the pipe of one output can hold besides, in bytes.
const PipeSize = 256 << 10

// Routes of the runner. Each answers 200 with JSON, or an error status with a
// wire.Error as JSON.
const (
	// PathBind takes a Bind.
	PathBind = "POST /v1/bind"
	// PathPrepare takes a Prepare.
	PathPrepare = "POST /v1/prepare"
	// PathExec is the full-duplex request of one exec; its body starts with a
	// KindRequest frame holding a Start.
	PathExec = "POST /v1/exec/{id}"
	// PathEcho is a full-duplex request that answers each frame with itself.
	PathEcho = "POST /v1/echo"
	// PathStatus answers a Status.
	PathStatus = "GET /v1/status"
)

// Bind gives the sandbox to a lease. The first one wins; the same again is
// accepted, any other is refused with CodeConflict and ReasonBoundElsewhere.
type Bind struct {
	Lease  string `json:"lease"`
	Tenant string `json:"tenant"`
}

// ReasonBoundElsewhere says that a sandbox belongs to another lease: whoever gets
// this answer must leave it alone.
const ReasonBoundElsewhere = "bound_elsewhere"

// IsBoundElsewhere reports whether an error is the answer with ReasonBoundElsewhere.
func IsBoundElsewhere(err error) bool {
	e := wire.AsError(err)
	return e != nil && e.Code == wire.CodeConflict && e.Reason == ReasonBoundElsewhere
}

// Prepare says what a sandbox shall get ready for while nobody waits for it. What
// was asked for before stays.
type Prepare struct {
	// Spares are the languages of which one interpreter is to be started ahead.
	Spares []string `json:"spares,omitempty"`
	// Preload are the modules that they import ahead, by language.
	Preload map[string][]string `json:"preload,omitempty"`
}

// Prepared answers a Prepare, when the spares are ready or PrepareWait has passed.
type Prepared struct {
	Spares map[string]Spare `json:"spares,omitempty"`
}

// PrepareWait bounds how long a runner waits for its spares before it answers: by then
// one module that hangs has been given up.
const PrepareWait = 15 * time.Second

// Start opens an exec's stream: it starts the exec, or attaches to it if its ID
// exists already. One that may start is a Bind too. The code follows the JSON in
// the frame.
type Start struct {
	Bind
	// AttachOnly refuses with CodeNotFound instead of starting.
	AttachOnly bool          `json:"attach_only,omitempty"`
	Program    *wire.Program `json:"program,omitempty"`
	// Timeout is the program's time from its start.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Reader names who attaches, over every channel that it takes. One that another
	// reader has superseded cannot come back in its place.
	Reader string `json:"reader,omitempty"`
	// Stdout and Stderr are the reader's position and credit.
	Stdout wire.Credit `json:"stdout"`
	Stderr wire.Credit `json:"stderr"`
}

// Started is the first frame (KindResponse) of an exec's answer.
type Started struct {
	// New is false when the exec existed and this stream attached to it.
	New bool `json:"new"`
	// Left is how long the program may still run; 0: it has ended.
	Left time.Duration `json:"left,omitempty"`
	// OutputLimit is the program's, in bytes; 0: it has none.
	OutputLimit int64 `json:"output_limit,omitempty"`
}

// Status describes the runner, for diagnosis.
type Status struct {
	Boot  string `json:"boot"`
	Bound bool   `json:"bound"`
	Execs int    `json:"execs"`
	// Retained is the memory that output has which was not acknowledged, in bytes.
	Retained int64  `json:"retained"`
	Version  string `json:"version"`
	// Languages are the names of those whose interpreter the sandbox has.
	Languages []string `json:"languages"`
	// Spares tells of the interpreters that are started ahead, by language.
	Spares map[string]Spare `json:"spares,omitempty"`
}

// Spare describes the spare interpreter of one language.
type Spare struct {
	Ready bool `json:"ready"` // one waits for code
	// Used counts the programs that got one.
	Used uint64 `json:"used"`
	// Problems are what went wrong, like a module that cannot be imported ahead.
	Problems []string `json:"problems,omitempty"`
}
