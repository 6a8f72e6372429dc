package broker

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// A runner may be hostile. What it says of its own exec is passed on, once it is
// something that can be: of bounded length, without control characters, and with
// names from a list, since names become labels of metrics, which are kept for ever.

// maxHearsay bounds a text of a runner that is passed on, in bytes.
const maxHearsay = 1 << 10

// endings are the reasons of an ending that a runner may give: how a sandbox died is
// not its to say.
var endings = []wire.Reason{
	wire.ReasonExited, wire.ReasonSignaled, wire.ReasonTimeout, wire.ReasonCanceled, wire.ReasonOOM, wire.ReasonOutputLimit,
}

// refusals are the codes with which a runner may refuse. What runs in a sandbox shall
// not make its owner believe that, say, a token is not valid.
var refusals = []wire.Code{
	wire.CodeInvalid, wire.CodeNotFound, wire.CodeConflict, wire.CodeExhausted, wire.CodeUnavailable, wire.CodeInternal,
}

// refusalReasons narrow a refusal; a client acts on some of the others.
var refusalReasons = []string{wire.ReasonSuperseded, wire.ReasonConfirmed, channel.ReasonBoundElsewhere}

// signalName is what a signal is called; those without a name have none.
var signalName = regexp.MustCompile(`^(SIG[A-Z0-9]{1,10})?$`)

// maxExitCode is the largest code that a program can exit with.
const maxExitCode = 255

// checkEnding says what is wrong with a runner's ending, of which sent bytes of each
// output were passed on, by FD; nil: it can be true.
func checkEnding(n *wire.Ending, sent [3]uint64) error {
	switch {
	case !slices.Contains(endings, n.Reason):
		return fmt.Errorf("sent an unknown reason of ending")
	case n.ExitCode < 0 || n.ExitCode > maxExitCode:
		return fmt.Errorf("sent an exit code of %d", n.ExitCode)
	case !signalName.MatchString(n.Signal):
		return fmt.Errorf("sent a signal that is none")
	}
	for fd, wrote := range map[wire.FD]uint64{wire.Stdout: n.StdoutBytes, wire.Stderr: n.StderrBytes} {
		if wrote < sent[fd] || wrote > math.MaxInt64 {
			return fmt.Errorf("sent %d bytes of %s and an ending of %d", sent[fd], fd, wrote)
		}
	}
	return nil
}

// measured bounds a runner's account of an exec by what the broker can know: nothing
// is negative, and no program ran for longer than the broker has waited for it. longest
// 0: it did not see the start.
func measured(u *wire.Usage, longest time.Duration) {
	if u == nil {
		return
	}
	if longest > 0 {
		u.WallMS = min(u.WallMS, longest.Milliseconds())
	}
	u.WallMS, u.UserMS, u.SystemMS, u.MaxRSSBytes = max(0, u.WallMS), max(0, u.UserMS), max(0, u.SystemMS), max(0, u.MaxRSSBytes)
}

// checkRefusal makes a runner's error one that its client can be told.
func checkRefusal(e *wire.Error) *wire.Error {
	told := wire.Error{Code: e.Code, Message: plain(e.Message), Field: plain(e.Field), Limit: e.Limit}
	if !slices.Contains(refusals, e.Code) {
		told.Code = wire.CodeInternal
	}
	if slices.Contains(refusalReasons, e.Reason) {
		told.Reason = e.Reason
	}
	return &told
}

// plain is a text without what steers a terminal, cut to maxHearsay.
func plain(s string) string {
	if len(s) > maxHearsay {
		s = s[:maxHearsay]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) { // those that reorder text, too
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

// hostileFate is that of a sandbox whose runner breaks the protocol: it is not ours any
// more.
func hostileFate(what string) Fate {
	return Fate{Reason: wire.ReasonLost, Cause: wire.CauseRunnerKilled, Message: "the sandbox's runner " + what}
}

// isBound reports whether the runner has said that the sandbox is this lease's.
func (l *lease) isBound() bool {
	select {
	case <-l.bound:
		return true
	default:
		return false
	}
}

// boundElsewhere ends a lease whose runner says that the sandbox is another's. It
// reports whether that is a lie: the runner has said before that it is this one's, and
// a sandbox does not change hands. Left alone, as another broker's is, it would live on.
func (l *lease) boundElsewhere() (lie bool) {
	if lie = l.isBound(); lie {
		l.end(hostileFate("took its word back"))
	} else {
		l.disown()
	}
	return lie
}
