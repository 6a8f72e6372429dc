package broker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// rumour is a roster whose other replica tells of an ending at some time.
type rumour struct {
	alone
	ending Ended
	at     time.Time
}

func (r *rumour) Told(lease string) []Ended {
	if lease != r.ending.Lease || time.Now().Before(r.at) {
		return nil
	}
	return []Ended{r.ending}
}

// others is a provider that is shared with other replicas.
type others struct{ Shared }

// Leases that ended without a program take nobody's place.
func TestEndingsOfProgramsAreKeptFirst(t *testing.T) {
	var e farewells
	for i := range maxEnded {
		e.add(Ended{Lease: fmt.Sprint("some", i), Execs: []string{"x"}}, true)
		e.add(Ended{Lease: fmt.Sprint("none", i)}, false)
	}
	require.Len(t, e.all(), maxEnded)
	for i := range maxEnded {
		_, ok := e.of(fmt.Sprint("some", i))
		require.True(t, ok, i)
	}
	e.add(Ended{Lease: "last", Execs: []string{"x"}}, true)
	require.Len(t, e.all(), maxEnded)
	_, ok := e.of("some0")
	require.False(t, ok, "the oldest goes")
}

// The longest list fits an annotation, and the newest are in it.
func TestAllEndingsFitAnAnnotation(t *testing.T) {
	var e farewells
	for i := range maxEnded {
		// "<" takes six bytes in JSON, and a client may make IDs of 64 characters.
		n := Ended{Lease: fmt.Sprint(i), Fate: Fate{Reason: wire.ReasonOutputLimit, Cause: wire.CauseRunnerKilled, Message: strings.Repeat("<", maxEndedText)}}
		for range maxEndedExecs {
			n.Execs, n.Over = append(n.Execs, strings.Repeat("x", 64)), append(n.Over, strings.Repeat("y", 64))
		}
		e.add(n, true)
	}
	all := e.all()
	text, err := json.Marshal(all)
	require.NoError(t, err)
	require.Less(t, len(text), 250<<10)
	require.GreaterOrEqual(t, len(all), 80)
	require.Equal(t, fmt.Sprint(maxEnded-1), all[len(all)-1].Lease)
}

// What another replica saw of a program outranks what the owner of its lease thinks:
// who asks right after the ending hears it, also if it is told a little later.
func TestWhatAnotherReplicaSawIsWaitedFor(t *testing.T) {
	oom, lost := Fate{Reason: wire.ReasonOOM}, Fate{Reason: wire.ReasonLost}
	here := &Ended{Lease: "l", Execs: []string{"x"}, Fate: oom}
	never := 2 * toldPatience
	for name, c := range map[string]struct {
		here   *Ended        // what this replica saw
		since  time.Duration // how long ago
		there  Ended         // what the other one tells
		late   time.Duration // and when
		alone  bool
		known  bool
		fate   Fate
		within time.Duration
	}{
		"over there":         {here: here, there: Ended{Over: []string{"x"}}, late: 300 * time.Millisecond, within: 300*time.Millisecond + toldLook},
		"over there, known":  {here: here, there: Ended{Over: []string{"x"}}},
		"over there, later":  {here: here, there: Ended{Over: []string{"x"}}, late: never, known: true, fate: oom, within: toldPatience + toldLook},
		"ended there":        {there: Ended{Execs: []string{"x"}, Fate: lost}, late: 300 * time.Millisecond, known: true, fate: lost, within: toldPatience + toldLook},
		"both, here first":   {here: here, there: Ended{Execs: []string{"x"}, Fate: lost}, known: true, fate: oom, within: toldPatience + toldLook},
		"here, long ago":     {here: here, since: toldPatience, late: never, known: true, fate: oom},
		"another program":    {here: &Ended{Lease: "l", Execs: []string{"y"}, Fate: oom}, since: toldPatience, late: never},
		"nobody else":        {here: here, alone: true, late: never, known: true, fate: oom},
		"nobody knows of it": {late: never, within: toldPatience + toldLook},
		"kept long enough":   {here: here, since: endedKept, late: never, within: toldPatience + toldLook},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.there.Lease = "l"
				b := &Broker{roster: &rumour{ending: c.there, at: time.Now().Add(c.since + c.late)}}
				if !c.alone {
					b.shared = others{}
				}
				if c.here != nil {
					b.ended.add(*c.here, true)
				}
				time.Sleep(c.since)
				asked := time.Now()
				fate, known := b.howEnded(t.Context(), handle{lease: "l", exec: "x"})
				require.Equal(t, c.known, known)
				if known {
					require.Equal(t, c.fate, fate)
				}
				require.LessOrEqual(t, time.Since(asked), c.within)
			})
		})
	}
}
