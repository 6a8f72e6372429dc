package chaos

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// leastComplete is the part of all programs that must end as the seed says, with all of
// their output, whatever is broken.
const leastComplete = 0.8

// leastStarted is the part of all calls of which something must come.
const leastStarted = 0.4

// clock is how moments are written.
const clock = "15:04:05.000"

// Charge is what a verdict accuses the broker of.
type Charge string

// The charges.
const (
	WrongEnding  Charge = "wrong ending"
	NoEnding     Charge = "no ending"
	TwoEndings   Charge = "two endings"
	FalseSuccess Charge = "exit 0 that was none"
	WrongBytes   Charge = "wrong bytes"
	LostBytes    Charge = "lost bytes"
	LostForNone  Charge = "lost without a fault"
	RanTwice     Charge = "ran twice"
	WasRefused   Charge = "refused without a fault"
	TooFew       Charge = "too few complete"
	Leak         Charge = "left over"
)

// Violation is one thing that must not have happened.
type Violation struct {
	Charge Charge
	What   string
}

func (v Violation) String() string { return string(v.Charge) + ": " + v.What }

// Verdict is what the evidence amounts to.
type Verdict struct {
	Violations []Violation
	// Started counts the programs that a caller had word of, and those that a broker
	// started without; Complete those of them that ended as they must, with all bytes.
	Started, Complete int
	// Endings counts the programs by what became of them.
	Endings map[string]int
	// Bytes is how many bytes of output were held against what must have come.
	Bytes int64
}

// judgement is a verdict in the making.
type judgement struct {
	*Evidence
	Verdict
}

// Judge holds what happened against what must have happened.
func Judge(e *Evidence) Verdict {
	j := judgement{Evidence: e, Verdict: Verdict{Endings: map[string]int{}, Started: e.Abandoned}}
	for i := range e.Entries {
		j.entry(&e.Entries[i])
	}
	for id, told := range e.Told {
		if len(told.Endings) > 1 {
			j.accuse(TwoEndings, "exec %s in %s: brokers told %s", id, told.Claim, strings.Join(told.Endings, " and "))
		}
	}
	for _, id := range e.Twice {
		j.accuse(RanTwice, "%s", id)
	}
	for _, what := range e.Left {
		j.accuse(Leak, "%s", what)
	}
	if j.Started > 0 && float64(j.Complete) < leastComplete*float64(j.Started) {
		j.accuse(TooFew, "%d of %d", j.Complete, j.Started)
	}
	if all := len(e.Entries); float64(j.Started) < leastStarted*float64(all) {
		j.accuse(TooFew, "%d of %d calls started something", j.Started, all)
	}
	slices.SortFunc(j.Violations, func(a, b Violation) int { return strings.Compare(a.String(), b.String()) })
	return j.Verdict
}

func (j *judgement) accuse(c Charge, format string, args ...any) {
	j.Violations = append(j.Violations, Violation{c, fmt.Sprintf(format, args...)})
}

// accuseOf accuses of what happened to one program.
func (j *judgement) accuseOf(e *Entry, c Charge, format string, args ...any) {
	where := e.Claim
	if where == "" {
		where = "a sandbox that is not known"
	}
	j.accuse(c, "%s (%s, must be %s) in %s from %s to %s: %s", e.ID, e.Language, e.wanted(), where,
		e.Began.Format(clock), e.Ended.Format(clock), fmt.Sprintf(format, args...))
}

func (j *judgement) entry(e *Entry) {
	j.Bytes += e.Stdout.Bytes + e.Stderr.Bytes
	j.count(e)
	if e.Success && (e.Reason != wire.ReasonExited || e.Code != 0) {
		j.accuseOf(e, FalseSuccess, "the call returned no error")
	}
	for name, d := range map[string]Delivery{"stdout": e.Stdout, "stderr": e.Stderr} {
		if d.WrongAt >= 0 {
			j.accuseOf(e, WrongBytes, "%s at offset %d", name, d.WrongAt)
		}
	}
	if e.Stdout.Bytes > size(e.Program.Stdout) || e.Stderr.Bytes > size(e.Program.Stderr) {
		j.accuseOf(e, WrongBytes, "more than it writes: %d and %d bytes", e.Stdout.Bytes, e.Stderr.Bytes)
	}
	switch e.Outcome {
	case Ended:
		j.ended(e)
	case Refused:
		if !j.amid(e) {
			j.accuseOf(e, WasRefused, "%s", e.Err)
		}
	case StartUnknown:
		if !j.amid(e) {
			j.accuseOf(e, NoEnding, "%s: %s", e.Outcome, e.Err)
		}
	case Unconfirmed:
		j.unconfirmed(e)
	case Gone, NoLease:
		if !j.onPod(e) && !j.unrecorded(e) {
			j.accuseOf(e, NoEnding, "%s: %s", e.Outcome, e.Err)
		}
	default:
		j.accuseOf(e, NoEnding, "%s: %s", e.Outcome, e.Err)
	}
}

// ended judges an ending.
func (j *judgement) ended(e *Entry) {
	n := e.Ending
	excused := j.onPod(e) || j.unrecorded(e) || j.outlasted(e)
	switch {
	case n.Reason == wire.ReasonLost && !excused:
		j.accuseOf(e, LostForNone, "%s: %s", n.Cause, n.Message)
	case n.Reason == wire.ReasonLost:
	case n.Reason == wire.ReasonExited && n.ExitCode == 0 && (e.Reason != wire.ReasonExited || e.Code != 0):
		j.accuseOf(e, FalseSuccess, "its ending says exit 0")
	case !e.asWanted():
		j.accuseOf(e, WrongEnding, "%s, exit code %d, signal %q: %s", n.Reason, n.ExitCode, n.Signal, n.Message)
	case !n.Complete && !excused:
		j.accuseOf(e, LostBytes, "not complete: %d and %d bytes came, %s", e.Stdout.Bytes, e.Stderr.Bytes, n.Message)
	}
	if n.Complete && (uint64(e.Stdout.Bytes) != n.StdoutBytes || uint64(e.Stderr.Bytes) != n.StderrBytes) {
		j.accuseOf(e, LostBytes, "complete, but %d and %d bytes came of %d and %d", e.Stdout.Bytes, e.Stderr.Bytes, n.StdoutBytes, n.StderrBytes)
	}
	if n.Complete && !e.waits() && (e.Stdout.Bytes < size(e.Program.Stdout) || e.Stderr.Bytes < size(e.Program.Stderr)) {
		j.accuseOf(e, LostBytes, "complete, but %d and %d bytes came of %d and %d that it writes",
			e.Stdout.Bytes, e.Stderr.Bytes, size(e.Program.Stdout), size(e.Program.Stderr))
	}
}

// unconfirmed judges a cancel of which its caller heard no more. A fault excuses that, and
// not that the program ran on: what brokers told of its end must be the cancel.
func (j *judgement) unconfirmed(e *Entry) {
	if !j.amid(e) {
		j.accuseOf(e, NoEnding, "%s: %s", e.Outcome, e.Err)
	}
	for _, told := range j.Told[e.Exec].Endings {
		reason, _, _ := strings.Cut(told, " ")
		switch {
		case wire.Reason(reason) == wire.ReasonCanceled || j.muted(e):
		case wire.Reason(reason) != wire.ReasonLost:
			j.accuseOf(e, WrongEnding, "canceled, which nobody confirmed; brokers told %s", told)
		case !j.lostAfter(e):
			j.accuseOf(e, LostForNone, "canceled, which nobody confirmed; brokers told %s", told)
		}
	}
}

// count notes what became of a program.
func (j *judgement) count(e *Entry) {
	what := string(e.Outcome)
	if e.Outcome == Ended {
		what = string(e.Ending.Reason)
		if e.Ending.Cause != "" {
			what += " (" + string(e.Ending.Cause) + ")"
		}
	}
	j.Endings[what]++
	if e.Outcome == Refused || e.Outcome == NoLease || e.Outcome == StartUnknown {
		return // if it started it is one of the abandoned
	}
	j.Started++
	if e.Outcome == Ended && e.asWanted() && e.Ending.Complete {
		j.Complete++
	}
}

// asWanted reports whether an entry's ending is the one that the seed says.
func (e *Entry) asWanted() bool {
	n := e.Ending
	switch {
	case n.Reason != e.Reason:
		return false
	case n.Reason == wire.ReasonExited:
		return n.ExitCode == e.Code
	case n.Reason == wire.ReasonSignaled:
		return n.Signal == e.Signal
	}
	return true
}

// wanted is how the program must end, for people.
func (p Program) wanted() string {
	switch p.Reason {
	case wire.ReasonExited:
		return fmt.Sprintf("exit %d", p.Code)
	case wire.ReasonSignaled:
		return p.Signal
	}
	return string(p.Reason)
}
