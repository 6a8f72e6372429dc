package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/internal/bench"
	"github.com/sandbox-broker/sandbox-broker/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// callTimeout bounds one call of the benchmark, of any kind.
const callTimeout = 2 * time.Minute

// benchOptions say what to measure.
type benchOptions struct {
	connect            connectFlags
	pool, ns, kubeconf string
	runs, jobs         int
	short              bool
	out                string
}

func newBenchCommand(s streams) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure runs through the broker beside one Job per call",
		Long: `Measure runs through the broker beside one Job per call.

All ways take turns in one run on the same cluster, with the same image,
RuntimeClass and resources. It needs the broker, and a kubeconfig that may read
the warm pool and create a namespace for the Jobs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.short {
				o.runs, o.jobs = bench.MinFast, bench.MinSlow
			}
			return runBench(cmd.Context(), o, s)
		},
	}
	o.connect.register(cmd.Flags())
	cmd.Flags().StringVar(&o.pool, "pool", "python-gvisor", "the broker's pool, and the warm pool of the same `name`")
	cmd.Flags().StringVar(&o.ns, "namespace", "sandboxes", "the warm pool's `namespace`")
	cmd.Flags().StringVar(&o.kubeconf, "kubeconfig", "", "kubeconfig `file` (default $KUBECONFIG)")
	cmd.Flags().IntVar(&o.runs, "runs", 100, "how many runs, and as many execs in a lease")
	cmd.Flags().IntVar(&o.jobs, "jobs", 10, "how many Jobs")
	cmd.Flags().BoolVar(&o.short, "short", false, "the fewest calls from which ratios are printed")
	cmd.Flags().StringVar(&o.out, "json", "", "also write the figures to this `file`")
	return cmd
}

// runBench measures and reports.
func runBench(ctx context.Context, o benchOptions, s streams) (err error) {
	config, err := kube.Config(o.kubeconf)
	if err != nil {
		return err
	}
	client, err := o.connect.client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	jobs, err := bench.NewJobs(ctx, config, o.ns, o.pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jobs.Close(ctx)) }()
	lease, err := client.Acquire(ctx, o.pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release(ctx, lease)) }()

	series := []bench.Series{
		{Name: "one Job per call", Fewest: bench.MinSlow},
		{Name: "run, a fresh sandbox each", Fewest: bench.MinFast},
		{Name: "exec in a held lease", Fewest: bench.MinFast},
	}
	calls := []func(context.Context) (bench.Sample, error){
		jobs.Run,
		func(ctx context.Context) (bench.Sample, error) { return bench.Run(ctx, client, o.pool) },
		func(ctx context.Context) (bench.Sample, error) { return bench.Exec(ctx, lease) },
	}
	want := []int{o.jobs, o.runs, o.runs}
	if err := measure(ctx, series, calls, want, s); err != nil {
		return err
	}
	rows := bench.Rows(series)
	if err := bench.Print(s.out, rows); err != nil {
		return err
	}
	return writeJSON(o.out, rows)
}

// measure takes turns, so that all ways see the same weather: after each Job its
// share of the runs and execs.
func measure(ctx context.Context, series []bench.Series, calls []func(context.Context) (bench.Sample, error), want []int, s streams) error {
	for turn := range want[0] {
		for i, call := range calls {
			for range want[i]*(turn+1)/want[0] - want[i]*turn/want[0] {
				one, cancel := context.WithTimeout(ctx, callTimeout)
				sample, err := call(one)
				cancel()
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err != nil {
					series[i].Failed++
					fmt.Fprintf(s.err, "%s: %s\n", series[i].Name, oneLine(err.Error()))
					continue
				}
				series[i].Samples = append(series[i].Samples, sample)
			}
		}
		fmt.Fprintf(s.err, "bench: %d of %d turns\n", turn+1, want[0])
	}
	return nil
}

func release(ctx context.Context, l *sandboxclient.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	return l.Release(ctx)
}

func writeJSON(path string, rows []bench.Row) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return fmt.Errorf("bench: encoding the figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}
