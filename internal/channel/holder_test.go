package channel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// sink is a connection that keeps what is written.
type sink struct {
	net.Conn
	bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) { return s.Buffer.Write(p) }
func (s *sink) Read(p []byte) (int, error)  { return s.Buffer.Read(p) }

// account is HTTP/2 as its reader understands it.
type account struct {
	frames  [][]byte          // but for window updates
	updates map[uint32]uint64 // what they add up to
}

// parseH2 reads whole frames; b holds nothing else.
func parseH2(t require.TestingT, b []byte) account {
	a := account{updates: map[uint32]uint64{}}
	for len(b) > 0 {
		require.GreaterOrEqual(t, len(b), h2HeadSize)
		n := h2HeadSize + frameLength(b)
		require.GreaterOrEqual(t, len(b), n, "a frame is cut")
		if b[3] == h2WindowUpdate {
			require.Equal(t, h2UpdateSize, n)
			a.updates[binary.BigEndian.Uint32(b[5:])] += uint64(binary.BigEndian.Uint32(b[h2HeadSize:]))
		} else {
			a.frames = append(a.frames, b[:n])
		}
		b = b[n:]
	}
	return a
}

func genFrame(t *rapid.T) []byte {
	stream := rapid.SampledFrom([]uint32{1, 3, 5}).Draw(t, "stream")
	update := h2Frame(h2WindowUpdate, 0, stream, "\x00\x00\x00\x01")
	switch rapid.SampledFrom([]string{"update", "update", "data", "mimic", "head", "request", "ping"}).Draw(t, "kind") {
	case "mimic": // data that looks like a frame
		return h2Frame(h2Data, 0, stream, string(update))
	case "update":
		n := rapid.Uint32Range(1, 300).Draw(t, "increment")
		if rapid.Bool().Draw(t, "connection") {
			stream = 0
		}
		return h2Frame(h2WindowUpdate, 0, stream, string(binary.BigEndian.AppendUint32(nil, n)))
	case "head":
		return h2Frame(h2Headers, h2EndHeaders|h2EndStream, stream, "fields")
	case "request":
		return h2Frame(h2Headers, h2EndHeaders, stream, "fields")
	case "ping":
		return h2Frame(h2Ping, 0, 0, "12345678")
	}
	return h2Frame(h2Data, 0, stream, kilobytes(rapid.IntRange(0, 6).Draw(t, "KiB")))
}

// However HTTP/2 cuts what it writes, the other end reads the same frames in the same
// order, and window updates that add up to the same but for less than an eighth of each
// window.
func TestHeldFramesArriveWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var out sink
		client := rapid.Bool().Draw(t, "client")
		h, preface := Hold(&out, 4000, 8000), 0
		if client {
			h, preface = holdClient(&out, 4000, 8000), h2PrefaceSize
		}
		written := make([]byte, preface)
		for range rapid.IntRange(1, 40).Draw(t, "writes") {
			var p []byte // one write of HTTP/2: frames, and perhaps a part of the next one
			for range rapid.IntRange(1, 3).Draw(t, "frames") {
				p = append(p, genFrame(t)...)
			}
			if len(written) == preface {
				p = append(make([]byte, preface), p...)
				written = nil
			}
			written = append(written, p...)
			for len(p) > 0 {
				n := len(p)
				if rapid.Bool().Draw(t, "cut") {
					n = rapid.OneOf(rapid.Just(min(h2HeadSize, len(p))), rapid.IntRange(1, len(p))).Draw(t, "at")
				}
				m, err := h.Write(p[:n])
				require.NoError(t, err)
				require.Equal(t, n, m)
				p = p[n:]
			}
			in, came := parseH2(t, written[preface:]), parseH2(t, out.Bytes()[preface:])
			for id, n := range in.updates {
				limit := uint64(500)
				if id == 0 {
					limit = 1000
				}
				require.Less(t, n-came.updates[id], limit, "held of window %d", id)
			}
			last := in.frames
			for client && len(last) > len(came.frames) && isOpenRequest(last[len(last)-1]) {
				last = last[:len(last)-1]
			}
			require.Equal(t, bytes.Join(last, nil), bytes.Join(came.frames, nil))
		}
		ping := h2Frame(h2Ping, 0, 0, "the last")
		_, err := h.Write(ping)
		require.NoError(t, err)
		require.Equal(t, parseH2(t, append(written[preface:], ping...)), parseH2(t, out.Bytes()[preface:]))
	})
}

func TestTheHolderTellsErrors(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	require.NoError(t, theirs.Close())
	update := h2Frame(h2WindowUpdate, 0, 1, "\x00\x00\x00\x01")
	for name, p := range map[string][]byte{
		"a frame":               h2Frame(h2Ping, 0, 0, "12345678"),
		"a large one":           h2Frame(h2Data, 0, 1, kilobytes(64)),
		"an update that is due": h2Frame(h2WindowUpdate, 0, 1, "\x00\x00\xff\xff"),
	} {
		h := Hold(ours, 4000, 8000)
		_, err := h.Write(update)
		require.NoError(t, err, "nothing was written yet")
		_, err = h.Write(p)
		require.ErrorIs(t, err, io.ErrClosedPipe, name)
	}
}

// counted counts the writes.
type counted struct {
	net.Conn
	n atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(p)
}

// Each message to the sandbox passes the API server, the kubelet and containerd, and
// wakes the runner: a request is one, and what a reader says while it reads 16 MiB are
// few.
func TestReadersSayLittle(t *testing.T) {
	const size, most = 16 << 20, 128 // HTTP/2 itself says something every 4 KiB: 4,096 times
	ours, theirs := net.Pipe()
	conn := &counted{Conn: ours}
	c := openOver(t, conn, theirs, serveHTTP(execs(func(w http.ResponseWriter, _ wire.Frame, in *FrameReader) {
		out := NewFrameWriter(w, http.NewResponseController(w).Flush)
		pour(out.Write, wire.KindStdout, size, wire.MaxData)
		_, _ = in.Read()
	})))
	_, err := c.Status(testContext(t)) // what HTTP/2 says at its start
	require.NoError(t, err)
	before := conn.n.Load()
	s, err := c.Exec(testContext(t), "e1", Start{}, []byte("print(1)"))
	require.NoError(t, err)
	defer s.Close()
	require.EqualValues(t, 1, conn.n.Load()-before, "writes of a request")
	for got := 0; got < size; {
		f, err := s.Recv()
		require.NoError(t, err)
		got += len(f.Payload)
	}
	require.LessOrEqual(t, conn.n.Load()-before, int64(most), "writes while reading")
}

// Many streams that carry more than all windows hold, both ways at once, carry it all:
// nobody waits for an update that is held.
func TestHeldUpdatesStopNobody(t *testing.T) {
	const streams, size, piece = 8, 3 * streamWindow, 1000 // piece is no divisor of any window
	const serverWindow = 1 << 20                           // net/http's own
	ours, theirs := net.Pipe()
	c := openOver(t, ours, Hold(theirs, serverWindow, serverWindow), serveHTTP(execs(func(w http.ResponseWriter, _ wire.Frame, in *FrameReader) {
		var came sync.WaitGroup
		defer came.Wait()
		came.Go(func() {
			for got := 0; got < size; got += piece {
				if _, err := in.Read(); err != nil {
					t.Errorf("input ends at %d: %v", got, err)
					return
				}
			}
		})
		pour(NewFrameWriter(w, http.NewResponseController(w).Flush).Write, wire.KindStdout, size, piece)
	})))
	var all sync.WaitGroup
	defer all.Wait()
	for i := range streams {
		s, err := c.Exec(testContext(t), fmt.Sprint("e", i), Start{}, nil)
		require.NoError(t, err)
		all.Go(func() { pour(s.Send, wire.KindStdin, size, piece) })
		all.Go(func() {
			defer s.Close()
			for got := 0; ; {
				f, err := s.Recv()
				if errors.Is(err, io.EOF) && got >= size {
					return
				}
				if err != nil {
					t.Errorf("output ends at %d: %v", got, err)
					return
				}
				got += len(f.Payload)
			}
		})
	}
}

// pour writes size bytes in pieces.
func pour(write func(wire.Frame) error, kind wire.Kind, size, piece int) {
	data := make([]byte, piece)
	for at := 0; at < size; at += piece {
		if write(wire.Frame{Kind: kind, Offset: uint64(at), Payload: data}) != nil {
			return // the reader says where
		}
	}
}
