package simulated

import (
	"math"
	"math/rand/v2"
	"time"
)

// Delays are how long a provider takes for what it does. The zero value takes no
// time at all.
type Delays struct {
	Claim  Distribution // from Take until the sandbox is ready
	Attach Distribution // from Dial until the connection is open
	Write  Distribution // Record, Extend and End: a write to the cluster's API
	Death  Distribution // from a sandbox's death until Watch reports it
	// Life is how long a sandbox lives if nobody ends it before. The zero value is
	// for ever, until its own end.
	Life Distribution
}

// Distribution says how a time is spread: its values at the shares of quantiles,
// and straight lines between these. The zero value is always 0.
type Distribution [len(quantiles)]time.Duration

// quantiles are the shares of the draws that lie below a distribution's values.
var quantiles = [...]float64{0, .1, .5, .9, .99, 1}

// spread is how far the draws lie around their median, at each of the quantiles:
// slow ones are slower by far more than fast ones are faster.
var spread = [len(quantiles)]float64{.7, .8, 1, 1.5, 2.5, 4}

// around makes the distribution with a median.
func around(median time.Duration) Distribution {
	var d Distribution
	for i, s := range spread {
		d[i] = time.Duration(s * float64(median))
	}
	return d
}

// Exponential makes the distribution of times to an event that is as likely at
// any moment, cut at the last 1/1000.
func Exponential(mean time.Duration) Distribution {
	const last = .999
	var d Distribution
	for i, q := range quantiles {
		d[i] = time.Duration(-math.Log(1-min(q, last)) * float64(mean))
	}
	return d
}

// Measured are the delays of the project's test cluster: two cores, gVisor,
// agent-sandbox v1.0.3.
//
//	           median   source
//	claim       42 ms   measured: a SandboxClaim's creation until it is Ready, from a warm pool
//	attach      91 ms   measured: a new pods/exec until its first round trip
//	write       10 ms   assumed: one write to an API server that is not busy
//	death       50 ms   assumed: a pod's event through a watch
//
// The spread around each median is an assumption too, the same for all: 0.8 at
// the 10th percentile, 1.5 at the 90th, 2.5 at the 99th, 4 at most. No sandbox
// dies unless Life is set.
func Measured() Delays {
	return Delays{
		Claim:  around(42 * time.Millisecond),
		Attach: around(91 * time.Millisecond),
		Write:  around(10 * time.Millisecond),
		Death:  around(50 * time.Millisecond),
	}
}

// at is the value below which the share u of all draws lies.
func (d Distribution) at(u float64) time.Duration {
	for i := 1; i < len(quantiles); i++ {
		if u > quantiles[i] {
			continue
		}
		within := (u - quantiles[i-1]) / (quantiles[i] - quantiles[i-1])
		return d[i-1] + time.Duration(within*float64(d[i]-d[i-1]))
	}
	return d[len(d)-1]
}

// dice draws the times of one sandbox. What a sandbox gets follows from the seed
// and its number alone: the order in which goroutines run changes nothing.
type dice struct {
	seed, sandbox uint64
}

// What a draw is for; each use has its own row of numbers.
const (
	drawClaim = iota
	drawAttach
	drawWrite
	drawDeath
	drawLife
	drawUses // how many there are
)

// draw takes the nth time of a use.
func (d dice) draw(of Distribution, use, nth int) time.Duration {
	r := rand.New(rand.NewPCG(d.seed, d.sandbox*drawUses+uint64(use)+uint64(nth)<<48)) //nolint:gosec // repeatable is the point; nothing secret comes of it
	return of.at(r.Float64())
}
