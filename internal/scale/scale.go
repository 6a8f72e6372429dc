package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/simulated"
	"github.com/sandbox-broker/sandbox-broker/internal/version"
)

// Options say how much to measure. [Defaults] gives what the goals are about.
type Options struct {
	Leases      int           // held at most
	Stock       int           // sandboxes taken ahead
	Streams     int           // execs at once that stream
	Concurrency int           // runs at once
	For         time.Duration // the window of each rate
	Idle        time.Duration // the window in which held leases do nothing
	Profile     string        // folder for pprof profiles; empty: none
	Progress    io.Writer     // told what is being done; nil: nobody
}

// Defaults are the options that the goals are about.
func Defaults() Options {
	return Options{Leases: 10_000, Stock: 1000, Streams: 1000, Concurrency: 512, For: 10 * time.Second, Idle: 30 * time.Second}
}

// Goals of issue 4, for two cores.
const (
	Cores = 2 // the processors that the goals are about

	goalRuns       = 2000.0 // runs a second
	goalMemory     = 64.0   // KiB a held lease
	goalAcquireP99 = 5.0    // ms, with all leases held
	// goalFlat bounds how much more a lease may cost at one count of leases than at
	// another.
	goalFlat = 1.25
	// goalOthers is the share of the cores, in percent, that other programs may take
	// while something is timed.
	goalOthers = 10.0
)

// inFlight bounds the sandboxes beside leases and stock: those being taken or
// ended.
func (o Options) inFlight() int { return refills + 2*o.Concurrency }

// sandboxes is the pool's bound.
func (o Options) sandboxes() int { return o.Leases + o.Stock + o.inFlight() }

// levels are the counts of held leases at which their cost is measured.
func (o Options) levels() []int {
	all := []int{100, 1000, o.Leases}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(n int) bool { return n > o.Leases || n == 0 })
}

// bench is one benchmark under way.
type bench struct {
	o      Options
	site   *site
	report *Report
}

// Run measures. A *[DescriptorsError] says that the machine does not allow it. With
// any other error the report may hold what was found before.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if err := allowDescriptors(uint64(o.sandboxes() + spareDescriptors)); err != nil {
		return nil, err
	}
	b := &bench{o: o, report: &Report{
		Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Version: version.String(),
	}}
	b.say("starting a broker with a stock of %d", o.Stock)
	if b.site, err = newSite(ctx, o); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.site.close()) }()
	for _, stage := range []func(context.Context) error{b.held, b.streams, b.runsHolding, b.drop, b.runs, b.runsDirect} {
		if err := stage(ctx); err != nil {
			return b.report, err
		}
	}
	return b.report, nil
}

func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.o.Progress, format+" ...\n", args...)
}

// profiled writes a processor profile of what do does, if profiles are wanted.
func (b *bench) profiled(name string, do func() error) error {
	if b.o.Profile == "" {
		return do()
	}
	f, err := os.Create(filepath.Join(b.o.Profile, "cpu-"+name+".pprof"))
	if err != nil {
		return fmt.Errorf("scale: writing a profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return errors.Join(fmt.Errorf("scale: starting a profile: %w", err), f.Close())
	}
	err = do()
	pprof.StopCPUProfile()
	return errors.Join(err, f.Close())
}

// snapshot writes profiles of what the process holds, if profiles are wanted.
func (b *bench) snapshot(name string) error {
	if b.o.Profile == "" {
		return nil
	}
	for _, kind := range []string{"heap", "goroutine"} {
		f, err := os.Create(filepath.Join(b.o.Profile, kind+"-"+name+".pprof"))
		if err != nil {
			return fmt.Errorf("scale: writing a profile: %w", err)
		}
		if err := errors.Join(pprof.Lookup(kind).WriteTo(f, 0), f.Close()); err != nil {
			return fmt.Errorf("scale: writing a profile: %w", err)
		}
	}
	return nil
}

// texts are what the programs print: a run's answer, and a stream's line.
const (
	answer     = "2\n"
	lineLength = 1024
)

// oneShot is the program of a run. It takes no time: what is left is the path.
var oneShot = simulated.Program{Text: answer, Times: 1}
