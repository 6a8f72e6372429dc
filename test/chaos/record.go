package chaos

import (
	"slices"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Outcome says what a program's caller learned of its end.
type Outcome string

// The outcomes.
const (
	Ended   Outcome = "ended"   // there is an ending
	Refused Outcome = "refused" // the broker said no, or could not be reached: nothing started
	// NoLease: it was refused because its lease is over.
	NoLease Outcome = "no such lease"
	// StartUnknown: the connection was lost before the answer.
	StartUnknown Outcome = "start unknown"
	// Gone: the broker says that there is no such lease or program any more.
	Gone Outcome = "gone"
	// Unreachable: it could not be reached again in time.
	Unreachable Outcome = "unreachable"
	// Unconfirmed: the caller canceled it, and did not hear of its ending in time.
	Unconfirmed Outcome = "cancel not confirmed"
	// Failed is any other error; there should be none.
	Failed Outcome = "failed"
)

// Entry is what is known of one program afterwards.
type Entry struct {
	Program
	Lease string // which of the suite's leases it ran in; empty: it was a run
	// Began is the call; Held when its sandbox was this caller's, for a program in a
	// lease since that was acquired; Ended the return of the call.
	Began, Held, Ended time.Time
	Claim              string // its sandbox, as brokers' logs name it; empty: not known
	Request            string // by which a run is found in the brokers' logs
	Exec               string // its name in them; empty: they do not speak of it

	Outcome        Outcome
	Success        bool         // the call returned no error
	Ending         *wire.Ending // for Ended
	Err            string       // for people
	Stdout, Stderr Delivery
}

// Fault is a fault that was made.
type Fault struct {
	Step
	At, Until time.Time // from the first blow until it was made good
	Targets   []string  // claims, of faults on a pod
	Pods      []string  // of faults on whoever had them
	Broker    string    // of faults on one broker
}

// Told is what brokers' logs say of one exec.
type Told struct {
	Claim   string
	By      string   // the broker that spoke of it first
	Endings []string // reason, cause and code of each ending that was told, without repetition
}

// Evidence is all that a run of the suite has noted.
type Evidence struct {
	Entries []Entry
	Faults  []Fault
	// Told has what the brokers' logs say, by exec.
	Told map[string]Told
	// Abandoned counts the runs that brokers started for callers who never learned of
	// it: the connection was cut before the answer.
	Abandoned int
	// Twice are the programs that found their own mark when they started.
	Twice []string
	// Left is what was there that must be gone, in words.
	Left []string
}

const (
	// aftermath is how long after a fault was made good calls may still be refused.
	aftermath = 10 * time.Second
	// recordedWithin is how soon a broker must have written down a lease that it
	// gave: when it is killed before, the lease is lost with it.
	recordedWithin = 3 * time.Second
	// blindAtMost is how long faults that follow one another may keep it from that: in
	// half a minute there is a moment.
	blindAtMost = 30 * time.Second
)

// onPod finds a fault on the sandbox of an entry, before its end.
func (v *Evidence) onPod(e *Entry) bool {
	return slices.ContainsFunc(v.Faults, func(f Fault) bool {
		return onAPod[f.Kind] && f.At.Before(e.Ended) && e.Claim != "" && slices.Contains(f.Targets, e.Claim)
	})
}

// patience is how long a broker tries to reach a sandbox again (docs/reliability.md).
const patience = time.Minute

// underChannels are the faults of what every channel passes.
var underChannels = []FaultKind{RestartAPIServer, RestartContainerd, RestartKubelet}

// outlasted finds a part of the cluster that was away for as long as that, while it was
// needed for the channels.
func (v *Evidence) outlasted(e *Entry) bool {
	return e.Ending.Cause == wire.CauseChannelLost && v.away(e, patience)
}

// cancelTold is how long a client tries to tell of a cancel (docs/reliability.md).
const cancelTold = 30 * time.Second

// muted finds a part of the cluster that was away for as long as that, so that a cancel may
// not have reached the sandbox.
func (v *Evidence) muted(e *Entry) bool { return v.away(e, cancelTold) }

// away finds a part of the cluster that was away for so long at an entry's end.
func (v *Evidence) away(e *Entry, long time.Duration) bool {
	return slices.ContainsFunc(v.Faults, func(f Fault) bool {
		return slices.Contains(underChannels, f.Kind) && f.Until.Sub(f.At) >= long && f.At.Before(e.Ended) && f.Until.Add(aftermath).After(e.Ended)
	})
}

// lostAfter finds what a program can have been lost by whose caller had left it: a fault on
// its sandbox, until its time was up, or the end of its lease, which its owner gave back.
func (v *Evidence) lostAfter(e *Entry) bool {
	late := *e
	late.Ended = e.Began.Add(e.Timeout)
	return e.Lease != "" || v.onPod(&late) || v.unrecorded(&late)
}

// onOnePod are the faults that nobody else has to notice.
var onOnePod = []FaultKind{StopRunner, KillRunner, DeletePod, DeleteClaim}

// amid finds a fault whose time and aftermath overlap with an entry's, unless it is on
// another sandbox.
func (v *Evidence) amid(e *Entry) bool {
	return slices.ContainsFunc(v.Faults, func(f Fault) bool {
		near := !slices.Contains(onOnePod, f.Kind) || e.Claim == "" || slices.Contains(f.Targets, e.Claim)
		return near && f.At.Before(e.Ended) && f.Until.Add(aftermath).After(e.Began)
	})
}

// blinding are the faults while which nothing can be written down: the API server is
// away, or the sandbox cannot be told whose it is. They have their aftermath, too:
// containerd is at its own start for a while, and a channel that is to be cut after some
// bytes is cut later than the fault was made.
var blinding = slices.Concat(underChannels, []FaultKind{CutExecs, CutExecsAt})

// unrecorded finds the death of a broker before it can have written down that the
// entry's sandbox is held, and before the entry's end. Which broker that has to be is
// known of a run alone: a lease's programs come over any.
func (v *Evidence) unrecorded(e *Entry) bool {
	if e.Held.IsZero() {
		return false
	}
	by := ""
	if e.Lease == "" {
		by = v.Told[e.Exec].By
	}
	concerns := func(f Fault) bool { return f.Broker == "" || by == "" || f.Broker == by }
	until := e.Held.Add(recordedWithin)
	for _, f := range v.Faults {
		if end := f.Until.Add(aftermath); slices.Contains(blinding, f.Kind) && concerns(f) && f.At.Before(until) && end.After(e.Held) && end.After(until) {
			until = end
		}
	}
	if last := e.Held.Add(blindAtMost); until.After(last) {
		until = last
	}
	return slices.ContainsFunc(v.Faults, func(f Fault) bool {
		return (f.Kind == KillBroker || f.Kind == KillBrokers) && concerns(f) &&
			f.At.After(e.Held.Add(-time.Second)) && f.At.Before(until) && f.At.Before(e.Ended)
	})
}
