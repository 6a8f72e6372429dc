package broker

import (
	"context"
	"net"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Provider is where sandboxes come from. broker/agentsandbox is one on
// Kubernetes; package conformance holds the suite that each must pass.
type Provider interface {
	// Take makes or claims a sandbox and waits until it can be dialled. When it
	// fails nothing is left behind. A failure that waiting cannot mend is a
	// *wire.Error with CodeNotReady and a Reason.
	Take(ctx context.Context, req TakeRequest) (Sandbox, error)
	// List returns the sandboxes of this broker's instance, those of other replicas
	// and of earlier brokers too, with what Record wrote. It may be a little late.
	List(ctx context.Context) ([]Sandbox, error)
	// Watch calls died for each sandbox of this instance that ends by itself or
	// by another's hand, once, until ctx ends. It may be called for unknown IDs.
	// died must not block.
	Watch(ctx context.Context, died func(SandboxID, Fate)) error
}

// WarmCounter is a Provider that knows how many sandboxes of a warm pool are
// ready to be taken. The number is a hint and may be late.
type WarmCounter interface {
	Warm(warmPool string) int
}

// Shared is a Provider whose sandboxes several replicas of a broker use. Each
// sandbox has one owner, which counts it and sees to its end; any replica may reach it.
type Shared interface {
	Provider
	// Join announces a replica until it leaves the roster, or life ends. It calls moved
	// for each sandbox that another replica has taken over from this one; moved must
	// not block.
	Join(ctx, life context.Context, replica string, moved func(SandboxID)) (Roster, error)
	// Foreign counts the sandboxes of a pool that other replicas own.
	Foreign(pool string) int
	// Find returns the sandbox with that name, or wire.ErrLeaseExpired.
	Find(ctx context.Context, name string) (Sandbox, error)
	// TakeOver makes the replica the owner of a sandbox, whose Info then has the record
	// as of that moment. If its owner is no longer
	// the one that its Info tells, it fails with wire.ErrConflict.
	TakeOver(ctx context.Context, sb Sandbox, replica string) error
	// EndOwned is the sandbox's End, as long as the replica is its owner or the sandbox
	// has the record of that lease; empty: of none. That is checked in one step with it:
	// if neither is so, nothing ends, and the error is wire.ErrConflict.
	EndOwned(ctx context.Context, sb Sandbox, replica, lease string) error
}

// Roster knows which replicas live.
type Roster interface {
	// Silent reports whether a replica has gone, or not been heard of for long.
	Silent(replica string) bool
	// Current reports whether the others can know that this replica lives.
	Current() bool
	// Replicas is how many there are.
	Replicas() int
	// Leave tells the others that this replica has gone.
	Leave(ctx context.Context) error
	// Tell makes the others know how leases ended here, instead of what it told
	// before: a few, of bounded size.
	Tell(ctx context.Context, all []Ended) error
	// Told is what the other replicas told of a lease, perhaps a while ago.
	Told(lease string) []Ended
}

// TakeRequest says what to take.
type TakeRequest struct {
	Owner    string // the replica that takes
	Pool     string // the broker's pool
	WarmPool string // the provider's name for it
	// Until is when the sandbox must be gone if nobody moves that end.
	Until time.Time
}

// SandboxID tells sandboxes apart for ever: a name alone may be given again to
// a blank sandbox.
type SandboxID struct {
	Name  string // the claim's name
	Claim string // its UID
	Pod   string // the pod's UID
}

// Sandbox is one that was taken. Its methods are safe for concurrent use.
type Sandbox interface {
	ID() SandboxID
	Info() SandboxInfo
	// Dial opens a connection to the runner in it. ctx governs the dialling only.
	Dial(ctx context.Context) (net.Conn, error)
	// Record keeps r where List of another broker finds it, and moves the
	// sandbox's end to r.Until.
	Record(ctx context.Context, r Record) error
	// Extend moves the time at which the sandbox ends if nobody moves it again.
	Extend(ctx context.Context, until time.Time) error
	// End destroys the sandbox. It returns nil only when the provider has
	// accepted that for good, also if the sandbox is gone already.
	End(ctx context.Context) error
}

// SandboxInfo describes a sandbox.
type SandboxInfo struct {
	Pool      string
	Owner     string // the replica that took it, or took it over
	Isolation string // e.g. the RuntimeClass
	Warm      bool   // it was ready before it was taken
	Record    *Record
}

// Record is what another broker needs to take up a lease.
type Record struct {
	// Lease tells this lease from any other that was given the same sandbox.
	Lease  string    `json:"lease"`
	Tenant string    `json:"tenant"`
	Kind   LeaseKind `json:"kind"`
	Exec   string    `json:"exec,omitempty"` // the one exec of a run
	Boot   string    `json:"boot"`
	Until  time.Time `json:"until"`
	// Bound says that the runner had said so when this was written.
	Bound bool `json:"bound,omitempty"`
}

// LeaseKind says what ends a lease early.
type LeaseKind string

// The kinds.
const (
	// KindRun lives for one exec and, without a client, for the detach grace.
	KindRun LeaseKind = "run"
	// KindLease lives until it is released or its end comes.
	KindLease LeaseKind = "lease"
)

// Fate is how a sandbox died, as the provider saw it: the ending its execs get.
type Fate struct {
	Reason  wire.Reason `json:"reason"`          // ReasonOOM or ReasonLost
	Cause   wire.Cause  `json:"cause,omitempty"` // with ReasonLost
	Message string      `json:"message"`
}
