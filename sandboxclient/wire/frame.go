package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Subprotocol is the WebSocket subprotocol name both ends must agree on.
const Subprotocol = "v1.sandbox-broker"

// Path is the HTTP path of the WebSocket.
const Path = "/v1/connect"

// Sizes of the protocol, in bytes.
const (
	// HeaderSize is the length of a frame's fixed header.
	HeaderSize = 16
	// MaxData bounds the payload of one KindStdin, KindStdout or KindStderr frame.
	MaxData = 64 << 10
	// MaxControl bounds the JSON of one control frame.
	MaxControl = 256 << 10
	// MaxCode bounds the code in one request, whatever a pool allows.
	MaxCode = 16 << 20
	// DefaultWindow is the credit a client grants for each output when its
	// request names none.
	DefaultWindow = 1 << 20
	// AckDue is how much of an output a client may consume until it must acknowledge
	// that: a sandbox whose memory for outputs is used up keeps little more of each.
	AckDue = 512 << 10
	// MaxWindow bounds the credit that may be outstanding for one output.
	MaxWindow = 4 << 20
	// MaxServerMessage and MaxClientMessage bound a whole WebSocket message: only
	// clients send code.
	MaxServerMessage = HeaderSize + MaxControl
	MaxClientMessage = HeaderSize + MaxControl + MaxCode
)

// Kind says what a frame is.
type Kind uint8

// The kinds of version 1. Numbers are never reused.
const (
	// KindHello is the server's first frame, on stream 0: a [Hello].
	KindHello Kind = 0x01
	// KindGoAway, from the server on stream 0, asks the client to reconnect: a [GoAway].
	KindGoAway Kind = 0x02
	// KindError ends a stream (or, on stream 0, the connection): an [Error].
	KindError Kind = 0x03

	// KindRequest opens a stream: a [Request], then the code. The header's
	// offset is the length of the JSON; what follows it is the code.
	KindRequest Kind = 0x10
	// KindResponse answers a request: a [Response].
	KindResponse Kind = 0x11
	// KindCancel, from the client, ends what the stream stands for.
	KindCancel Kind = 0x12
	// KindExit is the terminal event of an exec: an [Ending].
	KindExit Kind = 0x13
	// KindDone, from the client, says that the ending has arrived.
	KindDone Kind = 0x14

	// KindStdin carries input bytes from the client, at the header's offset.
	KindStdin Kind = 0x20
	// KindStdinEnd ends the input; the offset is its whole length.
	KindStdinEnd Kind = 0x21
	// KindStdout and KindStderr carry output bytes at the header's offset.
	KindStdout Kind = 0x22
	KindStderr Kind = 0x23
	// KindWindow acknowledges bytes and grants credit: a [Window].
	KindWindow Kind = 0x24
	// KindSignal, from the client, sends a signal to the program: a [Signal]. The
	// header's offset is a number that the client chose for it, or 0: one that
	// comes again with the same number is not sent again.
	KindSignal Kind = 0x25
	// KindDiscarded, from the server, says that output was given up for newer
	// output: a [Discarded]. Only programs with [RetainNewest] lose any.
	KindDiscarded Kind = 0x26
)

// FlagOptional marks a frame that a receiver may skip if it does not know its
// kind. An unknown kind without it ends the connection.
const FlagOptional = 0x01

// Frame is one message of the protocol.
type Frame struct {
	Kind    Kind
	Flags   uint8
	Stream  uint32
	Offset  uint64
	Payload []byte
}

// Append adds the encoded frame to dst and returns the longer slice.
func (f Frame) Append(dst []byte) []byte {
	dst = append(dst, byte(f.Kind), f.Flags, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, f.Stream)
	dst = binary.BigEndian.AppendUint64(dst, f.Offset)
	return append(dst, f.Payload...)
}

// Known reports whether version 1 defines the kind.
func (k Kind) Known() bool {
	_, ok := kindNames[k]
	return ok
}

// IsData reports whether the kind carries bytes of a program.
func (k Kind) IsData() bool { return k == KindStdin || k == KindStdout || k == KindStderr }

var kindNames = map[Kind]string{
	KindHello: "hello", KindGoAway: "goaway", KindError: "error",
	KindRequest: "request", KindResponse: "response", KindCancel: "cancel", KindExit: "exit", KindDone: "done",
	KindStdin: "stdin", KindStdinEnd: "stdin_end", KindStdout: "stdout", KindStderr: "stderr",
	KindWindow: "window", KindSignal: "signal", KindDiscarded: "discarded",
}

// String names the kind as docs/protocol.md does.
func (k Kind) String() string {
	if n, ok := kindNames[k]; ok {
		return n
	}
	return fmt.Sprintf("kind 0x%02x", uint8(k))
}

// ParseFrame reads one message. The payload aliases b. It checks what holds for
// every frame: the header's length and reserved bytes, and the bound on the
// payload of a known kind. Errors are *Error with code [CodeInvalid] that name
// the field and the limit. An unknown kind is not an error here.
func ParseFrame(b []byte) (Frame, error) {
	if len(b) < HeaderSize {
		return Frame{}, invalid("frame", HeaderSize, "a message of %d bytes is shorter than the frame header (%d)", len(b), HeaderSize)
	}
	f := Frame{
		Kind: Kind(b[0]), Flags: b[1],
		Stream:  binary.BigEndian.Uint32(b[4:8]),
		Offset:  binary.BigEndian.Uint64(b[8:16]),
		Payload: b[HeaderSize:],
	}
	if b[2] != 0 || b[3] != 0 {
		return Frame{}, invalid("frame.reserved", 0, "the reserved bytes of a frame header must be zero")
	}
	return f, f.check()
}

func (f Frame) check() error {
	n := len(f.Payload)
	switch {
	case f.Kind == KindRequest:
		if f.Offset > MaxControl {
			return invalid("request", MaxControl, "a request's JSON of %d bytes exceeds the limit of %d", f.Offset, MaxControl)
		}
		if uint64(n) < f.Offset {
			return invalid("request", n, "a request announces %d bytes of JSON but carries %d bytes in all", f.Offset, n)
		}
		if n-int(f.Offset) > MaxCode {
			return invalid("code", MaxCode, "code of %d bytes exceeds the protocol's limit of %d", n-int(f.Offset), MaxCode)
		}
	case f.Kind.IsData():
		if n > MaxData {
			return invalid("frame.payload", MaxData, "a %s frame of %d bytes exceeds the limit of %d; send several", f.Kind, n, MaxData)
		}
		if f.Offset+uint64(n) < f.Offset {
			return invalid("frame.offset", 0, "a %s frame at offset %d with %d bytes runs past the largest offset", f.Kind, f.Offset, n)
		}
	case n > MaxControl:
		return invalid("frame.payload", MaxControl, "a %s frame of %d bytes exceeds the limit of %d", f.Kind, n, MaxControl)
	}
	return nil
}

// FD names one of a program's three byte streams.
type FD uint8

// The byte streams, numbered as in a process.
const (
	Stdin  FD = 0
	Stdout FD = 1
	Stderr FD = 2
)

// String gives the usual name.
func (d FD) String() string {
	switch d {
	case Stdin:
		return "stdin"
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	}
	return fmt.Sprintf("fd %d", uint8(d))
}

// DataKind is the kind of the frames that carry the stream's bytes.
func (d FD) DataKind() Kind {
	switch d {
	case Stdin:
		return KindStdin
	case Stdout:
		return KindStdout
	default:
		return KindStderr
	}
}

// Window is the content of a KindWindow frame: everything below Acked has been
// consumed and need not be kept; bytes below Limit may be sent.
type Window struct {
	FD    FD
	Acked uint64
	Limit uint64
}

// windowSize is the payload of a KindWindow frame: one byte FD, eight bytes limit.
const windowSize = 9

// Frame encodes the window for a stream. Acked travels in the header's offset.
func (w Window) Frame(stream uint32) Frame {
	p := make([]byte, 0, windowSize)
	p = append(p, byte(w.FD))
	p = binary.BigEndian.AppendUint64(p, w.Limit)
	return Frame{Kind: KindWindow, Stream: stream, Offset: w.Acked, Payload: p}
}

// ParseWindow reads a KindWindow frame. Errors are *Error with code [CodeInvalid].
func ParseWindow(f Frame) (Window, error) {
	if len(f.Payload) != windowSize {
		return Window{}, invalid("window", windowSize, "a window frame has %d bytes of payload, not %d", len(f.Payload), windowSize)
	}
	w := Window{FD: FD(f.Payload[0]), Acked: f.Offset, Limit: binary.BigEndian.Uint64(f.Payload[1:])}
	if w.FD > Stderr {
		return Window{}, invalid("window.fd", int(Stderr), "a window frame names fd %d; only 0, 1 and 2 exist", w.FD)
	}
	if w.Limit < w.Acked {
		return Window{}, invalid("window.limit", 0, "a window frame's limit %d lies before its acknowledged offset %d", w.Limit, w.Acked)
	}
	if w.Limit-w.Acked > MaxWindow {
		return Window{}, invalid("window.limit", MaxWindow, "a window of %d bytes exceeds the limit of %d", w.Limit-w.Acked, MaxWindow)
	}
	return w, nil
}

// Discarded is the content of a KindDiscarded frame: the output goes on at To, and
// what was to come before it is gone.
type Discarded struct {
	FD FD
	To uint64
}

// Frame encodes the message for a stream. To travels in the header's offset.
func (d Discarded) Frame(stream uint32) Frame {
	return Frame{Kind: KindDiscarded, Stream: stream, Offset: d.To, Payload: []byte{byte(d.FD)}}
}

// ParseDiscarded reads a KindDiscarded frame. Errors are *Error with code
// [CodeInvalid].
func ParseDiscarded(f Frame) (Discarded, error) {
	if len(f.Payload) != 1 {
		return Discarded{}, invalid("discarded", 1, "a discarded frame has %d bytes of payload, not 1", len(f.Payload))
	}
	d := Discarded{FD: FD(f.Payload[0]), To: f.Offset}
	if d.FD != Stdout && d.FD != Stderr {
		return Discarded{}, invalid("discarded.fd", int(Stderr), "a discarded frame names fd %d; only outputs, 1 and 2, are discarded", f.Payload[0])
	}
	if d.To > math.MaxInt64 {
		return Discarded{}, invalid("frame.offset", 0, "a discarded frame goes to offset %d, which no output reaches", d.To)
	}
	return d, nil
}
