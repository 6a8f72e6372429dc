package sandboxclient_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestAttach(t *testing.T) {
	c, _ := connect(t, brokertest.Programs(func(p *brokertest.Program) {
		p.Stdout("0123456789")
		p.Stderr("error")
		p.AwaitClients(2)
		p.Stdout("end")
		p.Exit(exited(3))
	}))
	cmd := newLease(t, c).Command("x")
	require.Empty(t, cmd.Handle())
	require.NoError(t, cmd.Start(testContext(t)))
	assert.Equal(t, "exec-1", cmd.Handle())

	var out, errs strings.Builder
	again, err := c.Attach(testContext(t), cmd.Handle(), sandboxclient.AttachOptions{Stdout: &out, Stderr: &errs, StdoutOffset: 4})
	require.NoError(t, err)
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, again.Wait(), &exit)
	assert.Equal(t, 3, exit.ExitCode())
	assert.Equal(t, "456789end", out.String())
	assert.Equal(t, "error", errs.String())
	assert.Equal(t, "exec-1", again.Handle())
	require.ErrorIs(t, cmd.Wait(), sandboxclient.ErrConflict)
	require.Error(t, again.Start(testContext(t)), "it runs already")

	_, err = c.Attach(testContext(t), "nothing", sandboxclient.AttachOptions{})
	require.ErrorIs(t, err, sandboxclient.ErrNotFound)
	require.NotErrorIs(t, err, sandboxclient.ErrStartUnknown)
	_, err = c.Attach(testContext(t), "", sandboxclient.AttachOptions{})
	require.Error(t, err)
}

// A user's test of what happens when the network is bad.
func TestPrograms(t *testing.T) {
	c, server := connect(t, brokertest.Programs(func(p *brokertest.Program) {
		for i := range 5 {
			p.Stdout(strings.Repeat(string(rune('a'+i)), 300_000))
			p.Cut()
			p.AwaitClients(i + 2)
		}
		p.Exit(exited(0))
	}))
	var want strings.Builder
	for i := range 5 {
		want.WriteString(strings.Repeat(string(rune('a'+i)), 300_000))
	}
	handles := make(chan string, 1)
	res, err := run(t, c, sandboxclient.Code{Started: func(h string) { handles <- h }})
	require.NoError(t, err)
	assert.Equal(t, want.String(), string(res.Stdout))
	assert.True(t, res.Ending.Complete)
	assert.Equal(t, 6, server.Accepted())
	assert.Equal(t, "exec-1", <-handles)
}

func TestOutputThatWasDiscarded(t *testing.T) {
	retentions := make(chan wire.Retention, 1)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		retentions <- s.Request.Program.Retention
		s.Respond(accepted)
		s.Stdout("abc")
		s.Send(wire.Discarded{FD: wire.Stdout, To: 1 << 40}.Frame(0))
		for len(s.Windows()) == 0 { // beyond the first window there is no credit
			time.Sleep(time.Millisecond)
		}
		s.Send(wire.Frame{Kind: wire.KindStdout, Offset: 1 << 40, Payload: []byte("xyz")})
		s.Exit(wire.Ending{Reason: wire.ReasonExited, StdoutBytes: 1<<40 + 3, Complete: true})
	}))
	res, err := run(t, c, sandboxclient.Code{Retention: sandboxclient.RetainNewest})
	require.NoError(t, err)
	assert.Equal(t, wire.RetainNewest, <-retentions)
	assert.Equal(t, "abcxyz", string(res.Stdout))
	assert.EqualValues(t, 1<<40, res.Ending.StdoutDiscardedTo)
	assert.False(t, res.Ending.Complete)
}

func TestIDs(t *testing.T) {
	ids := make(chan string, 1)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Request.Op == wire.OpExec {
			ids <- s.Request.ID
			s.Exit(exited(0))
		}
	}))
	cmd := newLease(t, c).Command("x")
	cmd.ID = "mine"
	require.NoError(t, cmd.Run(testContext(t)))
	assert.Equal(t, "mine", <-ids)
	cmd = newLease(t, c).Command("x")
	cmd.ID = "not/mine"
	require.ErrorIs(t, cmd.Run(testContext(t)), sandboxclient.ErrInvalid)
}
