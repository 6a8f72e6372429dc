package broker

import "github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"

// A client's orders are its signals and its cancel. That one was written to a channel
// does not say that the runner has it: a connection can be dead for long before anybody
// notices. So each is sent again over the next channel, and the runner skips those whose
// number it knows.

const (
	// maxSignals bounds the signals kept for the next channel: the newest, as many as a
	// client sends again itself.
	maxSignals = 16
	// maxSignalBytes bounds one of them.
	maxSignalBytes = 256
)

// clientOrder notes a signal or a cancel and passes it on. mu is held.
func (r *relay) clientOrder(f wire.Frame) error {
	if f.Kind == wire.KindCancel {
		r.canceled = true
		r.forward(f)
		return nil
	}
	if len(f.Payload) > maxSignalBytes {
		return wire.Invalid("signal", maxSignalBytes, "a signal of %d bytes exceeds the limit of %d; its name is like SIGINT", len(f.Payload), maxSignalBytes)
	}
	passed := r.stream != nil && r.passOn(f) == nil
	if passed && f.Offset == 0 {
		return nil // without a number it would come twice
	}
	r.signals = append(r.signals[max(0, len(r.signals)-maxSignals+1):], f)
	return nil
}

// repeatOrders sends over a new channel what the last one may not have delivered. mu is
// held.
func (r *relay) repeatOrders() {
	kept := r.signals[:0]
	for _, f := range r.signals {
		r.forward(f)
		if f.Offset != 0 {
			kept = append(kept, f)
		}
	}
	r.signals = kept
	if r.canceled {
		r.forward(wire.Frame{Kind: wire.KindCancel})
	}
}

// repeatCredit sends what the client has acknowledged and granted so far over a new
// stream. It would be missed for ever: a client that has consumed all that came says no
// more, and the program waits for room. mu is held.
func (r *relay) repeatCredit() {
	for _, fd := range []wire.FD{wire.Stdout, wire.Stderr} {
		if r.granted[fd] {
			r.forwardCredit(fd)
		}
	}
}

// forwardCredit passes on how far the client is in one output. mu is held.
func (r *relay) forwardCredit(fd wire.FD) {
	c := r.creditOf(fd)
	r.forward(wire.Window{FD: fd, Acked: c.Acked, Limit: c.Limit}.Frame(0))
}
