package broker_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// A runner that never answers cannot make the broker keep as much code as its tenant
// likes to send. Code that has started is not kept, and another tenant has its own part.
func TestCodeThatNeverStartsIsBounded(t *testing.T) {
	const size = 1 << 20 // the most that a pool allows by default
	lie := func(e *hostile.Exec) {
		if bytes.HasPrefix(e.Code, []byte("start")) {
			e.Answer()
		}
		e.AwaitEnd()
	}
	synctest.Test(t, func(t *testing.T) {
		b, err := broker.New(t.Context(), broker.Options{
			Pools: []broker.PoolConfig{{Name: "test", Spares: []string{}}}, Provider: hostile.New(t, hostile.Execs(lie)), Secret: []byte(strings.Repeat("s", broker.MinSecret)),
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close(context.Background())) }()
		do := func(tenant string, req wire.Request, code string) (*caller, error) {
			c := &caller{frames: make(chan wire.Frame, 1), canceled: make(chan struct{})}
			return c, b.Do(t.Context(), broker.Caller{Tenant: tenant}, req, []byte(code), c)
		}
		leases := map[string]string{}
		acquire := func(tenant string) {
			c, err := do(tenant, wire.Request{Op: wire.OpAcquire, Pool: "test", TTLMS: time.Hour.Milliseconds()}, "")
			require.NoError(t, err)
			leases[tenant] = c.response.Lease
		}
		acquire("a")
		acquire("b")
		exec := func(tenant, code string) error {
			_, err := do(tenant, wire.Request{Op: wire.OpExec, Lease: leases[tenant], Program: program(0)}, code)
			return err
		}
		var ends sync.WaitGroup
		begin := func(code string) {
			for range 32 { // half of the budget, which is a tenant's
				ends.Go(func() {
					if err := exec("a", code+strings.Repeat(" ", size-len(code))); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		begin("start")
		begin("wait")
		e := wire.AsError(exec("a", "x"))
		require.NotNil(t, e)
		require.Equal(t, wire.CodeExhausted, e.Code)
		require.Equal(t, "code_waiting", e.Reason)
		ends.Go(func() {
			if err := exec("b", "wait"); err != nil {
				t.Error(err)
			}
		})
		ends.Wait()
		acquire("a") // the first has ended with the deadline of its programs
		require.NoError(t, exec("a", "start"), "what has ended is not kept")
	})
}
