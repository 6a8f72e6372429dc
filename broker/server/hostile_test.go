package server_test

import (
	"math"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// exited is an ending that would be true of a program that printed n bytes.
func exited(n uint64) wire.Ending {
	return wire.Ending{Reason: wire.ReasonExited, StdoutBytes: n, Complete: true}
}

// lost requires that the broker took the runner for what it is, after so much output.
func lost(stdout string) func(*testing.T, told) {
	return func(t *testing.T, got told) {
		require.NoError(t, got.err)
		require.Equal(t, wire.ReasonLost, got.ending.Reason, got.ending.Message)
		require.Equal(t, wire.CauseRunnerKilled, got.ending.Cause)
		require.Contains(t, got.ending.Message, "the sandbox's runner")
		require.False(t, got.ending.Complete)
		require.Equal(t, stdout, got.stdout)
	}
}

// ended requires an ending that exists, whatever its truth.
func ended(want func(*testing.T, sandboxclient.Ending)) func(*testing.T, told) {
	return func(t *testing.T, got told) {
		require.NoError(t, got.err)
		want(t, *got.ending)
	}
}

// refused requires an error with that code, and nothing that a client acts on.
func refused(code wire.Code) func(*testing.T, told) {
	return func(t *testing.T, got told) {
		e := wire.AsError(got.err)
		require.NotNil(t, e, "%v", got.err)
		require.Equal(t, code, e.Code)
		require.Empty(t, e.Reason)
		require.Zero(t, e.RetryAfterMS)
		require.Less(t, len(e.Message), 2048)
		require.NotContains(t, e.Message, "\x1b")
	}
}

type lie struct {
	tell  func(*hostile.Exec)
	want  func(*testing.T, told)
	stdin string
}

// after is a lie that follows an answer and three bytes of output.
func after(tell func(*hostile.Exec)) func(*hostile.Exec) {
	return func(e *hostile.Exec) {
		e.Answer()
		e.Print(0, "abc")
		tell(e)
		e.AwaitEnd()
	}
}

// ending is a lie about the end of a program that printed three bytes.
func ending(n wire.Ending) func(*hostile.Exec) {
	return after(func(e *hostile.Exec) { e.Exit(n) })
}

// frame is a lie in one frame.
func frame(f wire.Frame) func(*hostile.Exec) {
	return after(func(e *hostile.Exec) { e.Send(f) })
}

var lies = map[string]lie{
	// Offsets.
	"output that goes back":    {tell: after(func(e *hostile.Exec) { e.Print(1, "x") }), want: lost("abc")},
	"output behind a gap":      {tell: after(func(e *hostile.Exec) { e.Print(7, "x") }), want: lost("abc")},
	"output from an absurdity": {tell: after(func(e *hostile.Exec) { e.Print(1<<63, "x") }), want: lost("abc")},
	"output past all numbers":  {tell: after(func(e *hostile.Exec) { e.Print(math.MaxUint64, "x") }), want: lost("abc")},
	"output that is none":      {tell: after(func(e *hostile.Exec) { e.Print(3, "") }), want: lost("abc")},
	"output before the answer": {tell: func(e *hostile.Exec) { e.Print(0, "abc"); e.AwaitEnd() }, want: lost("")},
	"a gap that goes back":     {tell: frame(wire.Discarded{FD: wire.Stdout, To: 2}.Frame(0)), want: lost("abc")},
	"a gap in the input":       {tell: frame(wire.Discarded{FD: wire.Stdin, To: 9}.Frame(0)), want: lost("abc")},
	"a gap to an absurdity":    {tell: frame(wire.Frame{Kind: wire.KindDiscarded, Offset: math.MaxUint64, Payload: []byte{1}}), want: lost("abc")},
	"a gap that no output has": {tell: frame(wire.Frame{Kind: wire.KindDiscarded, Offset: 9}), want: lost("abc")},
	"a gap of nearly all bytes": {tell: after(func(e *hostile.Exec) {
		e.Send(wire.Discarded{FD: wire.Stdout, To: math.MaxInt64}.Frame(0))
		e.Exit(exited(math.MaxInt64))
	}), want: ended(func(t *testing.T, n sandboxclient.Ending) { require.False(t, n.Complete) })},
	"output behind the last byte": {tell: after(func(e *hostile.Exec) {
		e.Send(wire.Discarded{FD: wire.Stdout, To: math.MaxInt64}.Frame(0))
		e.Print(math.MaxInt64, "x")
		e.Exit(exited(3))
	}), want: ended(func(t *testing.T, n sandboxclient.Ending) { require.Equal(t, wire.ReasonLost, n.Reason) })},
	"input acknowledged that never came": {tell: frame(wire.Window{FD: wire.Stdin, Acked: 100, Limit: 200}.Frame(0)), stdin: "in", want: lost("abc")},
	"input acknowledged to the end":      {tell: frame(wire.Window{FD: wire.Stdin, Acked: math.MaxUint64, Limit: math.MaxUint64}.Frame(0)), stdin: "in", want: lost("abc")},
	"credit without a bound":             {tell: frame(wire.Frame{Kind: wire.KindWindow, Payload: []byte{0, 255, 255, 255, 255, 255, 255, 255, 255}}), stdin: "in", want: lost("abc")},
	"credit below what was taken":        {tell: frame(wire.Frame{Kind: wire.KindWindow, Offset: 9, Payload: make([]byte, 9)}), stdin: "in", want: lost("abc")},
	"credit for an output":               {tell: frame(wire.Window{FD: wire.Stdout, Limit: 100}.Frame(0)), want: lost("abc")},

	// Endings.
	"two endings": {tell: after(func(e *hostile.Exec) { e.Exit(exited(3)); e.Exit(wire.Ending{Reason: wire.ReasonOOM}) }), want: ended(func(t *testing.T, n sandboxclient.Ending) {
		require.Equal(t, wire.ReasonExited, n.Reason, "the first one counts")
		require.True(t, n.Complete)
	})},
	"output after the ending":        {tell: after(func(e *hostile.Exec) { e.Exit(exited(3)); e.Print(3, "late") }), want: ended(func(t *testing.T, n sandboxclient.Ending) { require.EqualValues(t, 3, n.StdoutBytes) })},
	"an ending of less than came":    {tell: ending(exited(1)), want: lost("abc")},
	"an ending of more than came":    {tell: ending(exited(1000)), want: ended(func(t *testing.T, n sandboxclient.Ending) { require.False(t, n.Complete) })},
	"an ending of all bytes":         {tell: ending(exited(math.MaxUint64)), want: lost("abc")},
	"an ending before the answer":    {tell: func(e *hostile.Exec) { e.Exit(exited(0)); e.AwaitEnd() }, want: lost("")},
	"a made-up reason":               {tell: ending(wire.Ending{Reason: "victory", StdoutBytes: 3}), want: lost("abc")},
	"no reason":                      {tell: ending(wire.Ending{StdoutBytes: 3}), want: lost("abc")},
	"its own sandbox's death":        {tell: ending(wire.Ending{Reason: wire.ReasonLost, Cause: wire.CauseDeleted, StdoutBytes: 3}), want: lost("abc")},
	"a cause that is not its to say": {tell: ending(wire.Ending{Reason: wire.ReasonExited, Cause: wire.CauseEvicted, StdoutBytes: 3}), want: ended(func(t *testing.T, n sandboxclient.Ending) { require.Empty(t, n.Cause) })},
	"an exit code that reads as 0":   {tell: ending(wire.Ending{Reason: wire.ReasonExited, ExitCode: 256, StdoutBytes: 3}), want: lost("abc")},
	"a negative exit code":           {tell: ending(wire.Ending{Reason: wire.ReasonExited, ExitCode: -1, StdoutBytes: 3}), want: lost("abc")},
	"a signal that steers terminals": {tell: ending(wire.Ending{Reason: wire.ReasonSignaled, Signal: "\x1b[2J", StdoutBytes: 3}), want: lost("abc")},
	"a signal of a page":             {tell: ending(wire.Ending{Reason: wire.ReasonSignaled, Signal: "SIG" + strings.Repeat("X", 4096), StdoutBytes: 3}), want: lost("abc")},
	"a message of 200 KB":            {tell: ending(wire.Ending{Reason: wire.ReasonOOM, Message: strings.Repeat("\x1b[2J", 20<<10), StdoutBytes: 3}), want: ended(func(t *testing.T, n sandboxclient.Ending) { require.Equal(t, wire.ReasonOOM, n.Reason) })},
	"a message beyond all limits":    {tell: ending(wire.Ending{Reason: wire.ReasonOOM, Message: strings.Repeat("m", wire.MaxControl+1), StdoutBytes: 3}), want: lost("abc")},
	"usage of a century":             {tell: ending(wire.Ending{Reason: wire.ReasonExited, StdoutBytes: 3, Usage: &wire.Usage{WallMS: math.MaxInt64}}), want: ended(func(*testing.T, sandboxclient.Ending) {})},
	"usage below nothing":            {tell: ending(wire.Ending{Reason: wire.ReasonExited, StdoutBytes: 3, Usage: &wire.Usage{WallMS: -1, UserMS: math.MinInt64, SystemMS: -5, MaxRSSBytes: -1}}), want: ended(func(*testing.T, sandboxclient.Ending) {})},
	"an ending that is no JSON":      {tell: frame(wire.Frame{Kind: wire.KindExit, Payload: []byte("exited")}), want: lost("abc")},
	"a number beyond numbers":        {tell: frame(wire.Frame{Kind: wire.KindExit, Payload: []byte(`{"reason":"exited","exit_code":1e400}`)}), want: lost("abc")},
	"brackets without an end":        {tell: frame(wire.Frame{Kind: wire.KindExit, Payload: []byte(strings.Repeat("[", 200<<10))}), want: lost("abc")},
	"an end without an ending": {tell: func(e *hostile.Exec) { // and then it knows nothing of it
		if e.Start.AttachOnly {
			e.Send(wire.JSONFrame(wire.KindError, 0, wire.Errorf(wire.CodeNotFound, "no such exec")))
			return
		}
		e.Answer()
		e.Print(0, "abc")
	}, want: lost("abc")},

	// Frames.
	"a frame only clients send":    {tell: frame(wire.Frame{Kind: wire.KindDone}), want: lost("abc")},
	"a frame only brokers send":    {tell: frame(wire.JSONFrame(wire.KindGoAway, 0, wire.GoAway{Reason: "go"})), want: lost("abc")},
	"a frame of no kind":           {tell: frame(wire.Frame{Kind: 0x7f}), want: lost("abc")},
	"a frame of no kind, optional": {tell: frame(wire.Frame{Kind: 0x7f, Flags: wire.FlagOptional}), want: lost("abc")},
	"an answer that is no JSON": {tell: func(e *hostile.Exec) {
		e.Send(wire.Frame{Kind: wire.KindResponse, Payload: []byte("yes")})
		e.AwaitEnd()
	}, want: lost("")},
	"a frame of 4 GB":              {tell: after(func(e *hostile.Exec) { e.Raw([]byte{0xff, 0xff, 0xff, 0xff}) }), want: lost("abc")},
	"more output than a frame has": {tell: after(func(e *hostile.Exec) { e.Print(3, strings.Repeat("x", wire.MaxData+1)) }), want: lost("abc")},
	"text instead of frames":       {tell: after(func(e *hostile.Exec) { e.Raw([]byte("Traceback (most recent call last):\n")) }), want: lost("abc")},
	"the same credit without an end": {tell: after(func(e *hostile.Exec) {
		for range 20_000 {
			e.Send(wire.Window{FD: wire.Stdin, Limit: 1}.Frame(0))
		}
		e.Exit(exited(3))
	}), want: ended(func(t *testing.T, n sandboxclient.Ending) { require.True(t, n.Complete) })},

	// Refusals.
	"an error that is none":             {tell: frame(wire.Frame{Kind: wire.KindError, Payload: []byte(`{"message":"no code"}`)}), want: lost("abc")},
	"a refusal in the edge's name":      {tell: frame(wire.JSONFrame(wire.KindError, 0, wire.Error{Code: wire.CodeUnauthenticated, Message: "who are you?"})), want: refused(wire.CodeInternal)},
	"a refusal that asks to come again": {tell: frame(wire.JSONFrame(wire.KindError, 0, wire.Error{Code: wire.CodeUnavailable, Reason: wire.ReasonMoved, RetryAfterMS: 1})), want: refused(wire.CodeUnavailable)},
	"a refusal of 200 KB":               {tell: frame(wire.JSONFrame(wire.KindError, 0, wire.Error{Code: wire.CodeInvalid, Message: strings.Repeat("\x1b", 30<<10)})), want: refused(wire.CodeInvalid)},
	"a sandbox that is another's now":   {tell: frame(wire.JSONFrame(wire.KindError, 0, wire.Error{Code: wire.CodeConflict, Reason: channel.ReasonBoundElsewhere})), want: lost("abc")},
}

// A runner that is hostile can say what it likes of its own exec. Its client gets one
// sane ending, or one error; nobody else notices, and the sandbox is destroyed.
func TestLiesEndInOneSaneEnding(t *testing.T) {
	s := newDividedSite(t, nil)
	honest := s.witness()
	base := runtime.NumGoroutine()
	for name, l := range lies {
		t.Run(name, func(t *testing.T) {
			s.t = t
			s.liars.Act(hostile.Execs(l.tell))
			var got told
			if l.stdin == "" {
				got = s.ask(nil)
			} else {
				got = s.ask(strings.NewReader(l.stdin))
			}
			l.want(t, got)
			honest.Answers(t)
		})
	}
	s.t = t
	settled(t, base)
	require.Equal(t, len(lies), s.liars.Ended(), "each lying sandbox was ended, once")
}

// Names that a runner makes up become no label: those are kept for ever.
func TestMadeUpCodesAreOneSeries(t *testing.T) {
	s := newDividedSite(t, nil)
	for i := range 20 {
		s.liars.Act(hostile.Execs(func(e *hostile.Exec) {
			e.Answer()
			e.Send(wire.JSONFrame(wire.KindError, 0, wire.Error{Code: wire.Code("code-" + strconv.Itoa(i)), Reason: "reason-" + strconv.Itoa(i)}))
			e.AwaitEnd()
		}))
		s.ask(nil)
	}
	n, err := testutil.GatherAndCount(s.metrics, "sandbox_broker_errors_total")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NotContains(t, s.log.String(), "code-1")
}

// A limit of output is the runner's to keep, and the broker's to count.
func TestARunnerThatKeepsNoOutputLimit(t *testing.T) {
	s := newDividedSite(t, hostile.Execs(after(func(e *hostile.Exec) { e.Print(3, "de"); e.Exit(exited(5)) })))
	for limit, want := range map[int64]func(*testing.T, told){
		5: ended(func(t *testing.T, n sandboxclient.Ending) { require.Equal(t, wire.ReasonExited, n.Reason) }),
		4: lost("abc"),
	} {
		got := s.askFor(sandboxclient.Code{OutputLimit: limit})
		want(t, got)
	}
}
