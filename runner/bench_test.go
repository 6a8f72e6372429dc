package runner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/corpus"
)

// BenchmarkSpare prints how long a small program takes with an interpreter of its
// own, with a spare that is ready, and with spares but one run right after another.
// Run it with -benchtime 1x: the number of runs is its own.
func BenchmarkSpare(b *testing.B) {
	const runs = 60
	for lang := range interpreters {
		b.Run(lang, func(b *testing.B) {
			needInterpreter(b, lang)
			fresh := startRunnerIn(b, b.TempDir(), "fresh", plainPath).open()
			spare := startRunnerIn(b, b.TempDir(), "spare", plainPath, "SANDBOX_SPARES="+lang).open()
			sum := corpus.Sum(lang)
			for b.Loop() {
				var f, s, back corpus.Times
				for range runs { // in turns: other load is the same for both
					require.NoError(b, f.Time(b.Context(), sum, fresh, lease, "fresh"))
					waitSpare(b, spare, lang)
					require.NoError(b, s.Time(b.Context(), sum, spare, lease, "spare"))
					waitSpare(b, spare, lang)
				}
				for range runs {
					require.NoError(b, back.Time(b.Context(), sum, spare, lease, "back"))
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
