//go:build e2e

package chaos

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seedOf is CHAOS_SEED, or else another seed.
func seedOf(t *testing.T, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv("CHAOS_SEED")
	if text == "" {
		return otherwise
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, "CHAOS_SEED")
	return seed
}

// minutesOf is CHAOS_MINUTES; without it the test is skipped.
func minutesOf(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("CHAOS_MINUTES")
	if text == "" {
		t.Skip("CHAOS_MINUTES is not set: `make chaos` sets it")
	}
	minutes, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err, "CHAOS_MINUTES")
	return time.Duration(minutes * float64(time.Minute))
}

// resolve finds the entries in the brokers' logs, with their sandboxes.
func (s *suite) resolve() {
	s.notes.mu.Lock()
	defer s.notes.mu.Unlock()
	leases, ours := map[string]string{}, map[string]bool{}
	for i := range s.evidence.Entries {
		e := &s.evidence.Entries[i]
		exec := e.ID
		if e.Request != "" {
			exec = s.notes.requests[e.Request]
		}
		ours[exec], e.Exec = true, exec
		e.Claim = s.notes.told[exec].Claim
		if e.Lease != "" && e.Claim != "" {
			leases[e.Lease] = e.Claim
		}
	}
	for i := range s.evidence.Entries {
		if e := &s.evidence.Entries[i]; e.Claim == "" {
			e.Claim = leases[e.Lease]
		}
	}
	for exec := range s.notes.told {
		if !ours[exec] && !strings.HasPrefix(exec, ownPrefix) {
			s.evidence.Abandoned++
		}
	}
	for i := range s.evidence.Faults {
		f := &s.evidence.Faults[i]
		f.Targets = append(f.Targets, s.ledger.of(f.Pods)...)
	}
	s.evidence.Told = maps.Clone(s.notes.told)
	s.evidence.Twice = append(s.evidence.Twice, s.notes.twice...)
	s.problems = append(s.problems, s.notes.dead...)
}

// report judges and says what came of it all.
func (s *suite) report() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resolve()
	v := Judge(&s.evidence)
	faults := map[string]int{}
	for _, f := range s.evidence.Faults {
		faults[string(f.Kind)]++
	}
	s.t.Logf("faults: %d; %s", len(s.evidence.Faults), inOrder(faults))
	s.t.Logf("programs: %d, of which %d ended as they must with all of their output (%.1f %%); %.1f MiB of output checked; %d sandboxes looked into for programs that ran twice",
		v.Started, v.Complete, 100*float64(v.Complete)/float64(max(1, v.Started)), float64(v.Bytes)/(1<<20), s.sandbox)
	s.t.Logf("outcomes: %s; %d started whose callers had been cut off before the answer", inOrder(v.Endings), s.evidence.Abandoned)
	charges := map[string]int{}
	for _, c := range v.Violations {
		charges[string(c.Charge)]++
		s.t.Errorf("VIOLATION %s", c)
	}
	for _, p := range s.problems {
		s.t.Errorf("PROBLEM %s", p)
	}
	s.t.Logf("violations: %d lost bytes, %d wrong endings, %d left over, %d in all",
		charges[string(LostBytes)]+charges[string(WrongBytes)], len(v.Violations)-charges[string(LostBytes)]-charges[string(WrongBytes)]-charges[string(Leak)],
		charges[string(Leak)], len(v.Violations))
}

// inOrder writes counts down, in the order of their names.
func inOrder(counts map[string]int) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(out, ", ")
}
