package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

var (
	noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	at   = func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
)

// good is an entry with nothing to blame: it ran from 10 to 20 and exited as it must.
func good() Entry {
	p := Program{ID: "p", Language: "shell", Stdout: 10, Stderr: 2, Steps: 1, Reason: wire.ReasonExited}
	return Entry{
		Program: p, Began: at(10), Held: at(11), Ended: at(20), Claim: "claim-1",
		Outcome: Ended, Success: true,
		Ending: &wire.Ending{Reason: wire.ReasonExited, StdoutBytes: 160, StderrBytes: 32, Complete: true},
		Stdout: Delivery{Bytes: 160, WrongAt: -1}, Stderr: Delivery{Bytes: 32, WrongAt: -1},
	}
}

// lost makes an entry one that was lost after half of its output.
func lost(e *Entry) {
	e.Success = false
	e.Ending = &wire.Ending{Reason: wire.ReasonLost, Cause: wire.CauseDeleted, StdoutBytes: 80}
	e.Stdout.Bytes, e.Stderr.Bytes = 80, 0
}

func ends(o Outcome) func(*Entry) {
	return func(e *Entry) { e.Outcome, e.Ending, e.Success = o, nil, false }
}

// fault is one from a moment to another.
func fault(k FaultKind, from, to int, targets ...string) Fault {
	return Fault{Step: Step{Kind: k}, At: at(from), Until: at(to), Targets: targets}
}

// onBroker makes a fault one on a broker.
func onBroker(name string, f Fault) Fault {
	f.Broker = name
	return f
}

func TestWhatIsNoViolation(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Entry)
		faults []Fault
	}{
		"as the seed says": {func(*Entry) {}, nil},
		"another exit code": {func(e *Entry) {
			e.Code, e.Ending.ExitCode, e.Success = 3, 3, false
		}, nil},
		"a signal": {func(e *Entry) {
			e.Reason, e.Signal, e.Success = wire.ReasonSignaled, "SIGTERM", false
			e.Ending.Reason, e.Ending.Signal = wire.ReasonSignaled, "SIGTERM"
		}, nil},
		"a timeout with the output that there was": {func(e *Entry) {
			e.Reason, e.Success = wire.ReasonTimeout, false
			e.Ending.Reason, e.Ending.StdoutBytes, e.Stdout.Bytes = wire.ReasonTimeout, 48, 48
		}, nil},
		"lost with its pod":           {lost, []Fault{fault(DeletePod, 15, 16, "claim-1")}},
		"lost with an evicted pod":    {lost, []Fault{fault(Drain, 15, 40, "claim-0", "claim-1")}},
		"lost before it was recorded": {lost, []Fault{fault(KillBroker, 12, 15)}},
		"lost, since nothing could be recorded": {lost, []Fault{
			fault(RestartAPIServer, 10, 16), fault(KillBroker, 17, 18),
		}},
		"lost with its broker while its channel was cut": {lost, []Fault{fault(CutExecsAt, 11, 11), fault(KillBroker, 17, 18)}},
		"lost with a containerd that does not come back": {func(e *Entry) {
			lost(e)
			e.Ended, e.Ending.Cause = at(80), wire.CauseChannelLost
		}, []Fault{fault(RestartContainerd, 15, 76)}},
		"gone with its claim":                         {ends(Gone), []Fault{fault(DeleteClaim, 15, 15, "claim-1")}},
		"no answer while connections are cut":         {ends(StartUnknown), []Fault{fault(CutClients, 15, 15)}},
		"refused in the aftermath":                    {ends(Refused), []Fault{fault(KillBrokers, 1, 3)}},
		"refused by a lease that is over":             {ends(NoLease), []Fault{fault(KillRunner, 12, 12, "claim-1")}},
		"a cancel that nobody confirmed amid a fault": {ends(Unconfirmed), []Fault{fault(RestartAPIServer, 15, 25)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := good()
			tc.change(&e)
			v := Judge(&Evidence{Entries: append(four(), e), Faults: tc.faults})
			require.Empty(t, v.Violations)
		})
	}
}

// What brokers told of a program whose caller canceled it, and heard no more.
func TestACancelThatNobodyConfirmed(t *testing.T) {
	t.Parallel()
	cut, deleted := fault(CutClients, 15, 15), fault(DeletePod, 40, 41, "claim-1")
	for name, tc := range map[string]struct {
		told   []string
		faults []Fault
		lease  string
		want   []Charge
	}{
		"nothing":                      {nil, []Fault{cut}, "", nil},
		"the cancel":                   {[]string{"canceled 0"}, []Fault{cut}, "", nil},
		"the cancel, in calm":          {[]string{"canceled 0"}, nil, "", []Charge{NoEnding}},
		"it ran on to its timeout":     {[]string{"timeout 0"}, []Fault{cut}, "", []Charge{WrongEnding}},
		"it ended by itself":           {[]string{"exited 0"}, []Fault{cut, deleted}, "", []Charge{WrongEnding}},
		"lost for no reason":           {[]string{"lost deleted 0"}, []Fault{cut}, "", []Charge{LostForNone}},
		"lost with another's pod":      {[]string{"lost deleted 0"}, []Fault{cut, fault(DeletePod, 15, 15, "claim-2")}, "", []Charge{LostForNone}},
		"lost with its pod, later":     {[]string{"lost deleted 0"}, []Fault{cut, deleted}, "", nil},
		"lost when its time was up":    {[]string{"lost deleted 0"}, []Fault{cut, fault(DeletePod, 80, 81, "claim-1")}, "", []Charge{LostForNone}},
		"lost with the lease":          {[]string{"lost deleted 0"}, []Fault{cut}, "lease-1", nil},
		"it ran on in a lease":         {[]string{"timeout 0"}, []Fault{cut}, "lease-1", []Charge{WrongEnding}},
		"it could not be told":         {[]string{"timeout 0"}, []Fault{fault(RestartAPIServer, 15, 46)}, "", nil},
		"it could be told in the end":  {[]string{"timeout 0"}, []Fault{fault(RestartAPIServer, 15, 40)}, "", []Charge{WrongEnding}},
		"what could not be told later": {[]string{"timeout 0"}, []Fault{cut, fault(RestartAPIServer, 25, 60)}, "", []Charge{WrongEnding}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := good()
			ends(Unconfirmed)(&e)
			e.Reason, e.Exec, e.Lease, e.Timeout = wire.ReasonCanceled, "x", tc.lease, time.Minute
			v := Judge(&Evidence{Entries: append(four(), e), Faults: tc.faults, Told: map[string]Told{"x": {Claim: "claim-1", By: "broker-0", Endings: tc.told}}})
			var got []Charge
			for _, one := range v.Violations {
				got = append(got, one.Charge)
			}
			require.Equal(t, tc.want, got, v.Violations)
		})
	}
}

// four are good entries that one more, bad or not, does not make too few.
func four() []Entry { return []Entry{good(), good(), good(), good()} }

func TestViolations(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Entry)
		faults []Fault
		want   Charge
	}{
		"a wrong exit code": {func(e *Entry) { e.Code, e.Ending.ExitCode, e.Success = 3, 7, false }, nil, WrongEnding},
		"a wrong signal": {func(e *Entry) {
			e.Reason, e.Signal, e.Success = wire.ReasonSignaled, "SIGTERM", false
			e.Ending.Reason, e.Ending.Signal = wire.ReasonSignaled, "SIGKILL"
		}, nil, WrongEnding},
		"canceled by nobody": {func(e *Entry) { e.Success, e.Ending.Reason = false, wire.ReasonCanceled }, []Fault{fault(CutClients, 15, 15)}, WrongEnding},
		"a wrong ending in spite of a fault": {func(e *Entry) {
			e.Success, e.Ending.Reason = false, wire.ReasonTimeout
		}, []Fault{fault(DeletePod, 15, 15, "claim-1")}, WrongEnding},
		"a lost byte": {func(e *Entry) { e.Stdout.Bytes-- }, nil, LostBytes},
		"a lost byte that the ending does not count":     {func(e *Entry) { e.Stdout.Bytes--; e.Ending.StdoutBytes-- }, nil, LostBytes},
		"a lost byte of stderr, with a fault on the pod": {func(e *Entry) { e.Stderr.Bytes-- }, []Fault{fault(DeletePod, 15, 15, "claim-1")}, LostBytes},
		"a lost byte of a timeout": {func(e *Entry) {
			e.Reason, e.Success, e.Ending.Reason = wire.ReasonTimeout, false, wire.ReasonTimeout
			e.Stdout.Bytes--
		}, nil, LostBytes},
		"not complete without a fault":      {func(e *Entry) { e.Ending.Complete = false }, []Fault{fault(RestartKubelet, 12, 15)}, LostBytes},
		"a wrong byte":                      {func(e *Entry) { e.Stdout.WrongAt = 17 }, []Fault{fault(DeletePod, 15, 15, "claim-1")}, WrongBytes},
		"a byte too many":                   {func(e *Entry) { e.Stdout.Bytes++; e.Ending.StdoutBytes++ }, nil, WrongBytes},
		"exit 0 of a program that was lost": {func(e *Entry) { e.Code = 3 }, []Fault{fault(DeletePod, 15, 15, "claim-1")}, FalseSuccess},
		"success without an ending": {func(e *Entry) {
			ends(Gone)(e)
			e.Code, e.Success = 3, true
		}, []Fault{fault(DeletePod, 15, 15, "claim-1")}, FalseSuccess},
		"lost without a fault":             {lost, nil, LostForNone},
		"lost with a fault on another pod": {lost, []Fault{fault(DeletePod, 15, 15, "claim-2")}, LostForNone},
		"lost before its pod was deleted":  {lost, []Fault{fault(DeletePod, 21, 22, "claim-1")}, LostForNone},
		"lost in a sandbox nobody knows":   {func(e *Entry) { lost(e); e.Claim = "" }, []Fault{fault(DeletePod, 15, 15, "")}, LostForNone},
		"lost with a restarted containerd": {lost, []Fault{fault(RestartContainerd, 12, 15)}, LostForNone},
		"lost with a restarted kubelet":    {lost, []Fault{fault(RestartKubelet, 12, 15, "claim-2")}, LostForNone},
		"its channel lost while containerd was away for a moment": {func(e *Entry) {
			lost(e)
			e.Ended, e.Ending.Cause = at(80), wire.CauseChannelLost
		}, []Fault{fault(RestartContainerd, 15, 74)}, LostForNone},
		"lost with a stopped runner":            {lost, []Fault{fault(StopRunner, 12, 15, "claim-1")}, LostForNone},
		"lost long after it was recorded":       {lost, []Fault{fault(KillBroker, 18, 19)}, LostForNone},
		"lost before its broker was killed":     {lost, []Fault{fault(CutExecs, 11, 11), fault(KillBroker, 21, 22)}, LostForNone},
		"lost with another broker than its own": {func(e *Entry) { lost(e); e.Exec = "x" }, []Fault{onBroker("broker-1", fault(KillBroker, 12, 13))}, LostForNone},
		"lost after half a minute of cuts": {func(e *Entry) { lost(e); e.Ended = at(60) }, []Fault{
			fault(CutExecs, 12, 12), fault(CutExecs, 20, 20), fault(CutExecs, 28, 28), fault(CutExecs, 36, 36), fault(KillBroker, 42, 43),
		}, LostForNone},
		"lost long after it could be recorded": {lost, []Fault{fault(RestartAPIServer, 2, 4), fault(KillBroker, 18, 19)}, LostForNone},
		"gone without a fault":                 {ends(Gone), []Fault{fault(CutExecs, 12, 12)}, NoEnding},
		"a lease that is over for no reason":   {ends(NoLease), []Fault{fault(KillBrokers, 5, 9)}, NoEnding},
		"no answer in calm":                    {ends(StartUnknown), nil, NoEnding},
		"refused in calm":                      {ends(Refused), []Fault{fault(CutClients, 30, 30)}, WasRefused},
		"a cancel that is not heard in calm":   {ends(Unconfirmed), nil, NoEnding},
		"refused by a fault on another's pod":  {ends(Refused), []Fault{fault(DeletePod, 15, 15, "claim-2")}, WasRefused},
		"unreachable":                          {ends(Unreachable), []Fault{fault(CutClients, 12, 12)}, NoEnding},
		"any other error":                      {ends(Failed), []Fault{fault(DeletePod, 15, 15, "claim-1")}, NoEnding},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := good()
			tc.change(&e)
			v := Judge(&Evidence{Entries: append(four(), e), Faults: tc.faults, Told: map[string]Told{"x": {Claim: "claim-1", By: "broker-0"}}})
			require.NotEmpty(t, v.Violations)
			for _, got := range v.Violations {
				require.Equal(t, tc.want, got.Charge, got.What)
			}
		})
	}
}

func TestViolationsOfTheWhole(t *testing.T) {
	t.Parallel()
	few := append(four(), good(), good(), good(), good(), good(), good())
	for i := range 3 {
		lost(&few[i])
	}
	turned := good()
	ends(Refused)(&turned)
	for name, tc := range map[string]struct {
		evidence Evidence
		want     Violation
	}{
		"two endings": {Evidence{Told: map[string]Told{"x": {Claim: "claim-1", Endings: []string{"exited 0", "lost 0"}}, "y": {Endings: []string{"exited 0"}}}},
			Violation{TwoEndings, "exec x in claim-1: brokers told exited 0 and lost 0"}},
		"ran twice":                             {Evidence{Twice: []string{"p"}}, Violation{RanTwice, "p"}},
		"a leak":                                {Evidence{Left: []string{"claim claim-1"}}, Violation{Leak, "claim claim-1"}},
		"too few, since too many are abandoned": {Evidence{Entries: four(), Abandoned: 2}, Violation{TooFew, "4 of 6"}},
		"none that started":                     {Evidence{Entries: []Entry{turned, turned}, Faults: []Fault{fault(KillBrokers, 12, 15)}}, Violation{TooFew, "0 of 2 calls started something"}},
		"too few":                               {Evidence{Entries: few, Faults: []Fault{fault(Drain, 15, 16, "claim-1")}}, Violation{TooFew, "7 of 10"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, []Violation{tc.want}, Judge(&tc.evidence).Violations)
		})
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	refused, unknown, gone, died := good(), good(), good(), good()
	ends(Refused)(&refused)
	ends(StartUnknown)(&unknown)
	ends(Gone)(&gone)
	lost(&died)
	v := Judge(&Evidence{Entries: append(four(), refused, unknown, gone, died)})
	require.Equal(t, map[string]int{"exited": 4, "refused": 1, "start unknown": 1, "gone": 1, "lost (deleted)": 1}, v.Endings)
	require.Equal(t, 6, v.Started, "what was refused did not start")
	require.Equal(t, 4, v.Complete)
	require.EqualValues(t, 7*(160+32)+80, v.Bytes)
}
