package server_test

import (
	"encoding/binary"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// flooders is how many sandboxes are hostile at once, and floodStreams how many
	// programs of each fill their windows: two have one of 2 MiB each, and their channel
	// has no more than 4 MiB.
	flooders, floodStreams = 100, 2
	// perFlooder is what one hostile sandbox may make its broker hold, in bytes: the
	// channel's window of 4 MiB, a frame of HTTP/2 (256 KiB), and what each program has;
	// and some room for the broker's own work, and for this test's runners, which are in
	// its process.
	perFlooder = 4<<20 + 256<<10 + floodStreams*perProgram + 1<<20
	// perProgram is the largest control frame (256 KiB), a list of headers (8 KiB), and
	// HTTP/2's buffer for what goes to the runner, which is as large as the runner says,
	// up to 512 KiB.
	perProgram = wire.MaxControl + 8<<10 + 512<<10
	// filled is how much a program must have sent for its window to be full.
	filled = 1900 << 10
)

// floods are programs whose runners fill all that they can: the list of headers, the
// largest answer, and then, when all have begun, output as fast as it is taken.
type floods struct {
	sent  [flooders * floodStreams]atomic.Int64 // bytes, by program
	begun atomic.Int64
	begin chan struct{}
}

func (fl *floods) play() hostile.Play {
	payload := make([]byte, wire.MaxData)
	return hostile.Execs(func(e *hostile.Exec) {
		mine := &fl.sent[fl.begun.Add(1)-1]
		e.W.Header().Set("X-Large", strings.Repeat("h", 7<<10))
		e.Send(wire.Frame{Kind: wire.KindResponse, Payload: append(wire.Marshal(channel.Started{New: true}), []byte(strings.Repeat(" ", wire.MaxControl-64))...)})
		select {
		case <-fl.begin:
		case <-e.Gone():
		}
		for at := uint64(0); at < e.Start.Stdout.Limit; at += wire.MaxData {
			head := wire.Frame{Kind: wire.KindStdout, Offset: at}.Append(binary.BigEndian.AppendUint32(nil, wire.HeaderSize+wire.MaxData))
			e.Raw(head)
			e.Raw(payload) // waits while the window is full
			mine.Store(int64(at) + wire.MaxData)
		}
		e.AwaitEnd()
	})
}

// slowReader takes little of what comes on a connection: each message gets through in
// time, and minutes would pass until all have.
func slowReader(conn *websocket.Conn, stop <-chan struct{}) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	b := make([]byte, 8<<10)
	for {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		_, _ = conn.NetConn().Read(b)
	}
}

// heap is what live objects take, in bytes. What lies in pools, to be used again, is gone
// after the second collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// A hundred hostile sandboxes whose output nobody takes fill every window, list of
// headers and buffer at once. What the broker holds for them is bounded, another tenant
// does not notice, and it is all given back.
func TestAHundredHostileSandboxesAreBounded(t *testing.T) {
	all := &floods{begin: make(chan struct{})}
	// Who reads so slowly takes no frame and sees no ping in time, on a machine that is
	// busy with this.
	s := newQuietSite(t, all.play(), time.Minute)
	honest := s.witness()
	c := s.client(tokenA)
	var leases []*sandboxclient.Lease
	for range flooders {
		l, err := c.Acquire(deadline(t), liarPool)
		require.NoError(t, err)
		leases = append(leases, l)
	}
	goroutines, before := runtime.NumGoroutine(), heap()

	stop := make(chan struct{})
	var conns []*raw
	for i, l := range leases {
		if i%25 == 0 {
			conn := s.dial(tokenA)
			conns = append(conns, conn)
		}
		for n := range floodStreams {
			conns[len(conns)-1].request(uint32(i%25*floodStreams+n+1), wire.Request{
				Op: wire.OpExec, Lease: l.Handle(), Program: &wire.Program{Language: "shell"},
				Stdout: &wire.Credit{Limit: wire.MaxWindow}, Stderr: &wire.Credit{Limit: wire.MaxWindow},
			}, "flood")
		}
	}
	for _, conn := range conns {
		go slowReader(conn.Conn, stop)
	}
	eventually(t, "every program has begun", func() bool { return all.begun.Load() == flooders*floodStreams })
	close(all.begin)
	eventually(t, "every window is full", func() bool {
		for i := range all.sent {
			if all.sent[i].Load() < filled {
				return false
			}
		}
		return true
	})
	held := heap() - before
	t.Logf("%d hostile sandboxes make the broker hold %d MiB, %d KiB each; the bound is %d KiB", flooders, held>>20, held/flooders>>10, perFlooder>>10)
	require.Less(t, held, uint64(flooders*perFlooder))
	require.Greater(t, held, uint64(flooders*5<<20), "the windows are full: else this shows nothing")
	for range 20 {
		honest.Answers(t)
	}

	close(stop)
	for _, conn := range conns {
		_ = conn.Close()
	}
	for _, l := range leases {
		require.NoError(t, l.Release(deadline(t)))
	}
	eventually(t, "every sandbox is destroyed", func() bool { return s.liars.Live() == 0 })
	settled(t, goroutines)
	eventually(t, "the memory is free again", func() bool { return heap() < before+32<<20 })
	honest.Answers(t)
}
