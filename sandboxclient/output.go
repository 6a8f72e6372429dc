package sandboxclient

import (
	"fmt"
	"io"
	"math"
	"reflect"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// outputWindow is the credit granted for each of a program's outputs, in bytes:
	// at most so much of it lies here unconsumed. It is less than a sandbox keeps, so
	// that a program can go on before the acknowledgement is there.
	outputWindow = 1536 << 10
	// maxWrite bounds one Write to the caller's writer, in bytes. Credit is given
	// back after each, so it also bounds what a slow writer holds up.
	maxWrite = 64 << 10
)

// output takes a program's stdout and stderr from the reader and moves them to
// the caller's writers. Each writer has a queue and a goroutine, so that one which
// blocks does not hold up the other. Equal writers share both: they are never
// written concurrently, and see the bytes in the order in which they came.
type output struct {
	queues []*outQueue // one, or two for different writers

	mu    sync.Mutex // guards what follows and the content of the queues
	flows [2]flow    // of stdout and stderr
	ended bool       // nothing more will come
	muted bool       // the caller no longer waits: nothing more may be written
}

// flow is the account of one output, in bytes since its start.
type flow struct {
	queue    *outQueue
	received uint64 // arrived here
	consumed uint64 // written to the caller's writer
	limit    uint64 // how far the broker may send
	missed   uint64 // bytes that the sandbox discarded before they could come
	gapTo    uint64 // where the newest gap of those ends
}

// outQueue holds what one writer has yet to be given.
type outQueue struct {
	writer io.Writer
	ready  chan struct{} // a token lies here when there is something new; capacity 1

	// Bounded by the windows of the outputs that go here. Guarded by output.mu.
	data  []byte
	parts []part
}

// part says whose the next bytes of a queue are.
type part struct {
	fd  wire.FD
	n   uint64
	gap bool // they were discarded: there is nothing to write
}

// newOutput makes the output of a program, of which the caller has the bytes below
// the offsets.
func newOutput(stdout, stderr io.Writer, stdoutAt, stderrAt uint64) *output {
	o := &output{queues: []*outQueue{newOutQueue(stdout)}}
	first, second := o.queues[0], o.queues[0]
	if !sameWriter(stdout, stderr) {
		second = newOutQueue(stderr)
		o.queues = append(o.queues, second)
	}
	o.flows = [2]flow{newFlow(first, stdoutAt), newFlow(second, stderrAt)}
	return o
}

func newFlow(q *outQueue, at uint64) flow {
	return flow{queue: q, received: at, consumed: at, limit: at + outputWindow}
}

func newOutQueue(w io.Writer) *outQueue {
	return &outQueue{writer: w, ready: make(chan struct{}, 1)}
}

// sameWriter says whether two writers are one. Not every type can be compared.
func sameWriter(a, b io.Writer) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

func (o *output) flow(fd wire.FD) *flow { return &o.flows[fd-wire.Stdout] }

// credit is the first window for an output on a stream: it starts where the last
// one broke off. What has arrived here need not come again.
func (o *output) credit(fd wire.FD) *wire.Credit {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.flow(fd)
	f.limit = max(f.limit, f.received)
	return &wire.Credit{Acked: f.received, Limit: f.limit}
}

// window is what an output's newest window says, for a stream that may have missed
// it.
func (o *output) window(fd wire.FD) wire.Window {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.flow(fd)
	return wire.Window{FD: fd, Acked: f.consumed, Limit: f.limit}
}

// receive queues bytes from the broker. It does not block: the broker may send
// only what there is room for.
func (o *output) receive(fd wire.FD, offset uint64, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.flow(fd)
	if offset != f.received {
		return protocolErrorf("it sent %s from offset %d, but %d bytes have arrived", fd, offset, f.received)
	}
	if end := offset + uint64(len(p)); end > f.limit {
		return protocolErrorf("it sent %s up to offset %d, but has credit up to %d", fd, end, f.limit)
	}
	if len(p) == 0 {
		return nil
	}
	f.received += uint64(len(p))
	f.queue.data = append(f.queue.data, p...)
	f.queue.add(part{fd: fd, n: uint64(len(p))})
	return nil
}

// skip notes that the bytes up to offset to are gone.
func (o *output) skip(fd wire.FD, to uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.flow(fd)
	if to <= f.received || to > math.MaxInt64 {
		return protocolErrorf("it discarded %s up to offset %d, but %d bytes have arrived", fd, to, f.received)
	}
	n := to - f.received
	f.received, f.gapTo = to, to
	f.missed += n
	f.queue.add(part{fd: fd, n: n, gap: true})
	return nil
}

// gaps puts what was missed into an ending.
func (o *output) gaps(n *wire.Ending) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out, err := o.flow(wire.Stdout), o.flow(wire.Stderr)
	n.StdoutDiscardedTo = max(n.StdoutDiscardedTo, out.gapTo)
	n.StderrDiscardedTo = max(n.StderrDiscardedTo, err.gapTo)
	n.Complete = n.Complete && out.missed == 0 && err.missed == 0
}

// add makes p the last of the queue. output.mu is held.
func (q *outQueue) add(p part) {
	if last := len(q.parts) - 1; last >= 0 && q.parts[last].fd == p.fd && q.parts[last].gap == p.gap {
		q.parts[last].n += p.n
	} else {
		q.parts = append(q.parts, p)
	}
	q.wake()
}

// end says that nothing more will come; the pumps end when they are empty.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	for _, q := range o.queues {
		q.wake()
	}
}

// mute keeps the pumps from writing again. A Write in progress is left alone.
func (o *output) mute() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.muted = true
}

func (q *outQueue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// pump writes what arrives in q until the end, and gives the credit back through
// grant. After an error of the writer it goes on without writing, so that the
// broker is not held up. The first error goes to failed.
func (o *output) pump(q *outQueue, grant func(wire.Window), failed func(error)) {
	var data []byte
	var parts []part
	broken := false
	for {
		var more bool
		if data, parts, more = o.take(q, data, parts); !more {
			break
		}
		rest := data
		for _, p := range parts {
			if p.gap {
				o.consume(p.fd, p.n, grant)
				continue
			}
			for p.n > 0 {
				n := min(p.n, maxWrite)
				if !broken && !o.silent() {
					if err := writeAll(q.writer, rest[:n]); err != nil {
						broken = true
						failed(fmt.Errorf("sandboxclient: writing the program's %s: %w", p.fd, err))
					}
				}
				rest, p.n = rest[n:], p.n-n
				o.consume(p.fd, n, grant)
			}
		}
	}
	if t, ok := q.writer.(*TextWriter); ok && !broken && !o.silent() {
		if err := t.Flush(); err != nil {
			failed(fmt.Errorf("sandboxclient: writing the end of the program's output: %w", err))
		}
	}
}

// take waits for something to write, and swaps the queue's buffers with the ones
// that were written before. more is false at the end.
func (o *output) take(q *outQueue, data []byte, parts []part) (_ []byte, _ []part, more bool) {
	for {
		o.mu.Lock()
		if len(q.parts) > 0 {
			q.data, data = data[:0], q.data
			q.parts, parts = parts[:0], q.parts
			o.mu.Unlock()
			return data, parts, true
		}
		ended := o.ended
		o.mu.Unlock()
		if ended {
			return nil, nil, false
		}
		<-q.ready
	}
}

func (o *output) silent() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.muted
}

// consume accounts for n bytes that were dealt with, and grants new credit when
// an acknowledgement is due.
func (o *output) consume(fd wire.FD, n uint64, grant func(wire.Window)) {
	o.mu.Lock()
	f := o.flow(fd)
	f.consumed += n
	limit := f.consumed + outputWindow
	due := !o.ended && limit-f.limit >= wire.AckDue
	w := wire.Window{FD: fd, Acked: f.consumed, Limit: limit}
	if due {
		f.limit = limit
	}
	o.mu.Unlock()
	if due {
		grant(w)
	}
}

// writeAll writes p, and does not trust the writer's count.
func writeAll(w io.Writer, p []byte) error {
	n, err := w.Write(p)
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	return err
}

// capture is a writer that keeps the first bytes up to a bound.
type capture struct {
	mu        sync.Mutex // guards what follows
	data      []byte
	limit     int64
	truncated bool
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := p
	if room := c.limit - int64(len(c.data)); int64(len(p)) > room {
		c.truncated = true
		keep = p[:max(room, 0)]
	}
	c.data = append(c.data, keep...)
	return len(p), nil
}

// close ends the capture and returns what was kept; a later Write keeps nothing.
func (c *capture) close() (data []byte, truncated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = 0
	return c.data, c.truncated
}
