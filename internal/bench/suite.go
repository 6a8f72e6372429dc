package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/sandbox-broker/sandbox-broker/broker/agentsandbox"
	"github.com/sandbox-broker/sandbox-broker/internal/version"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// Counts say how much is measured.
type Counts struct {
	Jobs   int // also how many turns there are
	Runs   int // from stock, and execs in a lease
	Others int // each of the other ways that take a sandbox
	Extras int // each of those that no goal is about
	Trips  int // round trips
	Bulk   int // transfers of much output
	// Sustain is how long the load lasts, and Refill each of the two measurements
	// of the pool's refill around it; 0 leaves them out.
	Sustain, Refill time.Duration
}

// Counts of a whole benchmark, and of the shortest from which ratios are printed.
var (
	Full = Counts{
		Jobs: 10, Runs: 100, Others: 30, Extras: 30, Trips: 500, Bulk: 5, Sustain: time.Minute, Refill: 15 * time.Second,
	}
	Short = Counts{
		Jobs: MinSlow, Runs: MinFast, Others: MinFast, Extras: 10, Trips: 200, Bulk: MinSlow, Sustain: 15 * time.Second, Refill: 6 * time.Second,
	}
)

const (
	// startUp is the part of the bound that does not depend on the counts.
	startUp = 5 * time.Minute
	// slack is how many times longer than expected it may take.
	slack = 4
)

// bound is the most that a benchmark may take. What it claims ends then, too, even
// if nobody is left to end it.
func (n Counts) bound() time.Duration {
	calls := time.Duration(n.Jobs)*costJob + time.Duration(n.Runs+3*n.Others+2*n.Extras)*costFresh +
		time.Duration(3*n.Runs)*costSpared + time.Duration(3*n.Trips)*costTrip + time.Duration(2*n.Bulk)*costBulk
	return startUp + slack*(calls+n.Sustain+2*n.Refill)
}

// Options say what is measured, and where.
type Options struct {
	Counts
	Config    *rest.Config
	Client    *sandboxclient.Client
	Namespace string // of the warm pool
	WarmPool  string
	Pool      string // of the broker, with stock
	NoStock   string // of the broker, on the same warm pool without stock; may be empty
	// PeerImage is the pool's image with sandboxd in it; empty leaves
	// agent-sandbox's client out.
	PeerImage string
	// Rate is of the load, in runs a second; 0: what the pool refills.
	Rate float64
}

// Suite is a benchmark under way.
type Suite struct {
	o       Options
	cluster *Cluster
	broker  *Broker
	held    *Held
	peer    *Peer
	prov    *agentsandbox.Provider

	turn    int // counted from 1
	ways    []*way
	figures []Figure
	load    *LoadResult
	leftOut []string
	ends    cleanups
	setting Setting
}

// Run measures everything. The report is there beside any error, with what was
// measured before it; what was made in the cluster is removed again. show makes
// the progress for work that is expected to take a time.
func Run(ctx context.Context, o Options, show func(time.Duration) *Progress) (*Report, error) {
	began := time.Now()
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end() // the provider's watches end after the last release
	bounded, cancel := context.WithTimeout(ctx, o.bound())
	defer cancel()
	s := &Suite{o: o, setting: Setting{
		Began: began.UTC(), Version: version.String(), CPUs: runtime.NumCPU(), Pool: o.Pool, WarmPool: o.WarmPool,
	}}
	err := s.run(bounded, life, show)
	if cerr := s.ends.run(ctx); cerr != nil {
		err = errors.Join(err, cerr)
	}
	s.setting.TookSeconds = time.Since(began).Round(time.Second).Seconds()
	report := NewReport(s.setting, s.series(), s.figures, s.leftOut)
	switch {
	case ctx.Err() != nil:
		report.Ended = "it was interrupted"
	case err != nil:
		report.Ended = err.Error()
	}
	return report, err
}

func (s *Suite) run(ctx, life context.Context, show func(time.Duration) *Progress) error {
	if err := s.prepare(ctx, life); err != nil {
		return err
	}
	s.plan()
	progress := show(s.expected())
	defer progress.Close()
	if err := takeTurns(ctx, max(s.o.Jobs, 1), s.begin, s.ways, progress); err != nil {
		return err
	}
	return s.drive(ctx, progress)
}

// prepare makes all that the calls need.
func (s *Suite) prepare(ctx, life context.Context) error {
	var err error
	s.broker = &Broker{Client: s.o.Client, Pool: s.o.Pool, NoStock: s.o.NoStock}
	if err := s.broker.Check(ctx); err != nil {
		return err
	}
	if s.setting.Broker, err = s.o.Client.BrokerVersion(ctx); err != nil {
		return fmt.Errorf("bench: asking the broker for its version: %w", err)
	}
	s.ends.add(s.broker.Close)
	if s.cluster, err = OpenCluster(ctx, s.o.Config, s.o.Namespace, s.o.WarmPool); err != nil {
		return err
	}
	s.cluster.claimLife = s.o.bound()
	s.ends.add(s.cluster.Close)
	s.setting.RuntimeClass = s.cluster.RuntimeClass()
	if s.setting.Kubernetes, err = s.cluster.Version(); err != nil {
		return err
	}
	if s.o.PeerImage == "" {
		s.leftOut = append(s.leftOut, "agent-sandbox's own client: no image with sandboxd is named")
	} else {
		if s.peer, err = NewPeer(ctx, s.cluster, s.o.PeerImage); err != nil {
			return err
		}
		s.ends.add(s.peer.Close)
	}
	if s.prov, err = s.cluster.NewProvider(ctx, life); err != nil {
		return err
	}
	s.ends.add(func(ctx context.Context) error { return endAll(ctx, s.prov) })
	if s.held, err = s.cluster.Hold(ctx, s.prov); err != nil {
		return err
	}
	s.ends.add(s.held.Close)
	return s.memory(ctx)
}

// memory looks at what idle sandboxes hold.
func (s *Suite) memory(ctx context.Context) error {
	counted, err := s.held.RunnerMemory(ctx) // before it has had anything to do
	if err != nil {
		return err
	}
	add := func(key Key, name string, value float64) {
		s.figures = append(s.figures, Figure{Key: key, Name: name, Value: value, Unit: "MB", Enough: true})
	}
	runner, sleeper, err := s.cluster.IdleMemory(ctx)
	switch {
	case apierrors.IsForbidden(err):
		s.leftOut = append(s.leftOut, "the memory of idle sandboxes: "+err.Error())
	case err != nil:
		return err
	default:
		add(IdleSandbox, "an idle sandbox, all of it", runner)
		add(IdleSleeper, "the same with a program that sleeps in the runner's place", sleeper)
		add(Memory, "so the runner's", max(0, runner-sleeper))
	}
	add(MemoryInside, "runner's resident memory as gVisor counts it inside", counted)
	return nil
}

// settle waits until all pools are full and nothing is ending.
func (s *Suite) settle(ctx context.Context) error {
	looks := []look{s.broker.settled, s.cluster.settled, s.cluster.noJobs}
	if s.peer != nil {
		looks = append(looks, s.peer.settled)
	}
	return settle(ctx, looks...)
}

// begin starts a turn: with a fresh lease for the execs, and all at rest.
func (s *Suite) begin(ctx context.Context) error {
	s.turn++
	if err := s.settle(ctx); err != nil {
		return err
	}
	if err := s.broker.Renew(ctx); err != nil {
		return err
	}
	return s.settle(ctx)
}

// expected is how long it will take, roughly.
func (s *Suite) expected() time.Duration {
	total := s.o.Sustain + 2*s.o.Refill
	for _, w := range s.ways {
		total += time.Duration(w.count) * w.cost
	}
	return total
}

// drive measures how fast the pool refills, before and after it is driven by runs
// that arrive as fast as that.
func (s *Suite) drive(ctx context.Context, p *Progress) error {
	if s.o.Sustain <= 0 || s.o.Refill <= 0 {
		s.leftOut = append(s.leftOut, "the sustained load: no time is set for it")
		return nil
	}
	if err := s.broker.Close(ctx); err != nil { // its lease would count against the pool
		return err
	}
	before, err := s.refill(ctx, p)
	if err != nil {
		return err
	}
	perSecond := s.o.Rate
	if perSecond <= 0 {
		perSecond = before
	}
	if perSecond <= 0 {
		s.leftOut = append(s.leftOut, fmt.Sprintf("the sustained load: the warm pool did not refill within %s", s.o.Refill))
		return nil
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	p.Working(fmt.Sprintf("load of %.2f runs a second", perSecond))
	load := s.broker.Load(ctx, perSecond, s.o.Sustain, CallTimeout)
	p.Add(s.o.Sustain)
	s.load = &load
	for _, err := range load.Errs[:min(len(load.Errs), maxFailures)] {
		p.Note("under load: %v", err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("bench: under load: %w", ctx.Err())
	}
	after, err := s.refill(ctx, p)
	if err != nil {
		return err
	}
	s.figures = append(s.figures, loadFigures((before+after)/2, perSecond, load)...)
	return nil
}

// loadFigures tell of a load. No more runs can end than arrive, nor than the pool
// refills, which may have changed meanwhile: the lower of both is what is compared.
func loadFigures(refill, offered float64, load LoadResult) []Figure {
	enough := len(load.Runs.Samples) >= MinFast
	return []Figure{
		{Key: Refill, Name: "the warm pool's own refill, before and after the load", Value: refill, Unit: "/s", Enough: true},
		{Key: Offered, Name: "load: runs that arrived", Value: offered, Unit: "/s", Enough: true},
		{Key: Sustainable, Name: "load: runs that could end, the lower of both", Value: min(refill, offered), Unit: "/s", Enough: true},
		{Key: Sustained, Name: "load: runs that ended", Value: load.PerSecond, Unit: "/s", Enough: enough},
		{Key: Warm, Name: "load: share served from stock at once", Value: 100 * load.Warm, Unit: "%", Enough: enough},
		{Key: Dropped, Name: "load: arrivals not made, too many went on", Value: float64(load.Dropped), Enough: true},
	}
}

func (s *Suite) refill(ctx context.Context, p *Progress) (float64, error) {
	if err := s.settle(ctx); err != nil {
		return 0, err
	}
	p.Working("the warm pool's own refill")
	defer p.Add(s.o.Refill)
	return s.cluster.RefillRate(ctx, s.prov, s.o.Refill, func(err error) { p.Note("the warm pool's own refill: %v", err) })
}

// series are all of them, in the order of the table.
func (s *Suite) series() []Series {
	var all []Series
	for _, w := range s.ways {
		all = append(all, w.series)
	}
	if s.load != nil {
		run, queue := s.load.Runs, s.load.Queue
		run.Key, run.Name, run.Fewest = LoadRun, "run, under load", MinFast
		queue.Key, queue.Name, queue.Fewest = LoadQueue, "under load: until the broker had a sandbox", MinFast
		all = append(all, run, queue)
	}
	return all
}
