package channel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// body is frames as a body has them.
func body(t testing.TB, frames ...wire.Frame) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewFrameWriter(&b, nil)
	for _, f := range frames {
		require.NoError(t, w.Write(f))
	}
	return b.Bytes()
}

// announce is a frame's length and what came of the frame.
func announce(n uint32, rest ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, n), rest...)
}

func TestFramesRoundTrip(t *testing.T) {
	t.Parallel()
	frames := []wire.Frame{
		{Kind: wire.KindStdout, Stream: 7, Offset: 1 << 40, Payload: []byte("out")},
		{Kind: wire.KindStdinEnd, Flags: wire.FlagOptional, Offset: 12, Payload: []byte{}},
		{Kind: wire.KindStderr, Payload: bytes.Repeat([]byte{0xff}, wire.MaxData)},
		{Kind: wire.KindExit, Payload: bytes.Repeat([]byte{'x'}, wire.MaxControl)},
		// The buffer has grown: what follows a large frame must not carry its rest.
		{Kind: wire.KindStdout, Payload: []byte("small again")},
	}
	b := body(t, frames...)
	for name, r := range map[string]io.Reader{
		"at once":      bytes.NewReader(b),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(b)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fr := NewFrameReader(r, wire.MaxControl)
			for _, want := range frames {
				got, err := fr.Read()
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
			_, err := fr.Read()
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

func TestTruncatedBodiesAreNoCleanEnd(t *testing.T) {
	t.Parallel()
	first := body(t, wire.Frame{Kind: wire.KindStdout, Payload: []byte("one")})
	both := append(bytes.Clone(first), body(t, wire.Frame{Kind: wire.KindStdout, Payload: []byte("two")})...)
	for cut := range both {
		fr := NewFrameReader(bytes.NewReader(both[:cut]), wire.MaxData)
		_, err := fr.Read()
		if cut >= len(first) {
			require.NoError(t, err, "cut after %d bytes", cut)
			_, err = fr.Read()
		}
		if cut == 0 || cut == len(first) {
			require.Equal(t, io.EOF, err, "cut after %d bytes", cut)
		} else {
			require.Equal(t, io.ErrUnexpectedEOF, err, "cut after %d bytes", cut)
		}
	}
}

func TestTheReadersLimit(t *testing.T) {
	t.Parallel()
	const limit = 1000
	frame := func(n int) []byte { return body(t, wire.Frame{Kind: wire.KindStdout, Payload: make([]byte, n)}) }

	f, err := NewFrameReader(bytes.NewReader(frame(limit)), limit).Read()
	require.NoError(t, err)
	require.Len(t, f.Payload, limit)

	for name, b := range map[string][]byte{
		"a byte more":         frame(limit + 1),
		"the largest length":  announce(0xffff_ffff),
		"a length alone":      announce(limit + wire.HeaderSize + 1), // refused before the frame comes
		"negative if 32 bits": announce(0x8000_0000),
	} {
		fr := NewFrameReader(bytes.NewReader(b), limit)
		_, err := fr.Read()
		require.ErrorContains(t, err, "exceed the limit", name)
		require.Empty(t, fr.buf, "%s: memory was taken for it", name)
	}

	// Whatever the caller allows, no frame is larger than the largest request.
	_, err = NewFrameReader(bytes.NewReader(announce(maxFrame+1)), 2*maxFrame).Read()
	require.ErrorContains(t, err, "exceed the limit")
}

func TestFramesThatAreNone(t *testing.T) {
	t.Parallel()
	reserved := body(t, wire.Frame{Kind: wire.KindStdout})
	reserved[lengthSize+2] = 1
	for name, b := range map[string][]byte{
		"no header":                          announce(0),
		"a header too short":                 announce(wire.HeaderSize-1, make([]byte, wire.HeaderSize-1)...),
		"reserved bytes":                     reserved,
		"more data than a data frame may be": body(t, wire.Frame{Kind: wire.KindStdout, Payload: make([]byte, wire.MaxData+1)}),
		"a request without its JSON":         body(t, wire.Frame{Kind: wire.KindRequest, Offset: 10, Payload: []byte("{}")}),
	} {
		_, err := NewFrameReader(bytes.NewReader(b), wire.MaxControl).Read()
		require.ErrorIs(t, err, wire.ErrInvalid, name)
	}
}

// writes counts the calls, and fails if told to.
type writes struct {
	bytes.Buffer
	n   int
	err error
}

func (w *writes) Write(b []byte) (int, error) {
	w.n++
	if w.err != nil {
		return 0, w.err
	}
	return w.Buffer.Write(b)
}

func TestAFrameIsOneWriteAndOneFlush(t *testing.T) {
	t.Parallel()
	var w writes
	flushed := 0
	fw := NewFrameWriter(&w, func() error { flushed++; return nil })
	for i := range 3 {
		require.NoError(t, fw.Write(wire.Frame{Kind: wire.KindStdout, Payload: []byte("text")}))
		require.Equal(t, i+1, w.n)
		require.Equal(t, i+1, flushed)
	}
	require.NoError(t, fw.Write(wire.Frame{Kind: wire.KindRequest, Payload: make([]byte, 1<<20)}))
	require.LessOrEqual(t, cap(fw.buf), 2*wire.MaxData, "the memory of a large request is kept")

	w.err = errors.New("no room")
	require.ErrorIs(t, fw.Write(wire.Frame{Kind: wire.KindStdout}), w.err)
	require.Equal(t, 4, flushed, "what was not written is not flushed")

	cut := errors.New("cut")
	require.ErrorIs(t, NewFrameWriter(io.Discard, func() error { return cut }).Write(wire.Frame{}), cut)
}

func TestConcurrentFramesDoNotMix(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 50
	r, w := io.Pipe()
	fw := NewFrameWriter(w, nil)
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for n := range each {
				_ = fw.Write(wire.Frame{Kind: wire.KindStdout, Stream: uint32(i), Offset: uint64(n), Payload: bytes.Repeat([]byte{byte(i)}, 100+i)})
			}
		})
	}
	go func() {
		all.Wait()
		_ = w.Close()
	}()
	var next [writers]uint64
	fr := NewFrameReader(r, wire.MaxData)
	for {
		f, err := fr.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Equal(t, next[f.Stream], f.Offset, "one writer's frames keep their order")
		require.Equal(t, bytes.Repeat([]byte{byte(f.Stream)}, 100+int(f.Stream)), f.Payload)
		next[f.Stream]++
	}
	for i := range next {
		require.EqualValues(t, each, next[i])
	}
}

func FuzzFrameReader(f *testing.F) {
	hello := body(f, wire.Frame{Kind: wire.KindResponse, Payload: []byte(`{"new":true}`)})
	f.Add([]byte{})
	f.Add(hello)
	f.Add(append(bytes.Clone(hello), body(f, wire.Frame{Kind: wire.KindStdout, Stream: 1, Offset: 3, Payload: []byte("text")}, wire.Window{FD: wire.Stdin, Limit: 9}.Frame(1))...))
	f.Add(hello[:len(hello)-1])
	f.Add(announce(wire.HeaderSize - 1))
	f.Add(announce(0xffff_ffff, 0xff))
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 4 << 10
		fr := NewFrameReader(bytes.NewReader(b), limit)
		var again bytes.Buffer
		fw := NewFrameWriter(&again, nil)
		for {
			frame, err := fr.Read()
			if err != nil {
				if errors.Is(err, io.EOF) && again.Len() != len(b) {
					t.Fatalf("a clean end after %d of %d bytes", again.Len(), len(b))
				}
				break
			}
			if len(frame.Payload) > limit {
				t.Fatalf("a payload of %d bytes passed the limit of %d", len(frame.Payload), limit)
			}
			if err := fw.Write(frame); err != nil {
				t.Fatal(err)
			}
		}
		// What was accepted is written as it was read, byte for byte.
		if !bytes.HasPrefix(b, again.Bytes()) {
			t.Fatalf("%x was read and written as %x", b, again.Bytes())
		}
	})
}
