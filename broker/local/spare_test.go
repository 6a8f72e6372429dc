package local_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/internal/corpus"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// bound is the lease of these tests.
var bound = channel.Bind{Lease: "l", Tenant: "t"}

// takeRunner takes a sandbox, opens its channel for the lease bound, and has it start
// spare interpreters of every language.
func takeRunner(t testing.TB, o local.Options) *channel.Client {
	t.Helper()
	c := takeUnbound(t, open(t, o))
	require.NoError(t, c.Bind(t.Context(), bound))
	_, err := c.Prepare(within(t, time.Minute), channel.Prepare{Spares: []string{"python", "node", "shell"}})
	require.NoError(t, err)
	return c
}

// takeUnbound takes a sandbox and opens its channel.
func takeUnbound(t testing.TB, p *local.Provider) *channel.Client {
	t.Helper()
	ctx := within(t, time.Minute)
	s, err := p.Take(ctx, broker.TakeRequest{Pool: "test", WarmPool: "test", Until: time.Now().Add(10 * time.Minute)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.End(within(t, time.Minute))) })
	conn, err := s.Dial(ctx)
	require.NoError(t, err)
	c, err := channel.Open(ctx, conn, bytes.Repeat([]byte{1}, 32), "")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// spareOf waits until a spare is ready, if the sandbox has the language.
func spareOf(t testing.TB, c *channel.Client, lang string) channel.Spare {
	t.Helper()
	var s channel.Spare
	require.Eventually(t, func() bool {
		st, err := c.Status(t.Context())
		require.NoError(t, err)
		if !slices.Contains(st.Languages, lang) {
			t.Skipf("the sandbox has no %s", lang)
		}
		s = st.Spares[lang]
		return s.Ready
	}, time.Minute, time.Millisecond, "no spare got ready")
	return s
}

// The programs of the corpus behave alike in a gVisor sandbox too.
func TestSpareCorpus(t *testing.T) {
	cases, err := corpus.Cases()
	require.NoError(t, err)
	c := takeRunner(t, options(t, local.RuntimeRunsc))
	// As a command: a shell's spare is to be left for the program.
	tidy := func(id string) {
		s, err := c.Exec(within(t, time.Minute), "tidy-"+id, channel.Start{
			Bind: bound, Timeout: time.Minute, Program: &wire.Program{Argv: []string{"sh", "-c", "rm -rf ./* /tmp/*"}},
		}, nil)
		require.NoError(t, err)
		defer s.Close()
		for {
			f, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			require.NoError(t, err)
			if f.Kind == wire.KindExit {
				require.NoError(t, s.Send(wire.Frame{Kind: wire.KindDone}))
			}
		}
	}
	for _, p := range cases {
		t.Run(p.Name, func(t *testing.T) {
			if p.Language == "shell" && p.PrintsID() {
				t.Skip("it prints the variable that makes a run fresh")
			}
			freshID, spareID := p.IDs()
			before := spareOf(t, c, p.Language)
			want, _, err := p.ForFresh().Exec(within(t, time.Minute), c, bound, freshID)
			require.NoError(t, err)
			tidy(freshID)
			spareOf(t, c, p.Language)
			got, _, err := p.ForSpare().Exec(within(t, time.Minute), c, bound, spareID)
			require.NoError(t, err)
			tidy(spareID)
			require.Empty(t, corpus.Diff(want, got))
			st, err := c.Status(within(t, time.Minute))
			require.NoError(t, err)
			require.Equal(t, !p.Fresh, st.Spares[p.Language].Used == before.Used+1, "whether a spare was used")
		})
	}
}

// BenchmarkSpare is the one of package runner, in a gVisor sandbox.
func BenchmarkSpare(b *testing.B) {
	const runs = 40
	for _, lang := range []string{"python", "node", "shell"} {
		b.Run(lang, func(b *testing.B) {
			c := takeRunner(b, options(b, local.RuntimeRunsc))
			ready := func() { spareOf(b, c, lang) }
			sum := corpus.Sum(lang)
			fresh := sum.ForFresh()
			for b.Loop() {
				var f, s, back corpus.Times
				for range runs { // in turns: other load is the same for both
					ready()
					require.NoError(b, f.Time(b.Context(), fresh, c, bound, "fresh"))
					ready()
					require.NoError(b, s.Time(b.Context(), sum, c, bound, "spare"))
				}
				ready()
				for range runs {
					require.NoError(b, back.Time(b.Context(), sum, c, bound, "back"))
				}
				b.ReportMetric(f.P50(), "fresh-ms")
				b.ReportMetric(s.P50(), "spare-ms")
				b.ReportMetric(f.Mean(), "fresh-mean-ms")
				b.ReportMetric(back.Mean(), "back-to-back-mean-ms")
				b.ReportMetric(f.P50()/s.P50(), "times-faster")
			}
		})
	}
}

// What test/e2e does with the whole corpus on a cluster works: some of it here.
func TestSpareCorpusInALease(t *testing.T) {
	cases, err := corpus.Cases()
	require.NoError(t, err)
	s := newSite(t, options(t, local.RuntimeRunsc))
	lease, err := s.Acquire(within(t, time.Minute), "test")
	require.NoError(t, err)
	defer func() { require.NoError(t, lease.Release(within(t, time.Minute))) }()
	for _, p := range cases {
		if slices.Contains([]string{"identity", "error_chain", "input", "fresh_tz", "node_error", "node_worker", "fresh_node_stdin", "shell_stdin"}, p.Name) {
			t.Run(p.Name, func(t *testing.T) {
				diff, err := p.CompareInLease(within(t, time.Minute), lease)
				require.NoError(t, err)
				require.Empty(t, diff)
			})
		}
	}
}

// BenchmarkFirstRun is of the first program of a sandbox, which was prepared for it
// before anybody had it, with a rehearsal, and after, without.
func BenchmarkFirstRun(b *testing.B) {
	const runs = 15
	for _, lang := range []string{"python", "node", "shell"} {
		b.Run(lang, func(b *testing.B) {
			sum := corpus.Sum(lang)
			p := open(b, options(b, local.RuntimeRunsc))
			for b.Loop() {
				var first, rehearsed corpus.Times
				for range runs {
					for _, times := range []*corpus.Times{&first, &rehearsed} {
						c := takeUnbound(b, p)
						if times == &first {
							require.NoError(b, c.Bind(b.Context(), bound))
						}
						_, err := c.Prepare(within(b, time.Minute), channel.Prepare{Spares: []string{lang}})
						require.NoError(b, err)
						spareOf(b, c, lang)
						time.Sleep(firstRunPause)
						require.NoError(b, times.Time(b.Context(), sum, c, bound, "first"))
					}
				}
				b.ReportMetric(first.P50(), "first-ms")
				b.ReportMetric(rehearsed.P50(), "rehearsed-ms")
				b.ReportMetric(first.P50()/rehearsed.P50(), "times-faster")
			}
		})
	}
}

// firstRunPause lets a sandbox come to rest, as one in stock has.
const firstRunPause = 300 * time.Millisecond
