package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(path, got, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "see what changed, then `make golden`")
}

func TestPrintedReport(t *testing.T) {
	t.Parallel()
	r := everythingMet()
	r.Rows[0].Failed = 1
	r.LeftOut = []string{"runs without stock: no pool without stock is named"}
	r.Ended = "bench: waiting for the echo: context canceled"
	r.Goals = append(r.Goals, reportOf(nil).Goals[0])
	var out bytes.Buffer
	require.NoError(t, r.Print(&out))
	golden(t, "report.golden.txt", out.Bytes())
}

type broken struct{}

var errFull = errors.New("the disk is full")

func (broken) Write([]byte) (int, error) { return 0, errFull }

func TestPrintTellsOfAFailedWrite(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, everythingMet().Print(broken{}), errFull)
}

func TestChart(t *testing.T) {
	t.Parallel()
	r := everythingMet()
	r.Rows[0].Name = "a Job & <more>"
	chart := r.Chart()
	golden(t, "chart.golden.svg", chart)
	for d := xml.NewDecoder(bytes.NewReader(chart)); ; { // it is well-formed
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	require.NotContains(t, string(chart), "stdout", "a rate is no time")
}

func TestChartOfNothing(t *testing.T) {
	t.Parallel()
	require.Contains(t, string(reportOf(nil).Chart()), "</svg>")
	require.Contains(t, string(reportOf(nil, measured(Job, 1, 1)).Chart()), "1 ms")
}

func TestLogScale(t *testing.T) {
	t.Parallel()
	s := newLogScale([]Row{{Done: Times{P50: 0.8, P99: 3}}, {Done: Times{P50: 30, P99: 2500}}})
	require.Equal(t, logScale{low: -1, high: 4}, s)
	require.InDelta(t, labelWidth, s.x(0.1), 1e-6)
	require.InDelta(t, labelWidth+barsWidth, s.x(10000), 1e-6)
	require.InDelta(t, labelWidth+barsWidth/5.0, s.x(1), 1e-6)
	require.Equal(t, logScale{low: 0, high: 1}, newLogScale([]Row{{Done: Times{P50: 1, P99: 1}}}), "never empty")
}

func TestReportFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "latest.json")
	r := everythingMet()
	require.NoError(t, r.WriteFiles(path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, *r, back, "JSON holds all of it")
	chart, err := os.ReadFile(filepath.Join(filepath.Dir(path), "latest.svg"))
	require.NoError(t, err)
	require.Equal(t, r.Chart(), chart)
	require.Error(t, r.WriteFiles(filepath.Join(path, "a-file-is-no-folder", "x.json")))
}

func TestChartPath(t *testing.T) {
	t.Parallel()
	require.Equal(t, "bench/latest.svg", ChartPath("bench/latest.json"))
	require.Equal(t, "a.b/latest.svg", ChartPath("a.b/latest"))
}

func TestAnEarlyEndIsInTheReport(t *testing.T) {
	t.Parallel()
	r := reportOf(nil)
	require.False(t, strings.Contains(mustPrint(t, r), "ended early"))
	r.Ended = "it was interrupted"
	require.Contains(t, mustPrint(t, r), "ended early: it was interrupted")
}

func mustPrint(t *testing.T, r *Report) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, r.Print(&out))
	return out.String()
}
