package wire_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// invalid requires an *Error with CodeInvalid that names field and limit.
func invalid(t *testing.T, err error, field string, limit int64) {
	t.Helper()
	e := wire.AsError(err)
	require.NotNil(t, e, "%v", err)
	assert.Equal(t, wire.CodeInvalid, e.Code)
	assert.Equal(t, field, e.Field)
	assert.Equal(t, limit, e.Limit)
	assert.NotEmpty(t, e.Message)
}

func TestFrameRoundTrip(t *testing.T) {
	for name, f := range map[string]wire.Frame{
		"empty":          {Kind: wire.KindCancel, Stream: 1, Payload: []byte{}},
		"largest header": {Kind: wire.KindStdinEnd, Flags: 0xff, Stream: math.MaxUint32, Offset: math.MaxUint64, Payload: []byte{}},
		"unknown kind":   {Kind: 0xee, Flags: wire.FlagOptional, Stream: 7, Offset: 9, Payload: []byte("later")},
		"binary data":    {Kind: wire.KindStdout, Stream: 3, Offset: 1 << 40, Payload: []byte{0, 255, '\n', 0x80}},
		"most data":      {Kind: wire.KindStderr, Stream: 3, Payload: make([]byte, wire.MaxData)},
		"most control":   {Kind: wire.KindExit, Stream: 3, Payload: make([]byte, wire.MaxControl)},
		"most code":      {Kind: wire.KindRequest, Stream: 3, Offset: wire.MaxControl, Payload: make([]byte, wire.MaxControl+wire.MaxCode)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := wire.ParseFrame(f.Append(nil))
			require.NoError(t, err)
			assert.Equal(t, f, got)
		})
	}
}

func TestAppendKeepsWhatIsThere(t *testing.T) {
	f := wire.Frame{Kind: wire.KindDone, Stream: 1}
	b := f.Append([]byte("before"))
	assert.Equal(t, "before", string(b[:6]))
	assert.Equal(t, f.Append(nil), b[6:])
}

func TestParseFrameLimits(t *testing.T) {
	encode := func(f wire.Frame) []byte { return f.Append(nil) }
	tests := map[string]struct {
		message []byte
		field   string
		limit   int64
	}{
		"nothing":      {nil, "frame", wire.HeaderSize},
		"short header": {make([]byte, wire.HeaderSize-1), "frame", wire.HeaderSize},
		"reserved byte": {
			[]byte{byte(wire.KindDone), 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}, "frame.reserved", 0,
		},
		"too much data": {
			encode(wire.Frame{Kind: wire.KindStdin, Payload: make([]byte, wire.MaxData+1)}), "frame.payload", wire.MaxData,
		},
		"offset runs over": {
			encode(wire.Frame{Kind: wire.KindStdout, Offset: math.MaxUint64, Payload: []byte("xy")}), "frame.offset", 0,
		},
		"too much control": {
			encode(wire.Frame{Kind: wire.KindExit, Payload: make([]byte, wire.MaxControl+1)}), "frame.payload", wire.MaxControl,
		},
		"too much of an unknown kind": {
			encode(wire.Frame{Kind: 0xee, Payload: make([]byte, wire.MaxControl+1)}), "frame.payload", wire.MaxControl,
		},
		"request JSON too long": {
			encode(wire.Frame{Kind: wire.KindRequest, Offset: wire.MaxControl + 1, Payload: make([]byte, wire.MaxControl+1)}), "request", wire.MaxControl,
		},
		"request shorter than it says": {
			encode(wire.Frame{Kind: wire.KindRequest, Offset: 10, Payload: []byte("{}")}), "request", 2,
		},
		"code too long": {
			encode(wire.Frame{Kind: wire.KindRequest, Offset: 2, Payload: make([]byte, 2+wire.MaxCode+1)}), "code", wire.MaxCode,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := wire.ParseFrame(tt.message)
			invalid(t, err, tt.field, tt.limit)
		})
	}
}

func TestKinds(t *testing.T) {
	for k, name := range map[wire.Kind]string{
		wire.KindHello: "hello", wire.KindGoAway: "goaway", wire.KindError: "error",
		wire.KindRequest: "request", wire.KindResponse: "response", wire.KindCancel: "cancel",
		wire.KindExit: "exit", wire.KindDone: "done",
		wire.KindStdin: "stdin", wire.KindStdinEnd: "stdin_end", wire.KindStdout: "stdout", wire.KindStderr: "stderr",
		wire.KindWindow: "window", wire.KindSignal: "signal",
	} {
		assert.Equal(t, name, k.String())
		assert.True(t, k.Known(), name)
	}
	assert.Equal(t, "kind 0xee", wire.Kind(0xee).String())
	assert.False(t, wire.Kind(0xee).Known())

	for fd, kind := range map[wire.FD]wire.Kind{wire.Stdin: wire.KindStdin, wire.Stdout: wire.KindStdout, wire.Stderr: wire.KindStderr} {
		assert.Equal(t, kind, fd.DataKind())
		assert.Equal(t, kind.String(), fd.String())
		assert.True(t, kind.IsData())
	}
	assert.Equal(t, "fd 9", wire.FD(9).String())
	assert.False(t, wire.KindStdinEnd.IsData())
}

func TestWindow(t *testing.T) {
	for _, w := range []wire.Window{
		{FD: wire.Stdin},
		{FD: wire.Stdout, Acked: 5, Limit: 5},
		{FD: wire.Stderr, Acked: 1 << 40, Limit: 1<<40 + wire.MaxWindow},
		{FD: wire.Stdout, Acked: math.MaxUint64 - 1, Limit: math.MaxUint64},
	} {
		f, err := wire.ParseFrame(w.Frame(8).Append(nil))
		require.NoError(t, err)
		assert.Equal(t, uint32(8), f.Stream)
		got, err := wire.ParseWindow(f)
		require.NoError(t, err)
		assert.Equal(t, w, got)
	}
	tests := map[string]struct {
		frame wire.Frame
		field string
		limit int64
	}{
		"too short":    {wire.Frame{Payload: make([]byte, 8)}, "window", 9},
		"too long":     {wire.Frame{Payload: make([]byte, 10)}, "window", 9},
		"no such fd":   {wire.Window{FD: 3}.Frame(1), "window.fd", 2},
		"before acked": {wire.Window{FD: wire.Stdout, Acked: 2, Limit: 1}.Frame(1), "window.limit", 0},
		"too wide":     {wire.Window{FD: wire.Stdout, Limit: wire.MaxWindow + 1}.Frame(1), "window.limit", wire.MaxWindow},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := wire.ParseWindow(tt.frame)
			invalid(t, err, tt.field, tt.limit)
		})
	}
}

func FuzzParseFrame(f *testing.F) {
	for _, frame := range goldenFrames() {
		f.Add(frame.frame.Append(nil))
	}
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := wire.ParseFrame(b)
		if err != nil {
			if e := wire.AsError(err); e == nil || e.Code != wire.CodeInvalid || e.Field == "" {
				t.Fatalf("%v is not an invalid error with a field", err)
			}
			return
		}
		if again := frame.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x was read and written as %x", b, again)
		}
		// What follows must not panic, whatever the kind.
		_ = frame.Kind.String()
		w, err := wire.ParseWindow(frame)
		if err != nil {
			return
		}
		if again := w.Frame(frame.Stream); !bytes.Equal(again.Payload, frame.Payload) || again.Offset != frame.Offset {
			t.Fatalf("window %+v does not survive", w)
		}
	})
}
