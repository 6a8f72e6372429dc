package channel

import (
	"encoding/binary"
	"net"
	"sync"
)

// Sizes, types and flags of RFC 9113, sections 3.4, 4.1, 6.2 and 6.9.
const (
	h2PrefaceSize  = 24
	h2HeadSize     = 9
	h2UpdateSize   = h2HeadSize + 4
	h2Headers      = 1
	h2WindowUpdate = 8
	h2EndStream    = 1
	h2EndHeaders   = 4
	h2ReservedBit  = 1 << 31
)

// maxJoined is up to where what was held and what comes are one write, in bytes.
const maxJoined = 4 << 10

// Hold returns conn for the server's end of HTTP/2, whose flow control windows are
// stream and connection bytes large. Go's HTTP/2 answers each read of a body with a
// WINDOW_UPDATE in a write of its own, which on a channel is a message through every hop,
// back from the reader to the writer, for each one that came. Here they are added up, and
// sent when they are an eighth of the window, or with whatever else is written.
//
// No peer waits for ever because of that: it still has seven eighths of its window,
// less what has not been read yet, and each read brings the rest nearer to being sent.
func Hold(conn net.Conn, stream, connection uint32) net.Conn {
	return newHolder(conn, stream, connection)
}

// holdClient does that for the client's end. It also has the head of a request wait for
// the body, which each request with one must have at hand: both are one message.
func holdClient(conn net.Conn, stream, connection uint32) net.Conn {
	h := newHolder(conn, stream, connection)
	h.client, h.rest = true, h2PrefaceSize
	return h
}

func newHolder(conn net.Conn, stream, connection uint32) *holder {
	return &holder{Conn: conn, stream: stream / 8, connection: connection / 8, updates: map[uint32]uint32{}}
}

// holder holds frames back that can wait for the next. What is written to it is HTTP/2,
// cut anywhere.
type holder struct {
	net.Conn
	client             bool
	stream, connection uint32 // what is held of one window stays below it, in bytes

	mu      sync.Mutex // guards the rest, and keeps writes in order
	updates map[uint32]uint32
	heads   []byte // whole frames
	partial []byte // of a frame's head that is not complete yet
	rest    int    // bytes of the current frame, or of the preface, that are still to come
}

// Write passes p on, but for frames that can wait. After an error the connection is
// lost, whatever was written.
func (h *holder) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rest > 0 || len(h.partial) > 0 { // nothing may come between
		h.follow(p)
		return h.Conn.Write(p)
	}
	switch {
	case areUpdates(p):
		if h.hold(p) {
			return len(p), h.release(nil)
		}
		return len(p), nil
	case h.client && isOpenRequest(p):
		h.heads = append(h.heads, p...)
		return len(p), nil
	}
	h.follow(p)
	if len(p) <= maxJoined {
		return len(p), h.release(p)
	}
	if err := h.release(nil); err != nil {
		return 0, err
	}
	return h.Conn.Write(p)
}

// areUpdates reports whether p is whole window updates and nothing else.
func areUpdates(p []byte) bool {
	if len(p) == 0 || len(p)%h2UpdateSize != 0 {
		return false
	}
	for ; len(p) > 0; p = p[h2UpdateSize:] {
		if frameLength(p) != h2UpdateSize-h2HeadSize || p[3] != h2WindowUpdate {
			return false
		}
	}
	return true
}

// isOpenRequest reports whether p is the whole head of a request, whose body follows.
func isOpenRequest(p []byte) bool {
	return len(p) > h2HeadSize && len(p) <= maxJoined && len(p) == h2HeadSize+frameLength(p) &&
		p[3] == h2Headers && p[4]&(h2EndHeaders|h2EndStream) == h2EndHeaders
}

func frameLength(head []byte) int { return int(head[0])<<16 | int(head[1])<<8 | int(head[2]) }

// hold adds up updates, and reports whether some cannot wait any longer.
func (h *holder) hold(updates []byte) (due bool) {
	for p := updates; len(p) > 0; p = p[h2UpdateSize:] {
		id := binary.BigEndian.Uint32(p[5:]) &^ h2ReservedBit
		h.updates[id] += binary.BigEndian.Uint32(p[h2HeadSize:]) &^ h2ReservedBit
		limit := h.stream
		if id == 0 {
			limit = h.connection
		}
		due = due || h.updates[id] >= limit
	}
	return due
}

// release writes all that is held, and p behind it.
func (h *holder) release(p []byte) error {
	if len(h.updates) > 0 || len(h.heads) > 0 {
		b := make([]byte, 0, len(h.updates)*h2UpdateSize+len(h.heads)+len(p))
		for id, n := range h.updates {
			b = append(b, 0, 0, h2UpdateSize-h2HeadSize, h2WindowUpdate, 0)
			b = binary.BigEndian.AppendUint32(b, id)
			b = binary.BigEndian.AppendUint32(b, n)
		}
		b = append(b, h.heads...)
		p = append(b, p...)
		clear(h.updates)
		h.heads = h.heads[:0]
	}
	if len(p) == 0 {
		return nil
	}
	_, err := h.Conn.Write(p)
	return err
}

// follow keeps account of where the current frame ends.
func (h *holder) follow(p []byte) {
	for len(p) > 0 {
		if h.rest > 0 {
			n := min(h.rest, len(p))
			h.rest, p = h.rest-n, p[n:]
			continue
		}
		n := min(h2HeadSize-len(h.partial), len(p))
		h.partial, p = append(h.partial, p[:n]...), p[n:]
		if len(h.partial) == h2HeadSize {
			h.rest, h.partial = frameLength(h.partial), h.partial[:0]
		}
	}
}
