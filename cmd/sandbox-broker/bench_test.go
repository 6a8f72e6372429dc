package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/bench"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
)

// parsed is what the flags make of the options.
func parsed(t *testing.T, args ...string) benchOptions {
	t.Helper()
	var o benchOptions
	cmd := newBenchCommand(streams{})
	cmd.ResetFlags()
	o.register(cmd.Flags())
	require.NoError(t, cmd.ParseFlags(args))
	o.setCounts(cmd.Flags())
	return o
}

func TestBenchCounts(t *testing.T) {
	require.Equal(t, bench.Full, parsed(t).bench.Counts)
	require.Equal(t, bench.Short, parsed(t, "--short").bench.Counts)

	o := parsed(t, "--short", "--jobs", "7", "--sustain", "3s")
	require.Equal(t, 7, o.bench.Jobs)
	require.Equal(t, bench.Short.Runs, o.bench.Runs, "what is not asked for stays short")
	require.Equal(t, 3*time.Second, o.bench.Sustain)
	require.Equal(t, 3*time.Second, o.bench.Refill, "never longer than the load")

	o = parsed(t, "--runs", "1", "--others", "2", "--extras", "5", "--trips", "3", "--bulk", "4", "--sustain", "0")
	require.Equal(t, bench.Counts{Jobs: bench.Full.Jobs, Runs: 1, Others: 2, Extras: 5, Trips: 3, Bulk: 4}, o.bench.Counts)
}

func TestBenchWarmPool(t *testing.T) {
	require.Equal(t, "python-gvisor", parsed(t).bench.WarmPool)
	require.Equal(t, "fast", parsed(t, "--pool", "fast").bench.WarmPool)
	require.Equal(t, "warm", parsed(t, "--pool", "fast", "--warm-pool", "warm").bench.WarmPool)
}

func TestBenchCheckNamesWhatIsBelow(t *testing.T) {
	report := bench.NewReport(bench.Setting{}, nil, []bench.Figure{{Key: bench.Memory, Value: 20, Unit: "MB", Enough: true}}, nil)
	var out bytes.Buffer
	o := benchOptions{check: true}
	err := o.judge(report, &out)
	require.Equal(t, exitBelow, reportCode(err))
	require.Contains(t, out.String(), "bench: below: runner's memory in an idle sandbox: 20 MB, it must be at most 12\n")
	require.Contains(t, out.String(), "bench: below: acquire from stock: not measured")

	o.check = false
	out.Reset()
	require.NoError(t, o.judge(report, &out))
	require.Empty(t, out.String())
}

func reportCode(err error) int {
	var text bytes.Buffer
	return report(err, &text)
}

func TestBenchPublishes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench", "latest.json")
	o := benchOptions{json: path}
	var out bytes.Buffer
	require.NoError(t, o.publish(bench.NewReport(bench.Setting{}, nil, nil, nil), &out))
	require.Contains(t, out.String(), "verdict")
	for _, file := range []string{path, bench.ChartPath(path)} {
		_, err := os.Stat(file)
		require.NoError(t, err)
	}
	o.json = ""
	require.NoError(t, o.publish(bench.NewReport(bench.Setting{}, nil, nil, nil), &out))
}

// Before anything is made in a cluster, the broker's pools are looked at.
func TestBenchNeedsAPoolWithStock(t *testing.T) {
	scriptBroker(t, func(*brokertest.Stream) {})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`
apiVersion: v1
kind: Config
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: nowhere, context: {cluster: nowhere}}]
current-context: nowhere
`), 0o600))
	got := call(t, nil, "bench", "--kubeconfig", kubeconfig)
	require.Equal(t, 125, got.code)
	require.Contains(t, got.err, "the broker has no pool python-gvisor")
	require.Empty(t, got.out)
}
