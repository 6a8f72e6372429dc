package broker_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// caller is a client's stream. It takes everything and sends nothing but its thanks for
// an ending.
type caller struct {
	frames   chan wire.Frame
	canceled chan struct{}
	response wire.Response
	ending   wire.Ending
}

func (c *caller) Send(f wire.Frame) error {
	switch f.Kind {
	case wire.KindResponse:
		return json.Unmarshal(f.Payload, &c.response)
	case wire.KindExit:
		c.frames <- wire.Frame{Kind: wire.KindDone}
		return json.Unmarshal(f.Payload, &c.ending)
	}
	return nil
}

func (c *caller) Frames() <-chan wire.Frame { return c.frames }
func (c *caller) Canceled() <-chan struct{} { return c.canceled }

// timeout is what the programs of these tests are given.
const timeout = 5 * time.Second

// endsAfter runs a program in a lease on a lying sandbox, and returns how it ended and
// after how long. The clock is the bubble's.
func endsAfter(t *testing.T, lie func(*hostile.Exec)) (wire.Ending, time.Duration, *hostile.Provider) {
	t.Helper()
	p := hostile.New(t, hostile.Execs(lie))
	b, err := broker.New(t.Context(), broker.Options{
		Pools: []broker.PoolConfig{{Name: "test", Spares: []string{}}}, Provider: p, Secret: []byte(strings.Repeat("s", broker.MinSecret)),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close(context.Background())) }()
	do := func(req wire.Request) *caller {
		c := &caller{frames: make(chan wire.Frame, 1), canceled: make(chan struct{})}
		require.NoError(t, b.Do(t.Context(), broker.Caller{Tenant: "a"}, req, []byte("true"), c))
		return c
	}
	lease := do(wire.Request{Op: wire.OpAcquire, Pool: "test", TTLMS: time.Hour.Milliseconds()}).response.Lease
	began := time.Now()
	c := do(wire.Request{Op: wire.OpExec, Lease: lease, Program: &wire.Program{Language: "shell", TimeoutMS: timeout.Milliseconds()}})
	return c.ending, time.Since(began), p
}

// A runner that lets its program go on, and sends a byte now and then so that it does
// not look stuck, is stopped long before the lease ends.
func TestADrippingRunnerGetsNoMoreThanItsOvertime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, took, _ := endsAfter(t, func(e *hostile.Exec) {
			e.Answer()
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				e.AwaitEnd()
			}()
			tick := time.NewTicker(9 * time.Second)
			defer tick.Stop()
			for at := uint64(0); ; at++ {
				select {
				case <-tick.C:
					e.Print(at, "x")
				case <-gone:
					return
				}
			}
		})
		require.Equal(t, wire.ReasonTimeout, n.Reason)
		require.False(t, n.Complete)
		require.Less(t, took, timeout+6*time.Minute)
	})
}

// Neither is silence a way around the deadline, from before the answer on.
func TestAnUnansweredStartEnds(t *testing.T) {
	for name, lie := range map[string]func(*hostile.Exec){
		"no word":            (*hostile.Exec).AwaitEnd,
		"no more than a 200": func(e *hostile.Exec) { e.Raw(nil); e.AwaitEnd() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, took, _ := endsAfter(t, lie)
				require.Equal(t, wire.ReasonTimeout, n.Reason)
				require.Less(t, took, timeout+90*time.Second)
			})
		})
	}
}

// A runner whose channel keeps breaking does not keep the cluster busy with new ones.
func TestAChannelThatKeepsBreakingIsOpenedEverMoreSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, took, p := endsAfter(t, func(*hostile.Exec) {}) // a 200, and nothing
		require.Equal(t, wire.ReasonTimeout, n.Reason)
		// A start may take as long as a channel may be lost, and so may what follows it.
		require.Less(t, took, timeout+150*time.Second)
		require.Less(t, p.Dials(), 60)
		require.Greater(t, p.Dials(), 10)
	})
}
