package scale

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// taskTimeout bounds each task of the callers.
const taskTimeout = 5 * time.Minute

// caller is the callers' process from the inside: one client for all.
type caller struct {
	client *sandboxclient.Client
	kept   []*sandboxclient.Lease
}

// serveCallers carries out orders until they end.
func serveCallers(url string, in io.Reader, out io.Writer) error {
	client, err := sandboxclient.New(url)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	c := &caller{client: client}
	orders := json.NewDecoder(bufio.NewReader(in))
	answers := json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading an order: %w", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), taskTimeout)
		answer := c.carryOut(ctx, o)
		cancel()
		if err := answers.Encode(answer); err != nil {
			return fmt.Errorf("answering: %w", err)
		}
	}
}

func (c *caller) carryOut(ctx context.Context, o order) outcome {
	switch o.Task {
	case taskHold:
		return c.hold(ctx, o)
	case taskDrop:
		kept := c.kept
		c.kept = nil
		return many(ctx, o.Concurrency, len(kept), func(ctx context.Context, i int) error { return kept[i].Release(ctx) })
	case taskAcquire:
		return c.acquire(ctx, o)
	case taskRun:
		return forTime(ctx, o.For, o.Concurrency, func(ctx context.Context) error { return c.run(ctx, o.Source, o.Output) })
	case taskStream:
		if o.Count > len(c.kept) {
			return outcome{Failed: o.Count, Problem: fmt.Sprintf("only %d leases are kept", len(c.kept))}
		}
		return many(ctx, o.Count, o.Count, func(ctx context.Context, i int) error { return stream(ctx, c.kept[i], o) })
	}
	return outcome{Failed: 1, Problem: "there is no task " + string(o.Task)}
}

func (c *caller) hold(ctx context.Context, o order) outcome {
	var mu sync.Mutex // guards kept
	return many(ctx, o.Concurrency, o.Count, func(ctx context.Context, _ int) error {
		l, err := c.client.Acquire(ctx, poolName)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		c.kept = append(c.kept, l)
		return nil
	})
}

// acquire times acquires that come at a steady rate, whatever became of the ones
// before. The release that follows each is not timed.
func (c *caller) acquire(ctx context.Context, o order) outcome {
	r := newRecorder()
	var calls sync.WaitGroup
	clock := time.NewTicker(time.Duration(float64(time.Second) / o.Rate))
	defer clock.Stop()
	for range o.Count {
		<-clock.C
		calls.Go(func() {
			began := time.Now()
			l, err := c.client.Acquire(ctx, poolName)
			r.record(time.Since(began), err)
			if err == nil {
				r.failure(l.Release(ctx))
			}
		})
	}
	calls.Wait()
	return r.outcome()
}

func (c *caller) run(ctx context.Context, source string, output int64) error {
	res, err := c.client.Run(ctx, sandboxclient.Code{Pool: poolName, Language: "python", Source: source})
	if err != nil {
		return err
	}
	if int64(len(res.Stdout)) != output {
		return fmt.Errorf("a run printed %d bytes, not %d", len(res.Stdout), output)
	}
	return nil
}

// counter counts what is written to it.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// stream runs a program in a lease and counts all it prints.
func stream(ctx context.Context, l *sandboxclient.Lease, o order) error {
	var got counter
	cmd := l.Script("python", o.Source)
	cmd.Stdout = &got
	if err := cmd.Run(ctx); err != nil {
		return err
	}
	if got.n != o.Output {
		return fmt.Errorf("a stream brought %d bytes, not %d", got.n, o.Output)
	}
	return nil
}
