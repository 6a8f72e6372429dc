package server_test

import (
	"bytes"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// pausing is a writer that takes a pause before its second write.
type pausing struct {
	bytes.Buffer
	pause time.Duration
	wrote int
}

// Write implements io.Writer.
func (p *pausing) Write(b []byte) (int, error) {
	if p.wrote++; p.wrote == 2 {
		time.Sleep(p.pause) // the slow reader is the subject
	}
	return p.Buffer.Write(b)
}

// A program that has ended in time is not ended again because its reader is slow.
func TestSlowReaderGetsEverything(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	out := &pausing{pause: 17 * time.Second} // longer than the timeout and the broker's slack
	res, err := s.client(tokenA).Run(deadline(t), sandboxclient.Code{
		Pool: "test", Language: "shell", Source: "head -c 900000 /dev/zero", Timeout: 5 * time.Second, Stdout: out,
	})
	require.NoError(t, err)
	require.Equal(t, 900000, out.Len())
	require.True(t, res.Ending.Complete)
}

// A runner that lets its program go on is stopped, whether its output is read or
// not.
func TestDeadlineIsKeptWithoutTheRunner(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	began := time.Now()
	_, err := s.client(tokenA).Run(deadline(t), sandboxclient.Code{
		// The runner is stopped: it can neither keep the deadline nor say anything.
		Pool: "test", Language: "shell", Source: "sleep 2; kill -STOP $PPID; sleep 60", Timeout: 4 * time.Second,
	})
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, wire.ReasonTimeout, exit.Ending.Reason)
	require.Less(t, time.Since(began), 40*time.Second)
}

// A runner that cannot be reached may have kept the deadline: its word is waited for, and
// neither the program's output nor the lease is lost.
func TestADeadlineWhileTheChannelIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lease, err := s.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	out := newPages()
	cmd := lease.Script("shell", "echo begun; sleep 1; echo more; sleep 60")
	cmd.Stdout, cmd.Timeout = out, 3*time.Second
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run(deadline(t)) }()
	out.await(t, "begun\n")
	s.provider.Any().Part(true)
	select {
	case err := <-ended:
		t.Fatalf("nobody can know of an ending: %v", err)
	case <-time.After(16 * time.Second): // past the deadline and the broker's slack
	}
	s.provider.Any().Part(false)
	err = <-ended
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, wire.ReasonTimeout, exit.Ending.Reason)
	require.True(t, exit.Ending.Complete)
	require.Equal(t, "begun\nmore\n", out.String())
	require.NoError(t, lease.Command("true").Run(deadline(t)), "the lease goes on")
}

// startRun starts a run by hand and returns its handle once it prints.
func (r *raw) startRun(source string) wire.Response {
	r.t.Helper()
	r.request(1, shell(), source)
	var res wire.Response
	require.NoError(r.t, wire.Unmarshal(wire.KindResponse, r.until(wire.KindResponse).Payload, &res))
	r.until(wire.KindStdout)
	return res
}

func TestAttachThatCannotBeLeavesTheRunAlone(t *testing.T) {
	s := newSite(t)
	conn := s.dial(tokenA)
	res := conn.startRun("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two")
	other := s.dial(tokenA)
	other.request(1, wire.Request{Op: wire.OpAttach, Exec: res.Exec, Stdout: &wire.Credit{Acked: 1000, Limit: 2000}}, "")
	var e wire.Error
	require.NoError(t, wire.Unmarshal(wire.KindError, other.until(wire.KindError).Payload, &e))
	require.Equal(t, wire.CodeInvalid, e.Code)
	require.NoError(t, s.provider.Any().Touch("go"))
	require.Equal(t, "two\n", string(conn.until(wire.KindStdout).Payload))
	conn.until(wire.KindExit)
}

// The connection that a client has lost may not know it yet when the client is
// back.
func TestSecondAttachTakesOver(t *testing.T) {
	s := newSite(t)
	conn := s.dial(tokenA)
	res := conn.startRun("echo one; while [ ! -e go ]; do sleep 0.02; done; echo two")
	again := s.dial(tokenA)
	again.request(1, wire.Request{Op: wire.OpAttach, Exec: res.Exec, Stdout: &wire.Credit{Limit: 1000}}, "")
	require.Equal(t, "one\n", string(again.until(wire.KindStdout).Payload))
	var e wire.Error
	require.NoError(t, wire.Unmarshal(wire.KindError, conn.until(wire.KindError).Payload, &e))
	require.Equal(t, wire.CodeConflict, e.Code, "the first is told")
	require.NoError(t, s.provider.Any().Touch("go"))
	require.Equal(t, "two\n", string(again.until(wire.KindStdout).Payload))
	again.until(wire.KindExit)
	again.send(wire.Frame{Kind: wire.KindDone, Stream: 1})
	eventually(t, "the sandbox is destroyed", func() bool { return s.provider.Live() == 0 })
}

// Messages that are begun and never finished take a bounded share of memory, and
// a bounded time.
func TestUnfinishedLargeMessagesAreBounded(t *testing.T) {
	s := newSite(t)
	const conns, bound = 24, 200 << 20 // without a bound they would take over 400 MiB
	part := bytes.Repeat([]byte{0}, 8<<20)
	var open sync.WaitGroup
	for range conns {
		conn := s.dial(tokenA)
		open.Go(func() {
			w, err := conn.NextWriter(websocket.BinaryMessage)
			if err == nil {
				_, _ = w.Write(part) // the broker may end it meanwhile
			}
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			for err == nil { // until the broker has ended it
				_, _, err = conn.ReadMessage()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		open.Wait()
		close(done)
	}()
	peak := uint64(0)
	for began := time.Now(); ; {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapInuse)
		select {
		case <-done:
			t.Logf("peak %d MiB", peak>>20)
			require.Less(t, peak, uint64(bound))
			require.Less(t, time.Since(began), 50*time.Second)
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// What a caller makes up is kept for ever if it becomes a label.
func TestUnknownOperationsAreOneSeries(t *testing.T) {
	s := newSite(t)
	conn := s.dial(tokenA)
	for i := range 30 {
		conn.request(uint32(i+1), wire.Request{Op: wire.Op("made-up-" + strings.Repeat("x", i))}, "")
		conn.until(wire.KindError)
	}
	n, err := testutil.GatherAndCount(s.metrics, "sandbox_broker_errors_total")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// A stream that takes no frames fails alone.
func TestFloodedStreamFailsAlone(t *testing.T) {
	s := newSite(t)
	release := s.provider.HoldTakes()
	defer release()
	conn := s.dial(tokenA)
	conn.request(1, shell(), "true") // waits for a sandbox
	for range 40 {
		conn.send(wire.JSONFrame(wire.KindSignal, 1, wire.Signal{Name: "SIGTERM"}))
	}
	conn.request(2, wire.Request{Op: wire.OpRelease, Lease: "no-such"}, "")
	answers := map[uint32]wire.Code{}
	for len(answers) < 2 {
		f := conn.until(wire.KindError)
		var e wire.Error
		require.NoError(t, wire.Unmarshal(wire.KindError, f.Payload, &e))
		answers[f.Stream] = e.Code
	}
	require.Equal(t, map[uint32]wire.Code{1: wire.CodeExhausted, 2: wire.CodeNotFound}, answers)
}

// A client that has a lease's handle finds the lease at the next broker, however
// soon the first one ends.
func TestLeaseOutlivesABrokerThatEndsAtOnce(t *testing.T) {
	s := newSite(t)
	release := s.provider.HoldRecords()
	defer release()
	c := s.client(tokenA)
	_, err := c.Acquire(deadline(t), "test")
	require.NoError(t, err)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.close()
	}()
	eventually(t, "the edge has ended the connection", func() bool {
		_, err := c.Acquire(deadline(t), "test")
		return err != nil
	})
	release()
	<-closed
	require.NotNil(t, s.provider.Any().Recorded())
}

func TestWhatACallerPassesIsNotLogged(t *testing.T) {
	s := newSite(t)
	conn := s.dial(tokenA)
	const mark = "SECRETMARK"
	for i, p := range []wire.Program{
		{Argv: []string{"no-such-" + mark}},
		{Argv: []string{"true"}, Dir: "/" + mark},
		{Argv: []string{"true"}, Env: map[string]string{"bad " + mark: "v"}},
		{Language: mark},
	} {
		conn.request(uint32(i+1), wire.Request{Op: wire.OpRun, Pool: "test", Program: &p}, "")
		conn.until(wire.KindError)
	}
	conn.request(9, wire.Request{Op: mark}, "")
	conn.until(wire.KindError)
	require.NotContains(t, s.log.String(), mark)
	require.Contains(t, s.log.String(), "program.env", "the field is")
}

// A file that nobody sends any more is not kept half for the length of its
// deadline.
func TestWriteWithoutItsClientIsEnded(t *testing.T) {
	s := newSite(t)
	lease, err := s.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	conn := s.dial(tokenA)
	conn.request(1, wire.Request{Op: wire.OpExec, Lease: lease.Handle(), Program: &wire.Program{
		File: &wire.FileOp{Op: wire.FileWrite, Path: "big"}, Stdin: true,
	}}, "")
	conn.stdinCredit(0)
	conn.send(wire.Frame{Kind: wire.KindStdin, Stream: 1, Payload: []byte("half of it")})
	ls := func() string {
		out, err := lease.Script("shell", "ls -A").Output(deadline(t))
		require.NoError(t, err)
		return string(out)
	}
	eventually(t, "the write is under way", func() bool { return strings.Contains(ls(), ".sandbox-write-") })
	_ = conn.Close()
	left := time.Now()
	eventually(t, "it is given up", func() bool { return !strings.Contains(ls(), ".sandbox-write-") })
	require.Less(t, time.Since(left), 15*time.Second, "long before its deadline of 20 s")
	require.NotContains(t, ls(), "big")
}
