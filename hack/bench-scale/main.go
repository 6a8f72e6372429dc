// Command bench-scale measures what a broker costs that holds many leases, on this
// machine and without a cluster; see package scale. `make bench-scale` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/scale"
)

// limit bounds the whole benchmark.
const limit = 20 * time.Minute

func main() {
	scale.Main()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-scale:", err)
		os.Exit(1)
	}
}

// errMissed says that a figure misses its goal.
var errMissed = errors.New("a goal is missed")

func run() error {
	if err := scale.UseCores(scale.Cores); err != nil {
		return err
	}
	o := scale.Defaults()
	var out string
	var check, quick bool
	flag.IntVar(&o.Leases, "leases", o.Leases, "how many leases are held")
	flag.IntVar(&o.Stock, "stock", o.Stock, "how many sandboxes are taken ahead")
	flag.IntVar(&o.Streams, "streams", o.Streams, "how many execs stream at once")
	flag.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "how many runs go on at once")
	flag.DurationVar(&o.For, "for", o.For, "how long each rate is measured")
	flag.DurationVar(&o.Idle, "idle", o.Idle, "how long held leases are left alone")
	flag.StringVar(&o.Profile, "profile", "", "write pprof profiles of the broker into this `folder`")
	flag.StringVar(&out, "json", "", "also write the figures to this `file`")
	flag.BoolVar(&check, "check", false, "fail if a goal is missed, or nothing could be measured")
	flag.BoolVar(&quick, "quick", false, "see that it works: few leases and short windows, which the goals are not about")
	flag.Parse()
	if quick {
		o.Leases, o.Stock, o.Streams, o.For, o.Idle = 300, 100, 100, 2*time.Second, 2*time.Second
	}
	o.Progress = os.Stderr

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if o.Profile != "" {
		if err := os.MkdirAll(o.Profile, 0o755); err != nil {
			return fmt.Errorf("making the profiles' folder: %w", err)
		}
	}
	return report(ctx, o, out, check)
}

// report measures and tells.
func report(ctx context.Context, o scale.Options, out string, check bool) error {
	r, err := scale.Run(ctx, o)
	var few *scale.DescriptorsError
	if errors.As(err, &few) && !check {
		fmt.Println("SKIPPED:", few)
		return nil
	}
	if r == nil {
		return err
	}
	if err := errors.Join(err, r.Print(os.Stdout)); err != nil {
		return err
	}
	if out != "" {
		b, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(out, append(b, '\n'), 0o644)
		}
		if err != nil {
			return fmt.Errorf("writing the figures: %w", err)
		}
	}
	if n := len(r.Missed()); check && n > 0 {
		return fmt.Errorf("%w (%d of them)", errMissed, n)
	}
	return nil
}
