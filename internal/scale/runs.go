package scale

import (
	"context"
	"fmt"
	"time"
)

// runs measures one-shot runs through client and edge, with no lease held.
func (b *bench) runs(ctx context.Context) error {
	return b.sustained(ctx, "runs through the WebSocket", "runs", true, b.remote)
}

// runsHolding is the same while all leases are held.
func (b *bench) runsHolding(ctx context.Context) error {
	return b.sustained(ctx, fmt.Sprintf("runs through the WebSocket, %d leases held", b.o.Leases), "runs-holding", false, b.remote)
}

// runsDirect makes the runs in the broker's own process: no edge and no client.
func (b *bench) runsDirect(ctx context.Context) error {
	return b.sustained(ctx, "runs through Broker.Do", "runs-direct", false, func(ctx context.Context, d time.Duration) (outcome, error) {
		out := forTime(ctx, d, b.o.Concurrency, func(ctx context.Context) error {
			return runDirect(ctx, b.site.broker, oneShot.Source(), int64(len(answer)))
		})
		if out.Failed > 0 {
			return out, fmt.Errorf("scale: %d runs failed, the first: %s", out.Failed, out.Problem)
		}
		return out, nil
	})
}

func (b *bench) remote(ctx context.Context, d time.Duration) (outcome, error) {
	return b.site.callers.do(ctx, order{
		Task: taskRun, Concurrency: b.o.Concurrency, For: d, Source: oneShot.Source(), Output: int64(len(answer)),
	})
}

// sustained measures a way to make runs in a closed loop, after the stock that
// was there at the start is used up.
func (b *bench) sustained(ctx context.Context, stage, name string, judged bool, run func(context.Context, time.Duration) (outcome, error)) error {
	b.say("%s: %d at once for %s", stage, b.o.Concurrency, b.o.For)
	if _, err := run(ctx, min(warmUp, b.o.For)); err != nil {
		return err
	}
	var out outcome
	t, err := b.site.during(func() error {
		return b.profiled(name, func() (err error) {
			out, err = run(ctx, b.o.For)
			return err
		})
	})
	if err != nil {
		return err
	}
	rate, count := float64(out.Done)/out.Elapsed.Seconds(), float64(out.Done)
	if judged {
		b.quiet(stage, t)
		b.report.hold(stage, "runs a second, all three processes on these cores", rate, "1/s", Goal{AtLeast, goalRuns})
	} else {
		b.report.add(stage, "runs a second, all three processes on these cores", rate, "1/s")
	}
	all := t.broker + t.runners + t.callers
	b.report.add(stage, "the same by processor time, with the cores to themselves", float64(b.report.Cores)/(all.Seconds()/count), "1/s")
	b.report.add(stage, "runs a second that the broker's own time allows", float64(b.report.Cores)/(t.broker.Seconds()/count), "1/s")
	b.report.add(stage, "a run, p50", ms(out.P50), "ms")
	b.report.add(stage, "a run, p99", ms(out.P99), "ms")
	b.shares(stage, "run", count, t)
	return b.site.full(ctx)
}
