//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/sandbox-broker/sandbox-broker/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

const (
	// heldLeases is how many leases BenchmarkHeldLeases holds, each by a real exec stream:
	// about as many sandboxes as the local cluster's node takes.
	heldLeases = 25
	// heldStarts is how many of them are acquired at once.
	heldStarts = 4
	// heldIdle is how long it watches them, and nothing before that, idle.
	heldIdle = 30 * time.Second
	// heldRest passes before: what was started comes to rest.
	heldRest = 10 * time.Second
)

// BenchmarkHeldLeases shows what a lease that idles costs the broker and the API server,
// both by their own metrics.
//
//	make e2e TESTFLAGS='-run NONE -bench HeldLeases -benchtime 1x'
func BenchmarkHeldLeases(b *testing.B) {
	poolLike(b, "many", func(pod *corev1.PodSpec) { // what they ask for must fit on a small node
		pod.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("10m")
	})
	broker, err := startBroker(b.TempDir(), "e2e-held")
	require.NoError(b, err)
	defer func() { require.NoError(b, broker.stop()) }()
	c, err := sandboxclient.New(broker.url, sandboxclient.WithToken(token))
	require.NoError(b, err)
	defer func() { require.NoError(b, c.Close()) }()
	for b.Loop() {
		before := watchIdle(b, broker)
		leases := make([]*sandboxclient.Lease, heldLeases)
		var all errgroup.Group
		all.SetLimit(heldStarts)
		for i := range leases {
			all.Go(func() (err error) {
				ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
				defer cancel()
				leases[i], err = c.Acquire(ctx, "many")
				return err
			})
		}
		require.NoError(b, all.Wait())
		after := watchIdle(b, broker)
		for _, l := range leases {
			require.NoError(b, l.Release(b.Context()))
		}
		for i, of := range []string{"broker", "apiserver"} {
			d := after[i].minus(before[i])
			b.ReportMetric(d["process_resident_memory_bytes"]/1024/heldLeases, of+"-KiB/lease")
			b.ReportMetric(d["go_memstats_heap_inuse_bytes"]/1024/heldLeases, of+"-heap-KiB/lease")
			b.ReportMetric(d["process_open_fds"]/heldLeases, of+"-fds/lease")
			b.ReportMetric(d["go_goroutines"]/heldLeases, of+"-goroutines/lease")
			b.ReportMetric(d["process_cpu_seconds_total"]*1e6/heldIdle.Seconds()/heldLeases, of+"-cpu-us/s/lease")
		}
	}
}

// gauges are values of a process's metrics by name.
type gauges map[string]float64

func (g gauges) minus(other gauges) gauges {
	d := gauges{}
	for name, v := range g {
		d[name] = v - other[name]
	}
	return d
}

// watchIdle is what the broker and the API server hold after heldIdle, and the processor
// time that they used meanwhile.
func watchIdle(b *testing.B, broker *brokerProcess) [2]gauges {
	b.Helper()
	api := apiServer(b)
	read := func() [2]gauges {
		return [2]gauges{gaugesOf(b, httpText(b, broker.metrics+"/metrics")), gaugesOf(b, api("/metrics"))}
	}
	time.Sleep(heldRest)
	began := read()
	time.Sleep(heldIdle) // its subject
	now := read()
	for i := range now {
		now[i]["process_cpu_seconds_total"] -= began[i]["process_cpu_seconds_total"]
	}
	return now
}

// apiServer asks the API server itself.
func apiServer(b *testing.B) func(path string) []byte {
	b.Helper()
	config, err := kube.Config("")
	require.NoError(b, err)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.GroupVersion = &scheme.Scheme.PrioritizedVersionsAllGroups()[0]
	client, err := rest.UnversionedRESTClientFor(config)
	require.NoError(b, err)
	return func(path string) []byte {
		text, err := client.Get().AbsPath(path).DoRaw(b.Context())
		require.NoError(b, err)
		return text
	}
}

func gaugesOf(b *testing.B, text []byte) gauges {
	b.Helper()
	g := gauges{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		var v float64
		if _, err := fmt.Sscan(value, &v); ok && err == nil && !strings.HasPrefix(name, "#") {
			g[name] = v
		}
	}
	require.NoError(b, lines.Err())
	return g
}
