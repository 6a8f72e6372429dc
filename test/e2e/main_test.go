//go:build e2e

// Package e2e tests the broker on a real Kubernetes with gVisor: what `make
// cluster-up` starts, or any cluster that KUBECONFIG names and that has the
// bases of deploy/.
//
// Most tests use a broker that the suite starts as a process of its own, with
// its own instance name and short times; those in incluster_test.go use the one
// that runs in the cluster.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sandboxv1beta1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

const (
	namespace = "sandboxes"
	warmPool  = "python-gvisor"
	token     = "e2e-token-of-tenant-a"
	// slow is a pool without stock and with the limits the tests are about; fast
	// has one sandbox in stock.
	slow, fast = "slow", "fast"
	// detachGrace of the pools.
	detachGrace = 3 * time.Second
	// goneWithin is how soon after its end a run's claim and pod must be gone. An idle
	// machine needs a second or two.
	goneWithin = 15 * time.Second
)

var (
	k8s  client.Client
	site *brokerProcess
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if k8s, err = kubernetes(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: no cluster:", err, "(run `make cluster-up`, then `make e2e`)")
		return 1
	}
	dir, err := os.MkdirTemp("", "sandbox-broker-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if site, err = startBroker(dir, "e2e"); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if err := site.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	if err := noClaimLeft(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "e2e: the end of the broker's log:\n%s\n", site.log.tail(100))
	}
	return code
}

func kubernetes() (client.Client, error) {
	config, err := kube.Config("")
	if err != nil {
		return nil, err
	}
	scheme := k8sruntime.NewScheme()
	for _, add := range []func(*k8sruntime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, policyv1.AddToScheme, schedulingv1.AddToScheme, extensionsv1beta1.AddToScheme, sandboxv1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// noClaimLeft is the suite's last test: the broker has stopped, so that nothing
// of its instance may be there.
func noClaimLeft() error {
	deadline := time.Now().Add(goneWithin)
	for {
		claims, err := claimsOf(context.Background(), "e2e")
		if err == nil && len(claims) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			var names []string
			for _, c := range claims {
				names = append(names, c.Name)
			}
			return fmt.Errorf("after the suite claims are left: %v (%w)", names, errors.Join(errLeft, err))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

var errLeft = errors.New("they must be gone when the broker has stopped")

func claimsOf(ctx context.Context, instance string) ([]extensionsv1beta1.SandboxClaim, error) {
	var claims extensionsv1beta1.SandboxClaimList
	err := k8s.List(ctx, &claims, client.InNamespace(namespace), client.MatchingLabels{"sandbox-broker.dev/instance": instance})
	return claims.Items, err
}

// root is the project's folder.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// brokerProcess is a broker that the suite started.
type brokerProcess struct {
	cmd     *exec.Cmd
	url     string
	metrics string
	log     *logBuffer
}

const configText = `
listen: 127.0.0.1:0
metricsListen: 127.0.0.1:0
instance: %[1]s
handleKeyFile: %[2]s/key
auth: {tokensFile: %[2]s/tokens.yaml}
provider: {agentSandbox: {namespace: %[3]s}}
pools:
- name: slow
  warmPool: %[4]s
  maxSandboxes: 4
  detachGrace: %[5]s
  queue: {timeout: 3m}
- name: fast
  warmPool: %[4]s
  maxSandboxes: 2
  stock: 1
  detachGrace: %[5]s
- {name: missing, warmPool: no-such-pool}
# That of BenchmarkHeldLeases.
- {name: many, warmPool: e2e-many, maxSandboxes: 50, cold: allow, readyTimeout: 3m, queue: {timeout: 5m}}
# Those of TestAcquireErrors.
- {name: no-image, warmPool: e2e-no-image}
- {name: no-node, warmPool: e2e-no-node}
- {name: no-quota, warmPool: e2e-no-quota}
- name: python-init
  readyTimeout: 2m
  queue: {timeout: 3m}
`

// startBroker runs bin/sandbox-broker serve, with more variables than the suite's own,
// and waits until it listens.
func startBroker(dir, instance string, env ...string) (*brokerProcess, error) {
	for name, text := range map[string]string{
		"key":         strings.Repeat("k", 32),
		"tokens.yaml": fmt.Sprintf("tokens: [{token: %s, tenant: tenant-a}, {token: other, tenant: tenant-b}]\n", token),
		"config.yaml": fmt.Sprintf(configText, instance, dir, namespace, warmPool, detachGrace),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	b := &brokerProcess{log: &logBuffer{}}
	b.cmd = exec.Command(filepath.Join(root(), "bin", "sandbox-broker"), "serve", "--config", filepath.Join(dir, "config.yaml"))
	b.cmd.Env = append(os.Environ(), env...)
	stderr, err := b.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the broker (make build?): %w", err)
	}
	listening := make(chan struct{})
	go b.read(stderr, listening)
	select {
	case <-listening:
		return b, nil
	case <-time.After(90 * time.Second):
		_ = b.cmd.Process.Kill()
		return nil, fmt.Errorf("the broker does not listen; its log:\n%s", b.log.tail(30))
	}
}

// read keeps the log and finds the addresses in it.
func (b *brokerProcess) read(stderr interface{ Read([]byte) (int, error) }, listening chan<- struct{}) {
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		b.log.add(lines.Text())
		var entry struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &entry) != nil {
			continue
		}
		switch entry.Msg {
		case "metrics":
			b.metrics = "http://" + entry.Address
		case "listening":
			b.url = "http://" + entry.Address
			close(listening)
		}
	}
}

func (b *brokerProcess) stop() error {
	if err := b.cmd.Process.Signal(os.Interrupt); err != nil {
		return fmt.Errorf("stopping the broker: %w", err)
	}
	if err := b.cmd.Wait(); err != nil {
		return fmt.Errorf("the broker ended badly: %w", err)
	}
	return nil
}

// metric reads one value of the broker's metrics by its line's beginning.
func (b *brokerProcess) metric(t *testing.T, prefix string) float64 {
	t.Helper()
	var sum float64
	lines := bufio.NewScanner(bytes.NewReader(httpText(t, b.metrics+"/metrics")))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), prefix) {
			var v float64
			_, err := fmt.Sscan(lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:], &v)
			require.NoError(t, err)
			sum += v
		}
	}
	return sum
}

// httpText gets a page.
func httpText(t testing.TB, url string) []byte {
	t.Helper()
	res, err := http.Get(url)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return text
}

// logBuffer keeps a process's log lines.
type logBuffer struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (l *logBuffer) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, s)
}

func (l *logBuffer) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines[max(0, len(l.lines)-n):], "\n")
}

func newClient(t *testing.T) *sandboxclient.Client {
	t.Helper()
	c, err := sandboxclient.New(site.url, sandboxclient.WithToken(token))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// within bounds a test.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// settle waits until nothing of earlier tests goes on: no lease of the slow pool,
// no pod that is ending, the warm pool full. A test of times needs it.
func settle(t *testing.T) {
	t.Helper()
	ctx := within(t, 3*time.Minute)
	eventually(t, 2*time.Minute, "the cluster has settled", func() bool {
		if len(leased(ctx, t)) > 0 {
			return false
		}
		var pool extensionsv1beta1.SandboxWarmPool
		require.NoError(t, k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: warmPool}, &pool))
		if pool.Spec.Replicas == nil || pool.Status.ReadyReplicas < *pool.Spec.Replicas {
			return false
		}
		var pods corev1.PodList
		require.NoError(t, k8s.List(ctx, &pods, client.InNamespace(namespace)))
		for i := range pods.Items {
			if !pods.Items[i].DeletionTimestamp.IsZero() {
				return false
			}
		}
		return true
	})
}

// podOf returns the pod that was adopted for a claim.
func podOf(ctx context.Context, t *testing.T, claim string) *corev1.Pod {
	t.Helper()
	var c extensionsv1beta1.SandboxClaim
	require.NoError(t, k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: claim}, &c))
	var pod corev1.Pod
	require.NoError(t, k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: c.Status.SandboxStatus.Name}, &pod))
	require.Equal(t, string(c.UID), pod.Labels["agents.x-k8s.io/claim-uid"])
	return &pod
}

// leased returns the claims of leases in the slow pool: it has no stock.
func leased(ctx context.Context, t *testing.T) []extensionsv1beta1.SandboxClaim {
	t.Helper()
	claims, err := claimsOf(ctx, "e2e")
	require.NoError(t, err)
	var out []extensionsv1beta1.SandboxClaim
	for _, c := range claims {
		if c.Labels["sandbox-broker.dev/pool"] == slow && c.DeletionTimestamp.IsZero() {
			out = append(out, c)
		}
	}
	return out
}

// onlyLease returns the one claim of the slow pool, waiting until it is leased.
func onlyLease(ctx context.Context, t *testing.T) extensionsv1beta1.SandboxClaim {
	t.Helper()
	var found extensionsv1beta1.SandboxClaim
	eventually(t, 30*time.Second, "one lease is recorded", func() bool {
		claims := leased(ctx, t)
		if len(claims) != 1 || claims[0].Annotations["sandbox-broker.dev/record"] == "" {
			return false
		}
		found = claims[0]
		return true
	})
	return found
}

// requireGone checks that a claim and its pod vanish in time.
func requireGone(t *testing.T, claim extensionsv1beta1.SandboxClaim, pod string, d time.Duration) {
	t.Helper()
	ctx := within(t, d+30*time.Second)
	began := time.Now()
	eventually(t, d, "claim and pod are gone", func() bool {
		var c extensionsv1beta1.SandboxClaim
		err := k8s.Get(ctx, client.ObjectKeyFromObject(&claim), &c)
		if !apierrors.IsNotFound(err) && (err != nil || c.UID == claim.UID) {
			return false
		}
		var p corev1.Pod
		return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pod}, &p))
	})
	t.Logf("claim and pod were gone after %s", time.Since(began).Round(10*time.Millisecond))
}

// requireNoLease checks that the slow pool's claims vanish.
func requireNoLease(t *testing.T, d time.Duration) {
	t.Helper()
	ctx := within(t, d+30*time.Second)
	eventually(t, d, "no lease is left", func() bool { return len(leased(ctx, t)) == 0 })
}

// eventually looks at a state, which nothing reports, until it holds.
func eventually(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(d)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", d, what)
		}
		time.Sleep(20 * time.Millisecond) // between two looks
	}
}

// timedWriter notes when each line arrived.
type timedWriter struct {
	mu    sync.Mutex // guards the rest
	buf   bytes.Buffer
	lines []time.Time
}

func (w *timedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range bytes.Count(p, []byte("\n")) {
		w.lines = append(w.lines, time.Now())
	}
	return w.buf.Write(p)
}

func (w *timedWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func (w *timedWriter) times() []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]time.Time(nil), w.lines...)
}
