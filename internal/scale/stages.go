package scale

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/simulated"
)

const (
	// holdConcurrency is how many callers acquire the leases that are held.
	holdConcurrency = 256
	// forgetting is how long ended sandboxes take to be forgotten: net/http holds a
	// closed connection for 5 s.
	forgetting = 7 * time.Second
	// warmLeases is how many leases come and go before anything is measured.
	warmLeases = 500
	// acquireRate is at what rate timed acquires come: far below what the stock's
	// refill can bear, so that each is served from stock.
	acquireRate = 200.0
	// streamEvery is the pause between two lines of a stream.
	streamEvery = 250 * time.Millisecond
	// warmUp is how long runs go on before they are counted, at most: the full stock
	// with which they start must be gone.
	warmUp = 3 * time.Second
	// kib is the unit of memory.
	kib = 1024.0
)

// held measures what leases cost that do nothing, at each level.
func (b *bench) held(ctx context.Context) error {
	if err := b.warm(ctx); err != nil {
		return err
	}
	base, err := measure(settled)
	if err != nil {
		return err
	}
	b.report.add("the broker without leases", "resident", float64(base.RSS)/kib, "KiB")
	b.report.add("the broker without leases", "resident, garbage collected", float64(base.Settled)/kib, "KiB")
	b.report.add("the broker without leases", "live heap", float64(base.Heap)/kib, "KiB")
	var further []float64 // what each further lease took, from level to level
	have, lived := 0, 0.0
	for _, n := range b.o.levels() {
		b.say("holding %d leases", n)
		stage := fmt.Sprintf("%d leases held", n)
		out, err := b.site.callers.do(ctx, order{Task: taskHold, Count: n - have, Concurrency: holdConcurrency})
		if err != nil {
			return err
		}
		b.report.add(stage, "leases a second while acquiring them", float64(out.Done)/out.Elapsed.Seconds(), "1/s")
		if err := b.settle(ctx); err != nil {
			return err
		}
		if err := b.idle(ctx, stage, n); err != nil {
			return err
		}
		lives, err := b.memory(stage, n, base)
		if err != nil {
			return err
		}
		if have > 0 {
			further = append(further, (lives-lived)/float64(n-have))
		}
		have, lived = n, lives
		if err := b.acquires(ctx, stage, n); err != nil {
			return err
		}
	}
	if len(further) > 1 {
		b.report.hold("flat cost", "a further lease's live memory, the dearest level by the cheapest", slices.Max(further)/slices.Min(further), "", Goal{Under, goalFlat})
	}
	return b.snapshot("held")
}

// warm has some leases come and go, so that what the broker keeps for having
// callers at all is not counted to the first leases.
func (b *bench) warm(ctx context.Context) error {
	for _, o := range []order{{Task: taskHold, Count: warmLeases, Concurrency: holdConcurrency}, {Task: taskDrop, Concurrency: holdConcurrency}} {
		if _, err := b.site.callers.do(ctx, o); err != nil {
			return err
		}
	}
	return b.settle(ctx)
}

// settle waits until the stock is full and what has ended is forgotten.
func (b *bench) settle(ctx context.Context) error {
	if err := b.site.full(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(forgetting):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// idle measures the time that held leases take by being there.
func (b *bench) idle(ctx context.Context, stage string, n int) error {
	b.say("%s: doing nothing for %s", stage, b.o.Idle)
	t, err := b.site.during(func() error {
		return b.profiled(fmt.Sprintf("idle-%d", n), func() error {
			select {
			case <-time.After(b.o.Idle):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	if err != nil {
		return err
	}
	// The stock's channels are held too.
	channels := float64(n + b.o.Stock)
	b.report.add(stage, "broker's processor time an idle channel", float64(t.broker.Microseconds())/channels/b.o.Idle.Seconds(), "us/s")
	return nil
}

// memory compares the footprint with that without leases. It returns how much more
// is live, in KiB.
func (b *bench) memory(stage string, n int, base footprint) (float64, error) {
	now, err := measure(settled)
	if err != nil {
		return 0, err
	}
	per := func(now, base int64) float64 { return float64(now-base) / float64(n) / kib }
	if n == b.o.Leases {
		b.report.hold(stage, "resident memory a lease, all counted", per(now.RSS, base.Settled), "KiB", Goal{Under, goalMemory})
	} else {
		b.report.add(stage, "resident memory a lease, all counted", per(now.RSS, base.Settled), "KiB")
	}
	b.report.add(stage, "the same, garbage collected", per(now.Settled, base.Settled), "KiB")
	b.report.add(stage, "live heap a lease", per(now.Heap, base.Heap), "KiB")
	b.report.add(stage, "stacks a lease", per(now.Stacks, base.Stacks), "KiB")
	b.report.add(stage, "goroutines a lease", float64(now.Goroutines-base.Goroutines)/float64(n), "")
	b.report.add(stage, "descriptors a lease", float64(now.Descriptors-base.Descriptors)/float64(n), "")
	return per(now.Heap+now.Stacks, base.Heap+base.Stacks) * float64(n), nil
}

// acquires times acquires from stock while n leases are held.
func (b *bench) acquires(ctx context.Context, stage string, n int) error {
	count := int(acquireRate * b.o.For.Seconds())
	b.say("%s: acquiring %d more, %g a second", stage, count, acquireRate)
	var out outcome
	t, err := b.site.during(func() error {
		return b.profiled(fmt.Sprintf("acquire-%d", n), func() (err error) {
			out, err = b.site.callers.do(ctx, order{Task: taskAcquire, Count: count, Rate: acquireRate})
			return err
		})
	})
	if err != nil {
		return err
	}
	b.report.add(stage, "acquire from stock, p50", ms(out.P50), "ms")
	if n == b.o.Leases {
		b.quiet(stage, t)
		b.report.hold(stage, "acquire from stock, p99", ms(out.P99), "ms", Goal{Under, goalAcquireP99})
	} else {
		b.report.add(stage, "acquire from stock, p99", ms(out.P99), "ms")
	}
	b.report.add(stage, "acquire from stock, max", ms(out.Max), "ms")
	return b.site.full(ctx)
}

// streams measures many execs that print at once, in leases that are held.
func (b *bench) streams(ctx context.Context) error {
	n := min(b.o.Streams, b.o.Leases)
	stage := fmt.Sprintf("%d streams at once", n)
	lines := int(b.o.For / streamEvery)
	b.say("%s: a line of %d bytes each %s", stage, lineLength, streamEvery)
	program := simulated.Program{Text: strings.Repeat("x", lineLength-1) + "\n", Times: lines, Every: streamEvery}
	before, err := measure(settled)
	if err != nil {
		return err
	}
	during, problem := make(chan footprint, 1), make(chan error, 1)
	halfway := time.AfterFunc(b.o.For/2, func() {
		f, err := measure(1) // each takes time that counts as the streams'
		problem <- err
		during <- f
	})
	defer halfway.Stop()
	var out outcome
	t, err := b.site.during(func() error {
		return b.profiled("streams", func() (err error) {
			out, err = b.site.callers.do(ctx, order{Task: taskStream, Count: n, Source: program.Source(), Output: int64(lines * lineLength)})
			return err
		})
	})
	if err != nil {
		return err
	}
	if err := <-problem; err != nil {
		return err
	}
	f := <-during
	frames := float64(n * lines)
	b.report.add(stage, "all output delivered, streams", float64(out.Done), "")
	b.report.add(stage, "lines a second", frames/out.Elapsed.Seconds(), "1/s")
	b.report.add(stage, "the last stream's end after its time", ms(out.Max-program.After-time.Duration(lines-1)*streamEvery), "ms")
	b.report.add(stage, "live memory a stream", float64(f.Heap+f.Stacks-before.Heap-before.Stacks)/float64(n)/kib, "KiB")
	b.report.add(stage, "goroutines a stream", float64(f.Goroutines-before.Goroutines)/float64(n), "")
	b.shares(stage, "line", frames, t)
	return nil
}

// shares notes what each process spent on one of many.
func (b *bench) shares(stage, of string, count float64, t times) {
	b.report.add(stage, "broker's processor time a "+of, float64(t.broker.Microseconds())/count, "us")
	b.report.add(stage, "runners' processor time a "+of, float64(t.runners.Microseconds())/count, "us")
	if t.callers > 0 {
		b.report.add(stage, "callers' processor time a "+of, float64(t.callers.Microseconds())/count, "us")
	}
}

// quiet says how quiet the machine was while something was timed. Where it was
// not, that is a goal missed too: the times prove nothing.
func (b *bench) quiet(stage string, t times) {
	share := 100 * t.others.Seconds() / t.elapsed.Seconds() / float64(b.report.Cores)
	b.report.hold(stage, "share of the cores that other programs took", max(0, share), "%", Goal{Under, goalOthers})
}

// drop releases all leases and looks at what is left of them.
func (b *bench) drop(ctx context.Context) error {
	b.say("releasing all leases")
	if _, err := b.site.callers.do(ctx, order{Task: taskDrop, Concurrency: holdConcurrency}); err != nil {
		return err
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	f, err := measure(settled)
	if err != nil {
		return err
	}
	b.report.add("after all leases were released", "resident, garbage collected", float64(f.Settled)/kib, "KiB")
	b.report.add("after all leases were released", "live heap", float64(f.Heap)/kib, "KiB")
	b.report.add("after all leases were released", "goroutines a sandbox in stock", float64(f.Goroutines)/float64(max(1, b.o.Stock)), "")
	return b.snapshot("released")
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
