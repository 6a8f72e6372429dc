//go:build e2e

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// suite is one run: what goes on, and what is noted of it.
type suite struct {
	t *testing.T
	*site
	settings

	mu       sync.Mutex // guards the rest
	evidence Evidence
	problems []string // what the suite itself could not do
	leases   map[string]*sandboxclient.Lease
	doubtful time.Time // when a lease may last have been made that nobody knows
	sandbox  int       // how many leases were looked into
}

// add notes a program. What did not end as it must is said at once, beside the faults.
func (s *suite) add(e Entry) {
	switch {
	case e.Outcome != Ended:
		s.t.Logf("%s %s (%s, must be %s): %s: %s", e.Ended.Format(clock), e.ID, e.Language, e.wanted(), e.Outcome, e.Err)
	case !e.asWanted() || !e.Ending.Complete:
		s.t.Logf("%s %s (%s, must be %s): %s", e.Ended.Format(clock), e.ID, e.Language, e.wanted(), e.Err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evidence.Entries = append(s.evidence.Entries, e)
}

func (s *suite) problem(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// hold makes a lease one that faults may strike; letGo spares it from now on.
func (s *suite) hold(name string, l *sandboxclient.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[name] = l
}

func (s *suite) letGo(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, name)
}

// anyLease chooses among the leases that there are.
func (s *suite) anyLease(choice float64) *sandboxclient.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for n := range s.leases {
		names = append(names, n)
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return s.leases[names[int(choice*float64(len(names)))]]
}

func (s *suite) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubtful = time.Now()
}

// looked notes which programs ran in one sandbox.
func (s *suite) looked(ran []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandbox++
	slices.Sort(ran)
	for i := range ran[:max(0, len(ran)-1)] {
		if ran[i] == ran[i+1] {
			s.evidence.Twice = append(s.evidence.Twice, ran[i])
		}
	}
}

// pauses bounds the random pauses between faults.
type pauses struct{ least, most time.Duration }

// settings are what a run of the suite does.
type settings struct {
	seed    uint64
	lasts   time.Duration
	workers int
	// longest bounds the pauses of a program, together.
	longest time.Duration
	// ttl is the life of leases: longer than what is done in one. A lease that was given
	// to nobody, since the connection was cut before the answer, lives as long.
	ttl time.Duration
	// patient says that what goes by itself a minute later is waited for.
	patient bool
	// cuts bounds the pause between two faults of connections, others that between two
	// others.
	cuts, others pauses
	// kinds are the faults other than those of connections.
	kinds [][]FaultKind
	// together is how many clients are cut off together at the end.
	together int
}

// TestShort is one of each of the faults that are soon made good, in an order that is
// always the same unless CHAOS_SEED says otherwise. It is part of e2e.
func TestShort(t *testing.T) {
	each := slices.Compact(slices.Sorted(slices.Values(cheap)))
	run(t, settings{
		seed: seedOf(t, 1), lasts: 45 * time.Second, workers: 4, longest: 6 * time.Second, ttl: 75 * time.Second,
		cuts: pauses{3 * time.Second, 8 * time.Second}, others: pauses{2 * time.Second, 6 * time.Second},
		kinds: [][]FaultKind{each}, together: 12,
	})
}

// TestChaos is `make chaos`: every fault there is, for CHAOS_MINUTES.
func TestChaos(t *testing.T) {
	minutes := minutesOf(t)
	run(t, settings{
		seed: seedOf(t, rand.Uint64N(1_000_000)), lasts: minutes, patient: true, workers: 5, longest: 20 * time.Second, ttl: 3 * time.Minute,
		cuts: pauses{2 * time.Second, 12 * time.Second}, others: pauses{2 * time.Second, 10 * time.Second},
		kinds: [][]FaultKind{cheap, costly}, together: 24,
	})
}

func run(t *testing.T, set settings) {
	t.Logf("seed %d: CHAOS_SEED=%d does the same again", set.seed, set.seed)
	ctx := t.Context()
	before := ourselves()
	s := &suite{t: t, site: newSite(t, set.seed), settings: set, leases: map[string]*sandboxclient.Lease{}}
	noting, stop := context.WithCancel(ctx)
	defer stop()
	var stopped func()
	s.ledger, stopped = newLedger(noting, t, s.config, s.k8s)
	require.NoError(t, s.settle(ctx))
	base, err := s.atRest(ctx)
	require.NoError(t, err)

	s.storm(ctx)
	s.massCut(ctx)
	s.leftovers(ctx, base)
	stop()
	stopped()
	s.front.Close()
	for _, b := range s.brokers {
		b.back.Close()
	}
	s.ownLeftovers(ctx, before)
	s.report()
}

// storm lets workers work and breaks things under them.
func (s *suite) storm(ctx context.Context) {
	raging, calm := context.WithTimeout(ctx, s.lasts)
	defer calm()
	var all sync.WaitGroup
	for n := range s.workers {
		name := fmt.Sprintf("w%d", n)
		w := &worker{suite: s, name: name, client: s.newClient(s.t), random: randomOf(s.seed, name)}
		all.Go(func() {
			w.work(raging)
			_ = w.client.Close()
		})
	}
	all.Go(func() { s.strikes(raging, newDeck(s.seed, "cuts", s.cuts.least, s.cuts.most, ofConnections)) })
	all.Go(func() {
		s.strikes(raging, newDeck(s.seed, "others", s.others.least, s.others.most, s.kinds...))
	})
	all.Wait()
}
