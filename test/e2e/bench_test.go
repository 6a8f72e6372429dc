//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/internal/bench"
)

const (
	// benchNamespaces begins the names of the benchmark's own namespaces.
	benchNamespaces = "sandbox-broker-bench-"
	// sandboxdImage is what the local cluster has for agent-sandbox's client.
	sandboxdImage = "localhost/sandbox-broker/sandbox-sandboxd:dev"
	// benchGone is how soon after its end nothing of the benchmark may be left.
	benchGone = 10 * time.Second
)

// benchCommand is the benchmark with few calls of each kind, on the suite's broker.
func benchCommand(ctx context.Context, t *testing.T, report string, args ...string) *exec.Cmd {
	t.Helper()
	tokenFile := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte(token), 0o600))
	all := append([]string{
		"bench", "--server", site.url, "--token-file", tokenFile, "--namespace", namespace, "--json", report,
		"--pool", fast, "--no-stock-pool", slow, "--warm-pool", warmPool, "--sandboxd-image", sandboxdImage,
	}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(root(), "bin", "sandbox-broker"), all...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 2 * time.Minute // for cleaning up
	return cmd
}

// requireNothingOfBenchIsLeft looks for claims and namespaces of any benchmark.
func requireNothingOfBenchIsLeft(t *testing.T) {
	t.Helper()
	ctx := within(t, benchGone+30*time.Second)
	eventually(t, benchGone, "nothing of the benchmark is left", func() bool {
		var namespaces corev1.NamespaceList
		require.NoError(t, k8s.List(ctx, &namespaces))
		for _, ns := range namespaces.Items {
			if strings.HasPrefix(ns.Name, benchNamespaces) {
				return false
			}
		}
		var claims extensionsv1beta1.SandboxClaimList
		require.NoError(t, k8s.List(ctx, &claims, client.InNamespace(namespace)))
		for _, c := range claims.Items {
			if c.Labels["sandbox-broker.dev/bench"] != "" || strings.HasPrefix(c.Labels["sandbox-broker.dev/instance"], benchNamespaces) {
				return false
			}
		}
		return true
	})
}

func TestBenchMeasuresEveryWay(t *testing.T) {
	settle(t)
	path := filepath.Join(t.TempDir(), "latest.json")
	cmd := benchCommand(within(t, 4*time.Minute), t, path, "--jobs", "1", "--runs", "2", "--others", "1", "--extras", "1", "--trips", "5", "--bulk", "1", "--sustain", "10s")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	require.NoError(t, cmd.Run(), "%s\n%s", complaint.String(), out.String())

	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var report bench.Report
	require.NoError(t, json.Unmarshal(text, &report))
	require.Empty(t, report.LeftOut)
	require.Empty(t, report.Ended)
	samples := map[bench.Key]int{}
	for _, row := range report.Rows {
		require.Zero(t, row.Failed, "%s: %s", row.Name, complaint.String())
		require.Positive(t, row.Done.P50, row.Name)
		samples[row.Key] = row.Samples
	}
	for key, want := range map[bench.Key]int{
		bench.Job: 1, bench.ClaimExec: 1, bench.PeerFirst: 1, bench.PeerLater: 2, bench.PeerBackToBack: 2, bench.RunStock: 2, bench.RunBackToBack: 1,
		bench.RunNoStock: 1, bench.AcquireStock: 1, bench.Exec: 2, bench.ExecBackToBack: 2, bench.Channel: 5, bench.BareEcho: 5,
		bench.LeaseEcho: 5, bench.OutputDelay: 5, bench.StdoutBare: 1, bench.StdoutLease: 1,
	} {
		require.Equal(t, want, samples[key], "samples of %s", key)
	}
	require.Positive(t, samples[bench.LoadRun])
	for _, j := range report.Goals {
		require.Contains(t, out.String(), j.Name)
	}
	_, err = os.Stat(bench.ChartPath(path))
	require.NoError(t, err)
	requireNothingOfBenchIsLeft(t)
}

func TestInterruptedBenchLeavesNothing(t *testing.T) {
	ctx, interrupt := context.WithCancel(within(t, 4*time.Minute))
	defer interrupt()
	cmd := benchCommand(ctx, t, "", "--jobs", "50")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	require.NoError(t, cmd.Start())
	eventually(t, time.Minute, "the first call is measured", func() bool {
		var pods corev1.PodList
		require.NoError(t, k8s.List(within(t, time.Minute), &pods))
		for i := range pods.Items {
			if strings.HasPrefix(pods.Items[i].Namespace, benchNamespaces) && pods.Items[i].Labels["batch.kubernetes.io/job-name"] != "" {
				return true
			}
		}
		return false
	})
	interrupt()
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 130, exit.ExitCode(), complaint.String())
	requireNothingOfBenchIsLeft(t)
}
