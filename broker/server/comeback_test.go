package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/internal/cutproxy"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// begin starts a program in a run, behind a proxy, and returns when it has printed
// "begun".
func (s *site) begin(ctx context.Context, p *cutproxy.Proxy, script string) (out *pages, done chan runEnd) {
	s.t.Helper()
	out, done = newPages(), make(chan runEnd, 1)
	c := s.through(p)
	go func() {
		res, err := c.Run(ctx, sandboxclient.Code{Pool: "test", Argv: []string{"sh", "-c", "echo begun; " + script}, Stdout: out})
		done <- runEnd{res, err}
	}()
	out.await(s.t, "begun\n")
	return out, done
}

type runEnd struct {
	res *sandboxclient.Result
	err error
}

// untilGo is a script that goes on when a file is there.
const untilGo = "while [ ! -e go ]; do sleep 0.02; done; "

// Must hold: a broker that restarts takes nothing from a program and its client.
func TestAClientComesBackToTheNextBroker(t *testing.T) {
	s := newSite(t, patientPool())
	p := s.proxy(cutproxy.Plan{})
	out, done := s.begin(deadline(t), p, "echo ran >>log; "+untilGo+"seq 1 5000; wc -l <log")
	eventually(t, "the run is recorded", func() bool { return s.provider.RecordedCount() == 1 })

	s.close()
	s.metrics = prometheus.NewRegistry()
	s.serve(patientPool())
	p.SetTarget(s.address())
	require.NoError(t, s.provider.TouchAll("go"))

	end := <-done
	require.NoError(t, end.err)
	require.True(t, end.res.Ending.Complete)
	var want strings.Builder
	want.WriteString("begun\n")
	for i := range 5000 {
		fmt.Fprintln(&want, i+1)
	}
	require.Equal(t, want.String()+"1\n", out.String())
	eventually(t, "the ending was confirmed", func() bool { return s.provider.Live() == 0 })
}

// Must hold: any replica carries on what another one began.
func TestAClientComesBackToAnotherReplica(t *testing.T) {
	a, b := newReplicas(t, patientPool())
	p := a.proxy(cutproxy.Plan{})
	out, done := a.begin(deadline(t), p, untilGo+"echo done")
	eventually(t, "the run is recorded", func() bool { return a.provider.RecordedCount() == 1 })
	p.SetTarget(b.address())
	p.Cut()
	eventually(t, "the second replica has it", func() bool { return b.owned() == 1 && a.owned() == 0 })
	require.NoError(t, a.provider.TouchAll("go"))
	end := <-done
	require.NoError(t, end.err)
	require.Equal(t, "begun\ndone\n", out.String())
	require.True(t, end.res.Ending.Complete)
	eventually(t, "the ending was confirmed", func() bool { return a.provider.Live() == 0 })
}

// Must hold: a signal whose arrival is in doubt is sent again and arrives once.
func TestASignalArrivesOnce(t *testing.T) {
	s := newSite(t, patientPool())
	p := s.proxy(cutproxy.Plan{})
	lease, err := s.through(p).Acquire(deadline(t), "test")
	require.NoError(t, err)
	cmd := lease.Command("sh", "-c", "trap 'echo got' USR1; echo begun; while [ ! -e go ]; do sleep 0.02; done; exit 0")
	out := newPages()
	cmd.Stdout = out
	require.NoError(t, cmd.Start(deadline(t)))
	out.await(t, "begun\n")
	require.NoError(t, cmd.Signal("SIGUSR1"))
	out.await(t, "begun\ngot\n")
	n := p.Accepted() + 4
	eventually(t, "the client came back several times", func() bool {
		p.Cut()
		return p.Accepted() >= n
	})
	p.Refuse(true)
	p.Cut()
	require.NoError(t, cmd.Signal("SIGUSR1")) // there is no connection to send it on
	p.Refuse(false)
	out.await(t, "begun\ngot\ngot\n")
	require.NoError(t, s.provider.TouchAll("go"))
	require.NoError(t, cmd.Wait())
	require.Equal(t, "begun\ngot\ngot\n", out.String())
}

// Must hold: the caller's cancel works while the connection is away.
func TestCancelDuringAReconnect(t *testing.T) {
	s := newSite(t, patientPool())
	p := s.proxy(cutproxy.Plan{})
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	_, done := s.begin(ctx, p, "sleep 60")
	p.Refuse(true)
	p.Cut()
	n := p.Accepted()
	eventually(t, "it tries", func() bool { return p.Accepted() > n })
	cancel()
	p.Refuse(false)
	end := <-done
	require.ErrorIs(t, end.err, context.Canceled)
	require.Equal(t, wire.ReasonCanceled, end.res.Ending.Reason, "the program was told, over the next connection")
	eventually(t, "the ending was confirmed", func() bool { return s.provider.Live() == 0 })
}

// Must hold: where there is nothing to come back to, the call fails, says that output
// is missing, and keeps what came.
func TestNothingToComeBackTo(t *testing.T) {
	s := newSite(t, patientPool())
	p := s.proxy(cutproxy.Plan{})
	c := s.through(p)
	lease, err := c.Acquire(deadline(t), "test")
	require.NoError(t, err)
	cmd := lease.Command("sh", "-c", "echo begun; sleep 60")
	out := newPages()
	cmd.Stdout = out
	require.NoError(t, cmd.Start(deadline(t)))
	out.await(t, "begun\n")
	p.Refuse(true)
	p.Cut()
	require.NoError(t, s.client(tokenA).Lease(lease.Handle()).Release(deadline(t)))
	p.Refuse(false)
	err = cmd.Wait()
	require.ErrorIs(t, err, sandboxclient.ErrLeaseExpired)
	var lost *sandboxclient.DisconnectedError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, cmd.Handle(), lost.Exec)
	require.ErrorContains(t, err, "incomplete")
	_, known := cmd.Ending()
	require.False(t, known)
	require.Equal(t, "begun\n", out.String())
}

// Must hold: of two readers the later one has the output, and the earlier one knows.
func TestTheLaterReaderWins(t *testing.T) {
	s := newSite(t, patientPool())
	lease, err := s.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	cmd := lease.Command("sh", "-c", "echo begun; "+untilGo+"echo done")
	first := newPages()
	cmd.Stdout = first
	require.NoError(t, cmd.Start(deadline(t)))
	first.await(t, "begun\n")

	second := newPages()
	again, err := s.client(tokenA).Attach(deadline(t), cmd.Handle(), sandboxclient.AttachOptions{Stdout: second, StdoutOffset: 3})
	require.NoError(t, err)
	require.Equal(t, cmd.Handle(), again.Handle())
	err = cmd.Wait()
	require.ErrorIs(t, err, sandboxclient.ErrConflict)
	var lost *sandboxclient.DisconnectedError
	require.ErrorAs(t, err, &lost)
	require.NoError(t, s.provider.TouchAll("go"))
	require.NoError(t, again.Wait())
	require.Equal(t, "begun\n", first.String())
	require.Equal(t, "un\ndone\n", second.String())
}

// Must hold: a handle is good from the moment it comes, also when its client leaves
// before the program is there.
func TestLeavingBeforeTheStartIsNoCancel(t *testing.T) {
	s := newSite(t, patientPool())
	for range 8 {
		conn := s.dial(tokenA)
		conn.request(1, shell(), "echo $$; echo done")
		var res wire.Response
		require.NoError(t, wire.Unmarshal(wire.KindResponse, conn.until(wire.KindResponse).Payload, &res))
		require.NoError(t, conn.Close())
		out := newPages()
		cmd, err := s.client(tokenA).Attach(deadline(t), res.Exec, sandboxclient.AttachOptions{Stdout: out})
		require.NoError(t, err)
		require.NoError(t, cmd.Wait())
		require.True(t, strings.HasSuffix(out.String(), "\ndone\n"), out.String())
	}
	eventually(t, "all were confirmed", func() bool { return s.provider.Live() == 0 })
}

// Must hold: nor is it while the sandbox cannot be reached for a while, whichever replica
// the client comes back to.
func TestLeavingWhileTheChannelIsLost(t *testing.T) {
	for name, other := range map[string]bool{"the same broker": false, "another replica": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newReplicas(t, patientPool())
			lease, err := a.client(tokenA).Acquire(deadline(t), "test")
			require.NoError(t, err)
			eventually(t, "the lease is recorded", func() bool { return a.provider.RecordedCount() == 1 })
			a.provider.Any().Part(true)
			conn := a.dial(tokenA)
			start := shell()
			start.Op, start.Pool, start.Lease = wire.OpExec, "", lease.Handle()
			conn.request(1, start, "echo $$; echo done")
			var res wire.Response
			require.NoError(t, wire.Unmarshal(wire.KindResponse, conn.until(wire.KindResponse).Payload, &res))
			require.NoError(t, conn.Close())
			there := a
			if other {
				there = b
			}
			out := newPages()
			ended := make(chan error, 1)
			go func() {
				cmd, err := there.client(tokenA).Attach(deadline(t), res.Exec, sandboxclient.AttachOptions{Stdout: out})
				if err == nil {
					err = cmd.Wait()
				}
				ended <- err
			}()
			select {
			case err := <-ended:
				t.Fatalf("nothing has happened yet: %v", err)
			case <-time.After(7 * time.Second): // longer than a start may take with a channel
			}
			a.provider.Any().Part(false)
			require.NoError(t, <-ended)
			require.True(t, strings.HasSuffix(out.String(), "\ndone\n"), out.String())
		})
	}
}

// Must hold: an ID is run once, however often it is started, and whoever starts it.
func TestAnIDRunsOnce(t *testing.T) {
	s := newSite(t, patientPool())
	lease, err := s.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	start := func(out *pages, wait func()) *sandboxclient.Cmd {
		cmd := lease.Command("sh", "-c", "echo ran >>log; cat; cat log")
		cmd.ID, cmd.Stdout, cmd.Stdin = "once", out, &slowly{text: "one two three\n", wait: wait}
		require.NoError(t, cmd.Start(deadline(t)))
		return cmd
	}
	first, second := newPages(), newPages()
	never := make(chan struct{})
	defer close(never)
	cmd := start(first, func() { <-never }) // it reads no more, but does not end
	first.await(t, "one two ")
	again := start(second, func() { second.await(t, "one two ") })
	require.ErrorIs(t, cmd.Wait(), sandboxclient.ErrConflict)
	require.NoError(t, again.Wait())
	require.Equal(t, "one two three\nran\n", second.String())

	third := lease.Command("true")
	third.ID = "once"
	err = third.Run(deadline(t))
	require.ErrorIs(t, err, sandboxclient.ErrConflict)
	require.Equal(t, wire.ReasonConfirmed, wire.AsError(err).Reason)
	_, err = s.client(tokenA).Attach(deadline(t), again.Handle(), sandboxclient.AttachOptions{})
	if err == nil {
		err = errors.New("the attach was accepted")
	}
	require.Error(t, err)
	out, err := lease.Command("cat", "log").Output(deadline(t))
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(out))
}

// slowly is a reader that gives all but the last six bytes of a text, and those after
// wait.
type slowly struct {
	text string
	wait func()
	at   int
}

func (r *slowly) Read(p []byte) (int, error) {
	end := len(r.text) - 6
	if r.at >= end {
		r.wait()
		end = len(r.text)
	}
	n := copy(p, r.text[r.at:end])
	r.at += n
	if r.at == len(r.text) {
		return n, io.EOF
	}
	return n, nil
}

// Must hold: a program whose newest output is kept never waits, and a reader is told
// what it missed.
func TestTheNewestOutputIsKept(t *testing.T) {
	s := newSite(t, patientPool())
	lease, err := s.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	cmd := lease.Command("sh", "-c", `head -c 5000000 /dev/zero; touch written; printf end`)
	cmd.Retention = sandboxclient.RetainNewest
	held := &gate{open: make(chan struct{})}
	cmd.Stdout = held
	require.NoError(t, cmd.Start(deadline(t)))
	sb := s.provider.Any()
	eventually(t, "the program did not wait for its reader", func() bool { return sb.Has("written") })
	close(held.open)
	require.NoError(t, cmd.Wait())
	n, _ := cmd.Ending()
	require.EqualValues(t, 5_000_003, n.StdoutBytes)
	require.False(t, n.Complete)
	require.Greater(t, n.StdoutDiscardedTo, uint64(5_000_000-channel.Retention-channel.PipeSize-wire.MaxData))
	require.Zero(t, n.StderrDiscardedTo)
	require.Less(t, held.count, 5_000_003)
	require.Equal(t, "end", held.tail)
	require.NoError(t, lease.Release(deadline(t)))
}

// gate is a writer that blocks until it is open.
type gate struct {
	open  chan struct{}
	count int
	tail  string
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.count += len(p)
	g.tail = string((append([]byte(g.tail), p...))[max(0, len(g.tail)+len(p)-3):])
	return len(p), nil
}

// Must hold: an attach at an offset that cannot be is refused with its field and the
// limit; one at an offset that was discarded goes on behind the gap.
func TestAttachOffsets(t *testing.T) {
	s := newSite(t, patientPool())
	c := s.client(tokenA)
	lease, err := c.Acquire(deadline(t), "test")
	require.NoError(t, err)

	conn := s.dial(tokenA)
	start := func(stream uint32, id, script string, retention wire.Retention) string {
		conn.request(stream, wire.Request{Op: wire.OpExec, Lease: lease.Handle(), ID: id, Stdout: &wire.Credit{Limit: 100},
			Program: &wire.Program{Argv: []string{"sh", "-c", script}, Retention: retention}}, "")
		var res wire.Response
		require.NoError(t, wire.Unmarshal(wire.KindResponse, conn.until(wire.KindResponse).Payload, &res))
		return res.Exec
	}
	plain := start(1, "plain", "echo 123456789; touch plain; sleep 60", "")
	conn.until(wire.KindStdout)
	conn.send(wire.Window{FD: wire.Stdout, Acked: 5, Limit: 100}.Frame(1))
	ring := start(2, "ring", "head -c 3000000 /dev/zero; touch ring; sleep 60", wire.RetainNewest)
	sb := s.provider.Any()
	eventually(t, "all is written", func() bool { return sb.Has("plain") && sb.Has("ring") })

	for name, tc := range map[string]struct {
		credit wire.Credit
		limit  int64
	}{
		"beyond what was written": {wire.Credit{Acked: 11, Limit: 11}, 10},
		"far beyond":              {wire.Credit{Acked: 1<<64 - 1, Limit: 1<<64 - 1}, 10},
		"already discarded":       {wire.Credit{Acked: 4, Limit: 100}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			conn := s.dial(tokenA)
			conn.request(1, wire.Request{Op: wire.OpAttach, Exec: plain, Stdout: &tc.credit}, "")
			var e wire.Error
			require.NoError(t, wire.Unmarshal(wire.KindError, conn.until(wire.KindError).Payload, &e))
			require.Equal(t, wire.CodeInvalid, e.Code)
			require.Equal(t, "stdout.acked", e.Field)
			require.Equal(t, tc.limit, e.Limit)

			cmd, err := c.Attach(deadline(t), plain, sandboxclient.AttachOptions{StdoutOffset: tc.credit.Acked})
			if err == nil {
				err = cmd.Wait()
			}
			require.ErrorIs(t, err, sandboxclient.ErrInvalid)
		})
	}
	t.Run("negative", func(t *testing.T) {
		conn := s.dial(tokenA)
		body := fmt.Appendf(nil, `{"op":"attach","exec":%q,"stdout":{"acked":-1,"limit":5}}`, plain)
		conn.send(wire.Frame{Kind: wire.KindRequest, Stream: 1, Offset: uint64(len(body)), Payload: body})
		var e wire.Error
		require.NoError(t, wire.Unmarshal(wire.KindError, conn.until(wire.KindError).Payload, &e))
		require.Equal(t, wire.CodeInvalid, e.Code)
		require.Equal(t, "request", e.Field)
	})
	t.Run("discarded by a ring", func(t *testing.T) {
		conn := s.dial(tokenA)
		conn.request(1, wire.Request{Op: wire.OpAttach, Exec: ring, Stdout: &wire.Credit{Acked: 50, Limit: 4_000_000}}, "")
		d, err := wire.ParseDiscarded(conn.until(wire.KindDiscarded))
		require.NoError(t, err)
		require.Equal(t, wire.Stdout, d.FD)
		require.Greater(t, d.To, uint64(3_000_000-channel.Retention-wire.MaxData))
		require.Equal(t, d.To, conn.until(wire.KindStdout).Offset)
		conn.send(wire.Frame{Kind: wire.KindCancel, Stream: 1})
		var n wire.Ending
		require.NoError(t, wire.Unmarshal(wire.KindExit, conn.until(wire.KindExit).Payload, &n))
		require.Equal(t, d.To, n.StdoutDiscardedTo)
		require.EqualValues(t, 3_000_000, n.StdoutBytes)
		require.False(t, n.Complete)
	})
	t.Run("unknown", func(t *testing.T) {
		_, err := s.client(tokenB).Attach(deadline(t), plain, sandboxclient.AttachOptions{})
		require.ErrorIs(t, err, sandboxclient.ErrNotFound)
		_, nothing := s.client(tokenB).Attach(deadline(t), "nothing", sandboxclient.AttachOptions{})
		require.ErrorIs(t, nothing, sandboxclient.ErrNotFound)
		require.Equal(t, wire.AsError(err).Message, wire.AsError(nothing).Message, "no hint that it exists")
		_, err = c.Attach(deadline(t), lease.Handle(), sandboxclient.AttachOptions{})
		require.ErrorIs(t, err, sandboxclient.ErrInvalid, "a lease's handle names no exec")
	})
	require.NoError(t, lease.Release(deadline(t)))
}
