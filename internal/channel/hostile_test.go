package channel

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// HTTP/2's frame types and flags (RFC 9113, section 6), as far as a runner that
// breaks the rules needs them: net/http's server keeps them.
const (
	h2Data         = 0x0
	h2Priority     = 0x2
	h2Reset        = 0x3
	h2Settings     = 0x4
	h2PushPromise  = 0x5
	h2Ping         = 0x6
	h2Continuation = 0x9
	// hpackOK is ":status: 200" in HPACK's static table.
	hpackOK = "\x88"
)

func kilobytes(n int) string { return string(make([]byte, n<<10)) }

func h2Frame(kind, flags byte, stream uint32, payload string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, payload...)
}

// rawRunner speaks HTTP/2 by hand: it reads whatever comes, answers the first
// requests (streams 1, 3, …) with 200 once all have come, and then sends its own.
func rawRunner(t *testing.T, requests int, send func(write func(...[]byte))) *Client {
	t.Helper()
	return openTo(t, func(conn net.Conn) {
		write := func(frames ...[]byte) {
			for _, f := range frames {
				if _, err := conn.Write(f); err != nil {
					return
				}
			}
		}
		came, drained := make(chan struct{}, requests), make(chan struct{})
		go func() {
			defer close(drained)
			defer close(came)
			_, _ = io.CopyN(io.Discard, conn, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
			for {
				var head [9]byte
				if _, err := io.ReadFull(conn, head[:]); err != nil {
					return
				}
				_, _ = io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
				if head[3] == h2Headers {
					came <- struct{}{}
				}
			}
		}()
		write(h2Frame(h2Settings, 0, 0, ""))
		for range requests {
			<-came
		}
		for i := range requests {
			write(h2Frame(h2Headers, h2EndHeaders, uint32(2*i+1), hpackOK))
		}
		send(write)
		<-drained
	})
}

func TestARunnerThatBreaksHTTP2LosesTheChannel(t *testing.T) {
	for name, send := range map[string]func(write func(...[]byte)){
		"a frame larger than allowed": func(write func(...[]byte)) {
			write(h2Frame(h2Data, 0, 1, kilobytes(maxReadFrame>>10)+"x"))
		},
		"more of one exec than the window": func(write func(...[]byte)) {
			for range streamWindow / (64 << 10) {
				write(h2Frame(h2Data, 0, 1, kilobytes(64)))
			}
			write(h2Frame(h2Data, 0, 1, "x"))
		},
		"a stream of its own": func(write func(...[]byte)) {
			write(h2Frame(h2PushPromise, h2EndHeaders, 1, "\x00\x00\x00\x02"+hpackOK))
		},
		"data for a stream that is not there": func(write func(...[]byte)) {
			write(h2Frame(h2Data, 0, 7, "x"))
		},
		"a header without an end": func(write func(...[]byte)) {
			write(h2Frame(h2Headers, 0, 1, hpackOK))
			for range 1 << 10 { // 16 MB
				write(h2Frame(h2Continuation, 0, 1, kilobytes(16)))
			}
		},
		"settings that are none":        func(write func(...[]byte)) { write(h2Frame(h2Settings, 0, 0, "odd")) },
		"a window beyond all bounds":    func(write func(...[]byte)) { write(h2Frame(h2WindowUpdate, 0, 0, "\x7f\xff\xff\xff")) },
		"HTTP/1":                        func(write func(...[]byte)) { write([]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")) },
		"a byte of a frame and no more": nil,
	} {
		t.Run(name, func(t *testing.T) {
			var c *Client
			if send == nil {
				c = openTo(t, func(conn net.Conn) {
					go func() { _, _ = io.Copy(io.Discard, conn) }()
					_, _ = conn.Write([]byte{0})
					_ = conn.Close()
				})
			} else {
				c = rawRunner(t, 1, send)
			}
			s, err := c.Exec(testContext(t), "e1", Start{}, nil)
			if err == nil { // nobody reads the output: what comes piles up in the broker
				defer s.Close()
			}
			closed(t, c) // without Close: the broker itself lets go
			_, err = c.Status(testContext(t))
			require.Error(t, err)
		})
	}
}

// floodFrames is how many frames a flood has, and floodMemory what it may make the
// broker hold besides, in bytes.
const (
	floodFrames = 20_000
	floodMemory = 4 << 20
)

// A runner can send frames that HTTP/2 allows and that mean nothing, for ever. They cost
// it what they cost the broker: nothing piles up, and the channel can be closed.
func TestFloodsPileNothingUp(t *testing.T) {
	for name, frame := range map[string][]byte{
		"pings":                       h2Frame(h2Ping, 0, 0, "12345678"),
		"answers to pings":            h2Frame(h2Ping, 1, 0, "12345678"),
		"settings":                    h2Frame(h2Settings, 0, 0, "\x00\x03\x00\x00\x00\x64"),
		"resets of what is not there": h2Frame(h2Reset, 0, 1001, "\x00\x00\x00\x08"),
		"credit":                      h2Frame(h2WindowUpdate, 0, 0, "\x00\x00\x00\x01"),
		"data of no bytes":            h2Frame(h2Data, 0, 1, ""),
		"priorities":                  h2Frame(h2Priority, 0, 1, "\x00\x00\x00\x00\x10"),
		"frames of no type":           h2Frame(0xee, 0, 0, kilobytes(16)),
	} {
		t.Run(name, func(t *testing.T) {
			flooded := make(chan struct{})
			c := rawRunner(t, 1, func(write func(...[]byte)) {
				for range floodFrames {
					write(frame)
				}
				close(flooded)
			})
			before := heapInUse()
			s, err := c.Exec(testContext(t), "e1", Start{}, nil)
			require.NoError(t, err)
			defer s.Close()
			select {
			case <-flooded:
			case <-time.After(testTimeout):
				require.Fail(t, "the flood is held up")
			}
			require.Less(t, heapInUse(), before+floodMemory)
			c.Close()
			closed(t, c)
		})
	}
}

// heapInUse is what of the heap is used once garbage is gone, in bytes.
func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

func TestTheWindowItselfIsAllowed(t *testing.T) {
	c := rawRunner(t, 1, func(write func(...[]byte)) {
		for range streamWindow / (64 << 10) {
			write(h2Frame(h2Data, 0, 1, kilobytes(64)))
		}
	})
	s, err := c.Exec(testContext(t), "e1", Start{}, nil)
	require.NoError(t, err)
	defer s.Close()
	b := make([]byte, streamWindow)
	_, err = io.ReadFull(s.body, b)
	require.NoError(t, err)
	running(t, c)
}

func TestAllExecsTogetherHaveAWindowToo(t *testing.T) {
	const n = 5 // of almost 1 MiB each, more than 4 MiB in all
	c := rawRunner(t, n, func(write func(...[]byte)) {
		for i := range n {
			for range 14 {
				write(h2Frame(h2Data, 0, uint32(2*i+1), kilobytes(64)))
			}
		}
	})
	ctx := testContext(t)
	for range n {
		go func() { _, _ = c.Exec(ctx, "e1", Start{}, nil) }()
	}
	closed(t, c)
}

func TestTheChannelEndsWithItsConnection(t *testing.T) {
	hangUp := make(chan struct{})
	c := openTo(t, func(conn net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		<-hangUp
		_ = conn.Close()
	})
	running(t, c)
	close(hangUp)
	closed(t, c)
}

func TestARunnerThatStopsReadingHoldsNobody(t *testing.T) {
	stuck := make(chan struct{})
	c := openTo(t, func(conn net.Conn) {
		b := make([]byte, 64<<10)
		_, _ = conn.Read(b)                              // HTTP/2's beginning, sent in one piece
		_, _ = conn.Write(h2Frame(h2Settings, 0, 0, "")) // asks for an answer
		_, _ = conn.Read(b[:1])                          // the rest of that write hangs
		close(stuck)
	})
	asked := make(chan error, 2)
	ctx := testContext(t)
	go func() {
		_, err := c.Exec(ctx, "e1", Start{}, make([]byte, 1<<20))
		asked <- err
	}()
	go func() {
		_, err := c.Status(ctx)
		asked <- err
	}()
	<-stuck
	c.Close()
	closed(t, c)
	for range 2 {
		err := <-asked
		require.Error(t, err)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	for name, runner := range map[string]func(conn net.Conn, reached func()){
		"in the handshake": func(_ net.Conn, reached func()) { reached() },
		"in the middle of the handshake": func(conn net.Conn, reached func()) {
			_ = writeMessage(conn, goodHello())
			_ = readMessage(conn, &answer{})
			reached()
		},
		"before HTTP/2 has begun": func(conn net.Conn, reached func()) {
			_ = NewIdentity().Accept(conn)
			reached()
		},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			ours, theirs := net.Pipe()
			defer func() { _ = theirs.Close() }()
			ctx, cancel := context.WithCancel(testContext(t))
			go runner(theirs, cancel) // and then never again
			c, err := Open(ctx, ours, testKey(1), "")
			require.ErrorIs(t, err, context.Canceled)
			require.Nil(t, c)
			_, err = ours.Write(nil)
			require.ErrorIs(t, err, io.ErrClosedPipe, "a connection that was not taken over is closed")
		})
	}
}

func TestOpenClosesARefusedConnection(t *testing.T) {
	noLeaks(t)
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	go func() { _ = writeMessage(theirs, goodHello()) }()
	_, err := Open(testContext(t), ours, testKey(1), NewIdentity().Boot())
	var changed *BootChangedError
	require.ErrorAs(t, err, &changed)
	_, err = ours.Write(nil)
	require.ErrorIs(t, err, io.ErrClosedPipe)
}
