//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/cutproxy"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// counting prints lines for six seconds at least, more where to start a process takes
// long, then says so.
const (
	counting     = "i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo line $i; sleep 0.01; done; exit 7"
	countedLines = 600
	// countingTimeout is more than the pool's: each line may start a process.
	countingTimeout = 3 * time.Minute
)

func counted() string {
	var want strings.Builder
	for i := range countedLines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	return want.String()
}

// growing is a writer whose length can be watched.
type growing struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (g *growing) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.Write(p)
}

func (g *growing) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.String()
}

// A broker is killed outright under clients that read. Over the other replica, which
// knew nothing of them, they get every byte once, and the true ending: for a program in
// a lease and for a run.
func TestABrokerIsKilledUnderClientsThatComeBack(t *testing.T) {
	settle(t)
	ctx := within(t, 4*time.Minute)
	dir := replicaDir(t)
	first, second := startReplica(t, dir), startReplica(t, dir)
	proxy, err := cutproxy.Listen(strings.TrimPrefix(first.url, "http://"), cutproxy.Plan{})
	require.NoError(t, err)
	defer proxy.Close()
	c, err := sandboxclient.New("http://"+proxy.Addr(), sandboxclient.WithToken(token))
	require.NoError(t, err)
	defer func() { _ = c.Close() }()

	lease, err := c.Acquire(ctx, slow)
	require.NoError(t, err)
	var outs [2]growing
	ended := [2]chan error{make(chan error, 1), make(chan error, 1)}
	cmd := lease.Script("shell", counting)
	cmd.Stdout, cmd.Timeout = &outs[0], countingTimeout
	go func() { ended[0] <- cmd.Run(ctx) }()
	go func() {
		_, err := c.Run(ctx, sandboxclient.Code{Pool: slow, Language: "shell", Source: counting, Stdout: &outs[1], Timeout: countingTimeout})
		ended[1] <- err
	}()
	for i := range outs {
		eventually(t, time.Minute, "the program prints", func() bool { return strings.Count(outs[i].String(), "\n") > 200 })
	}
	require.NoError(t, first.cmd.Process.Kill())
	_ = first.cmd.Wait()
	proxy.SetTarget(strings.TrimPrefix(second.url, "http://"))
	for i := range ended {
		select {
		case err := <-ended[i]:
			n := ending(t, err)
			require.Equal(t, sandboxclient.ReasonExited, n.Reason, n.Message)
			require.Equal(t, 7, n.ExitCode)
			require.True(t, n.Complete)
			require.Equal(t, counted(), outs[i].String(), "each byte once, in order")
		case <-ctx.Done():
			t.Fatal("the client did not come back")
		}
	}
	require.NoError(t, lease.Release(context.WithoutCancel(ctx)))
	require.NoError(t, second.stop())
	eventually(t, takenOverWithin, "nothing is left", func() bool { return sum(owners(t)) <= 1 }) // the dead one's stock
	removeDeadLease(ctx, t)
}
