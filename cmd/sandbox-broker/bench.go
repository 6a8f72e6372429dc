package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sandbox-broker/sandbox-broker/internal/bench"
	"github.com/sandbox-broker/sandbox-broker/internal/kube"
)

// exitBelow is bench's exit code when --check found something below its bound.
const exitBelow = 1

// benchOptions say what to measure.
type benchOptions struct {
	connect  connectFlags
	bench    bench.Options
	counts   bench.Counts // what the flags ask for
	kubeconf string
	short    bool
	check    bool
	json     string
}

func newBenchCommand(s streams) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure runs through the broker beside other ways to run code",
		Long: `Measure runs through the broker beside other ways to run code: one Job per
call, a claim with one exec, and agent-sandbox's own client.

All ways take turns in one run on the same cluster, with the same warm pool,
image, RuntimeClass and resources. It needs the broker; a kubeconfig that may read
the warm pool, claim from it, exec into its pods and create a namespace; and, for
agent-sandbox's client, to reach pods by their addresses, so it runs on a node. The
clock of its machine must be the sandboxes'.

Nobody else should use the pool meanwhile. What it made in the cluster is removed
at its end, also when it is interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.setCounts(cmd.Flags())
			return runBench(cmd.Context(), o, s)
		},
	}
	o.register(cmd.Flags())
	return cmd
}

func (o *benchOptions) register(flags *pflag.FlagSet) {
	o.connect.register(flags)
	o.counts = bench.Full
	flags.StringVar(&o.bench.Pool, "pool", "python-gvisor", "the broker's pool, which must keep a stock")
	flags.StringVar(&o.bench.NoStock, "no-stock-pool", "", "a `pool` of the broker on the same warm pool that keeps none (default: left out)")
	flags.StringVar(&o.bench.WarmPool, "warm-pool", "", "the `name` of both pools' warm pool (default: that of --pool)")
	flags.StringVar(&o.bench.Namespace, "namespace", "sandboxes", "the warm pool's `namespace`")
	flags.StringVar(&o.bench.PeerImage, "sandboxd-image", "", "an `image` like the warm pool's with agent-sandbox's sandboxd in /usr/local/bin (default: left out)")
	flags.StringVar(&o.kubeconf, "kubeconfig", "", "kubeconfig `file` (default $KUBECONFIG)")
	flags.IntVar(&o.counts.Jobs, "jobs", o.counts.Jobs, "how many Jobs, and how many turns all ways take")
	flags.IntVar(&o.counts.Runs, "runs", o.counts.Runs, "how many runs from stock, and as many execs in a lease")
	flags.IntVar(&o.counts.Others, "others", o.counts.Others, "how many calls of each other way that takes a sandbox")
	flags.IntVar(&o.counts.Extras, "extras", o.counts.Extras, "how many calls of each way that no goal is about")
	flags.IntVar(&o.counts.Trips, "trips", o.counts.Trips, "how many round trips of each kind")
	flags.IntVar(&o.counts.Bulk, "bulk", o.counts.Bulk, "how many times 64 MiB of output each way")
	flags.DurationVar(&o.counts.Sustain, "sustain", o.counts.Sustain, "how `long` runs arrive at --rate; 0 leaves it out")
	flags.Float64Var(&o.bench.Rate, "rate", 0, "runs a second that arrive then (default: what the pool refills, measured)")
	flags.BoolVar(&o.short, "short", false, "the fewest calls from which ratios are printed")
	flags.BoolVar(&o.check, "check", false, fmt.Sprintf("exit with %d when a figure is below what it must be", exitBelow))
	flags.StringVar(&o.json, "json", "bench/latest.json", "where to write the figures, and a chart beside it as .svg; empty: nowhere")
}

// setCounts takes the short benchmark's counts, but for those that are asked for.
func (o *benchOptions) setCounts(flags *pflag.FlagSet) {
	asked := o.counts
	o.bench.Counts = bench.Full
	if o.short {
		o.bench.Counts = bench.Short
	}
	c := &o.bench.Counts
	for name, take := range map[string]func(){
		"jobs": func() { c.Jobs = asked.Jobs }, "runs": func() { c.Runs = asked.Runs }, "others": func() { c.Others = asked.Others },
		"extras": func() { c.Extras = asked.Extras },
		"trips":  func() { c.Trips = asked.Trips }, "bulk": func() { c.Bulk = asked.Bulk },
		"sustain": func() { c.Sustain, c.Refill = asked.Sustain, min(c.Refill, asked.Sustain) },
	} {
		if flags.Changed(name) {
			take()
		}
	}
	if o.bench.WarmPool == "" {
		o.bench.WarmPool = o.bench.Pool
	}
}

// runBench measures and reports. What was measured before a failure is reported
// too.
func runBench(ctx context.Context, o benchOptions, s streams) (err error) {
	// What the Kubernetes libraries log of each exec's end would tear the bar.
	ctrllog.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	if o.bench.Config, err = kube.Config(o.kubeconf); err != nil {
		return err
	}
	if o.bench.Client, err = o.connect.client(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.bench.Client.Close()) }()
	errOut := harmless(s.err)
	show := func(total time.Duration) *bench.Progress {
		return bench.NewProgress(s.err, isTerminal(s.err), total)
	}
	report, err := bench.Run(ctx, o.bench, show)
	if len(report.Rows) > 0 {
		err = errors.Join(err, o.publish(report, s.out))
	}
	if err != nil {
		return callError(ctx, err, "start it again")
	}
	return o.judge(report, errOut)
}

// publish prints the report and writes its files.
func (o *benchOptions) publish(report *bench.Report, out io.Writer) error {
	err := report.Print(harmless(out))
	if o.json == "" {
		return err
	}
	return errors.Join(err, report.WriteFiles(o.json))
}

// judge says what is below its bound, if that was asked for.
func (o *benchOptions) judge(report *bench.Report, errOut io.Writer) error {
	if !o.check {
		return nil
	}
	wrong := report.Check()
	for _, line := range wrong {
		fmt.Fprintln(errOut, "bench: below:", oneLine(line))
	}
	if len(wrong) > 0 {
		return &exitError{exitBelow, fmt.Errorf("%d figures are not what they must be", len(wrong))}
	}
	return nil
}
