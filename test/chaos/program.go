package chaos

import (
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Program is one program of the workload. All of it follows from the seed.
type Program struct {
	ID       string // unique in a run of the suite, and an exec's ID
	Language string
	// Stdout and Stderr are how many records it writes, in Steps pieces of each with
	// Pause after each.
	Stdout, Stderr int64
	Steps          int
	Pause          time.Duration
	// Echo makes Stdout the input, which the client gives in the same pieces.
	Echo bool

	// Reason, Code and Signal are how it must end. With timeout and canceled it waits
	// for that after its output.
	Reason wire.Reason
	Code   int
	Signal string
	// Timeout bounds it; CancelAfter is how long after its output it is canceled.
	Timeout, CancelAfter time.Duration
}

// ample is the time given to programs that end by themselves: no fault may make them
// take so long.
const ample = 4 * time.Minute

// stdoutKey and stderrKey are the patterns' keys, of the program's number.
func (p Program) stdoutKey() pattern { return key(p.ID, "o") }
func (p Program) stderrKey() pattern { return key(p.ID, "e") }

// key is short, and of what it is for.
func key(parts ...string) pattern {
	return pattern(fmt.Sprintf("%06x", digest(parts...)&0xffffff))
}

// digest is FNV-1a of all parts.
func digest(parts ...string) uint64 {
	h := fnv.New64a()
	for _, s := range parts {
		_, _ = h.Write([]byte(s)) // it never fails
	}
	return h.Sum64()
}

// size is the bytes in so many records.
func size(records int64) int64 { return records * recordLength }

// between draws a number whose magnitude is as likely small as large.
func between(r *rand.Rand, least, most int64) int64 {
	return int64(float64(least) * math.Pow(float64(most)/float64(least), r.Float64()))
}

// pick draws one of several.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// drawProgram draws a program whose pauses last at most longest together.
func drawProgram(r *rand.Rand, id string, longest time.Duration) Program {
	p := Program{ID: id, Language: pick(r, "python", "python", "node", "shell"), Steps: 1, Reason: wire.ReasonExited, Timeout: ample}
	switch n := r.IntN(100); {
	case n < 40: // short
		p.Stdout, p.Stderr = between(r, 1, 4<<10)-1, between(r, 1, 256)-1
	case n < 60: // much output
		p.Stdout, p.Stderr = between(r, 16<<10, 256<<10), between(r, 1, 16<<10)-1
		p.Steps = 4 + r.IntN(12)
	case n < 85: // slow
		p.Stdout, p.Stderr = between(r, 64, 4<<10), between(r, 64, 1<<10)
		p.Steps = 10 + r.IntN(30)
		p.Pause = longest / time.Duration(p.Steps*(1+r.IntN(4)))
	default: // with input
		p.Echo, p.Language = true, pick(r, "python", "shell")
		p.Stdout, p.Steps = between(r, 1<<10, 64<<10), 1+r.IntN(20)
		p.Pause = longest / time.Duration(p.Steps*(2+r.IntN(8)))
	}
	drawEnd(r, &p)
	return p
}

// drawEnd draws how a program ends.
func drawEnd(r *rand.Rand, p *Program) {
	switch n := r.IntN(100); {
	case n < 50:
	case n < 75:
		p.Code = pick(r, 1, 3, 7, 255)
	case n < 85:
		p.Reason, p.Signal = wire.ReasonSignaled, pick(r, "SIGTERM", "SIGKILL", "SIGSEGV")
	case n < 92:
		// Its time is short, so its output is too.
		p.Reason, p.Timeout = wire.ReasonTimeout, 2*time.Second+time.Duration(r.Int64N(int64(3*time.Second)))
		p.Stdout, p.Stderr, p.Steps, p.Pause, p.Echo = min(p.Stdout, 1<<10), min(p.Stderr, 1<<10), 1, 0, false
	default:
		p.Reason, p.CancelAfter = wire.ReasonCanceled, time.Duration(r.Int64N(int64(2*time.Second)))
	}
}

// waits says that the program does not end by itself.
func (p Program) waits() bool {
	return p.Reason == wire.ReasonTimeout || p.Reason == wire.ReasonCanceled
}

// input is what the program reads, in as many pieces as its output has.
func (p Program) input() io.Reader {
	n := size(p.Stdout)
	return &source{from: p.stdoutKey(), size: n, piece: max(1, n/int64(p.Steps)), pause: p.Pause}
}
