//go:build e2e

package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

func TestTwoHundredRunsInARow(t *testing.T) {
	c := newClient(t)
	for i := range 200 {
		res, err := c.Run(within(t, 2*time.Minute), sandboxclient.Code{Pool: slow, Language: "shell", Source: fmt.Sprintf("echo %d", i)})
		require.NoError(t, err, "run %d", i)
		require.Equal(t, fmt.Sprintf("%d\n", i), string(res.Stdout))
		require.True(t, res.Ending.Complete)
	}
	requireNoLease(t, goneWithin)
}

func TestTwentyAtOnce(t *testing.T) {
	c := newClient(t)
	ctx := within(t, 3*time.Minute)
	stop := make(chan struct{})
	most := make(chan int, 1)
	go func() { // watches the bound from outside
		peak := 0
		for {
			select {
			case <-stop:
				most <- peak
				return
			case <-time.After(50 * time.Millisecond):
				claims, err := claimsOf(ctx, "e2e")
				if err != nil {
					continue
				}
				n := 0
				for _, claim := range claims {
					if claim.Labels["sandbox-broker.dev/pool"] == slow && claim.DeletionTimestamp.IsZero() {
						n++
					}
				}
				peak = max(peak, n)
			}
		}
	}()
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() {
			res, err := c.Run(ctx, sandboxclient.Code{Pool: slow, Language: "python", Source: fmt.Sprintf("import time; time.sleep(0.3); print(%d)", i)})
			if err == nil && string(res.Stdout) != fmt.Sprintf("%d\n", i) {
				err = fmt.Errorf("run %d printed %q", i, res.Stdout)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	close(stop)
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.LessOrEqual(t, <-most, 4, "maxSandboxes")
	requireNoLease(t, goneWithin)
}

func TestStockServesAtOnce(t *testing.T) {
	c := newClient(t)
	for range 5 {
		eventually(t, time.Minute, "the stock is full", func() bool {
			return site.metric(t, `sandbox_broker_sandboxes{pool="fast",state="stock"}`) == 1
		})
		began := time.Now()
		_, err := c.Run(within(t, time.Minute), sandboxclient.Code{Pool: fast, Language: "shell", Source: "true"})
		require.NoError(t, err)
		t.Logf("a run from stock took %s", time.Since(began).Round(time.Millisecond))
	}
}
