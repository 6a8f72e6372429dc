package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

const (
	// servedWarm is how soon a run from stock has its sandbox. Without stock it
	// takes a claim and an exec, which are never this fast.
	servedWarm = 25 * time.Millisecond
	// sparePause is how long a held sandbox is left alone before an exec, so that
	// its next spare interpreter has started.
	sparePause = 150 * time.Millisecond
)

// Broker makes calls through the broker.
type Broker struct {
	Client *sandboxclient.Client
	Pool   string // with stock
	// NoStock is a pool of the same warm pool without stock; empty: there is none.
	NoStock string

	lease *sandboxclient.Lease // of the execs; nil: none is held
	echo  *echo                // in the lease; nil: none runs
}

// Check finds out whether the pools are what they must be.
func (b *Broker) Check(ctx context.Context) error {
	pool, err := b.find(ctx, b.Pool)
	if err != nil {
		return err
	}
	if pool.Stock == 0 {
		return fmt.Errorf("bench: the pool %s keeps no stock: set stock in the broker's configuration", b.Pool)
	}
	if b.NoStock == "" {
		return nil
	}
	if pool, err = b.find(ctx, b.NoStock); err != nil {
		return err
	}
	if pool.Stock != 0 {
		return fmt.Errorf("bench: the pool %s is meant to be without stock and keeps %d", b.NoStock, pool.Stock)
	}
	return nil
}

func (b *Broker) find(ctx context.Context, name string) (sandboxclient.Pool, error) {
	pools, err := b.Client.Pools(ctx)
	if err != nil {
		return sandboxclient.Pool{}, fmt.Errorf("bench: asking the broker for its pools: %w", err)
	}
	for _, p := range pools {
		if p.Name == name {
			return p, nil
		}
	}
	return sandboxclient.Pool{}, fmt.Errorf("bench: the broker has no pool %s", name)
}

// settled says whether the stock is full.
func (b *Broker) settled(ctx context.Context) (string, error) {
	p, err := b.find(ctx, b.Pool)
	switch {
	case err != nil:
		return "", err
	case p.InStock < p.Stock && p.Problem != "":
		return fmt.Sprintf("pool %s: %d of %d are in stock (%s)", p.Name, p.InStock, p.Stock, p.Problem), nil
	case p.InStock < p.Stock:
		return fmt.Sprintf("pool %s: %d of %d are in stock", p.Name, p.InStock, p.Stock), nil
	}
	return "", nil
}

// Run makes one call in a fresh sandbox from stock.
func (b *Broker) Run(ctx context.Context) (Sample, error) {
	sample, _, err := b.run(ctx, b.Pool)
	return sample, err
}

// RunNoStock makes one call in a fresh sandbox that is claimed for it.
func (b *Broker) RunNoStock(ctx context.Context) (Sample, error) {
	sample, _, err := b.run(ctx, b.NoStock)
	return sample, err
}

// run makes one call; waited is how long it took until the broker had a sandbox.
func (b *Broker) run(ctx context.Context, pool string) (sample Sample, waited time.Duration, err error) {
	w := newStopwatch()
	res, err := b.Client.Run(ctx, sandboxclient.Code{Pool: pool, Language: "python", Source: program, Stdout: w})
	if err != nil {
		return Sample{}, 0, fmt.Errorf("bench: a run: %w", err)
	}
	sample, err = w.sample()
	return sample, res.Timings.Response, err
}

// Acquire takes a lease. That it is given back then is not part of the sample.
func (b *Broker) Acquire(ctx context.Context) (Sample, error) {
	began := time.Now()
	lease, err := b.Client.Acquire(ctx, b.Pool)
	d := time.Since(began)
	if err != nil {
		return Sample{}, fmt.Errorf("bench: acquiring a lease: %w", err)
	}
	return Sample{Done: d}, release(ctx, lease)
}

func release(ctx context.Context, l *sandboxclient.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := l.Release(ctx); err != nil {
		return fmt.Errorf("bench: releasing a lease: %w", err)
	}
	return nil
}

// Renew takes the lease in which the execs run, in the place of the last one: a
// lease has an end, and one sandbox might be unlike the others.
func (b *Broker) Renew(ctx context.Context) error {
	err := b.Close(ctx)
	lease, aerr := b.Client.Acquire(ctx, b.Pool)
	if aerr != nil {
		return errors.Join(err, fmt.Errorf("bench: acquiring the lease of the execs: %w", aerr))
	}
	b.lease = lease
	return err
}

// Close gives back the lease of the execs. The client stays open.
func (b *Broker) Close(ctx context.Context) error {
	if b.echo != nil {
		b.echo.close()
		b.echo = nil
	}
	if b.lease == nil {
		return nil
	}
	lease := b.lease
	b.lease = nil
	return release(ctx, lease)
}

// Exec makes one call in the lease that is held.
func (b *Broker) Exec(ctx context.Context) (Sample, error) {
	w := newStopwatch()
	cmd := b.lease.Script("python", program)
	cmd.Stdout = w
	if err := cmd.Run(ctx); err != nil {
		return Sample{}, fmt.Errorf("bench: an exec: %w", err)
	}
	return w.sample()
}

// Stdout reads much output of a program in the lease.
func (b *Broker) Stdout(ctx context.Context) (Sample, error) {
	w := newStopwatch()
	argv := stdoutProgram()
	cmd := b.lease.Command(argv[0], argv[1:]...)
	cmd.Stdout = w
	if err := cmd.Run(ctx); err != nil {
		return Sample{}, fmt.Errorf("bench: much output of an exec: %w", err)
	}
	return w.bulk(stdoutBytes)
}

// clockProgram answers each line with the time at which it writes the answer.
const clockProgram = `import os, sys, time
for _ in iter(sys.stdin.buffer.readline, b""): os.write(1, b"%d\n" % time.time_ns())`

// Echo sends a line to a program in the lease and waits for its answer. The
// program tells when it wrote that, by the clock that its sandbox shares with this
// machine: whole is the whole way, back the way of the output alone.
func (b *Broker) Echo(ctx context.Context) (whole, back Sample, err error) {
	if b.echo == nil {
		lease := b.lease
		b.echo = startEcho(func(ctx context.Context, e *echo) error {
			cmd := lease.Command("python3", "-c", clockProgram)
			cmd.Stdin, cmd.Stdout = e.stdin, e
			return cmd.Run(ctx)
		})
		if _, _, err := b.echo.line(ctx, "x"); err != nil { // the first one waits for the program's start
			return whole, back, err
		}
	}
	began := time.Now()
	text, at, err := b.echo.line(ctx, "x")
	if err != nil {
		return whole, back, err
	}
	nanos, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return whole, back, fmt.Errorf("bench: reading the program's clock: %w", err)
	}
	return sharedClock(began, time.Unix(0, nanos), at)
}

// sharedClock splits a round trip at the moment that the other end names. If that
// does not lie within it the two clocks are not one.
func sharedClock(began, wrote, came time.Time) (whole, back Sample, err error) {
	// Without the monotonic part: the other end has only the wall clock.
	before, after := wrote.Sub(began.Round(0)), came.Round(0).Sub(wrote)
	if before < 0 || after < 0 {
		return whole, back, fmt.Errorf("bench: the sandbox's clock and this machine's differ: the answer was written %s after the question and %s before it came", before, after)
	}
	return Sample{Done: came.Sub(began)}, Sample{Done: after}, nil
}
