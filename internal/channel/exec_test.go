package channel

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// execs answers Status, so that a test can tell whether the channel lives, and
// gives execs to the handler once their first frame was read.
func execs(exec func(w http.ResponseWriter, first wire.Frame, in *FrameReader)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/status" {
			_, _ = io.WriteString(w, "{}")
			return
		}
		in := NewFrameReader(r.Body, maxFrame)
		first, err := in.Read()
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		exec(w, first, in)
	}
}

func TestExecIsFullDuplex(t *testing.T) {
	start := Start{Bind: Bind{Lease: "l", Tenant: "t"}, Program: &wire.Program{Language: "python"}, Stdout: wire.Credit{Limit: 9}}
	code := bytes.Repeat([]byte("x"), 1<<20) // more than any window at the start
	requests := make(chan wire.Frame, 1)
	c := openHTTP(t, execs(func(w http.ResponseWriter, first wire.Frame, in *FrameReader) {
		first.Payload = bytes.Clone(first.Payload)
		requests <- first
		out := NewFrameWriter(w, http.NewResponseController(w).Flush)
		for {
			f, err := in.Read()
			if err != nil || f.Kind == wire.KindStdinEnd {
				_ = out.Write(wire.Frame{Kind: wire.KindExit, Payload: []byte("{}")})
				return
			}
			f.Kind = wire.KindStdout
			_ = out.Write(f)
		}
	}))
	s, err := c.Exec(testContext(t), "e1", start, code)
	require.NoError(t, err)
	defer s.Close()

	first := <-requests
	require.Equal(t, wire.KindRequest, first.Kind)
	require.JSONEq(t, string(wire.Marshal(start)), string(first.Payload[:first.Offset]))
	require.True(t, bytes.Equal(code, first.Payload[first.Offset:]), "the code arrives as it was")

	for i := range 3 { // each answer comes while the request goes on
		sent := wire.Frame{Kind: wire.KindStdin, Offset: uint64(i), Payload: []byte{byte(i)}}
		require.NoError(t, s.Send(sent))
		got, err := s.Recv()
		require.NoError(t, err)
		sent.Kind = wire.KindStdout
		require.Equal(t, sent, got)
	}
	require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdinEnd}))
	got, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, wire.KindExit, got.Kind)
	_, err = s.Recv()
	require.Equal(t, io.EOF, err)
}

func TestARefusedExecSaysWhy(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		want string
		is   error
	}{
		"in JSON":    {`{"code":"not_found","message":"no such exec"}`, "no such exec", wire.ErrNotFound},
		"in garbage": {`\x00`, "answered status 404", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := openHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
				// The code was not read: Exec must not wait until it is.
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, tt.body)
			})
			s, err := c.Exec(testContext(t), "e1", Start{AttachOnly: true}, make([]byte, 4<<20))
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, s)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			running(t, c)
		})
	}
}

func TestARefusalWithoutAnEndIsLetGo(t *testing.T) {
	letGo := make(chan struct{})
	c := openHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		endless(w, bytes.Repeat([]byte("e"), 4096))
		close(letGo)
	})
	_, err := c.Exec(testContext(t), "e1", Start{}, nil)
	require.ErrorContains(t, err, "answered status 404")
	select {
	case <-letGo:
	case <-time.After(testTimeout):
		require.Fail(t, "the refused stream is still open")
	}
	running(t, c)
}

func TestHostileFrames(t *testing.T) {
	for name, tt := range map[string]struct {
		body []byte
		want string
		is   error
	}{
		"an oversized frame":         {body(t, wire.Frame{Kind: wire.KindRequest, Payload: make([]byte, wire.MaxControl+1)}), "exceed the limit", ErrMalformed},
		"a frame of 4 GB":            {announce(0xffff_ffff), "exceed the limit", ErrMalformed},
		"a length beyond the end":    {announce(100, make([]byte, 20)...), "unexpected EOF", io.ErrUnexpectedEOF},
		"a length too short":         {announce(3, make([]byte, wire.HeaderSize)...), "frame header", wire.ErrInvalid},
		"half a length":              {[]byte{0, 0}, "unexpected EOF", io.ErrUnexpectedEOF},
		"more output than one frame": {body(t, wire.Frame{Kind: wire.KindStdout, Payload: make([]byte, wire.MaxData+1)}), "exceeds the limit", wire.ErrInvalid},
		"no frames but text":         {[]byte("Traceback (most recent call last):"), "exceed the limit", ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			c := openHTTP(t, execs(func(w http.ResponseWriter, _ wire.Frame, _ *FrameReader) { _, _ = w.Write(tt.body) }))
			s, err := c.Exec(testContext(t), "e1", Start{}, nil)
			require.NoError(t, err)
			_, err = s.Recv()
			require.ErrorContains(t, err, tt.want)
			require.NotEqual(t, io.EOF, err, "this is no clean end")
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			s.Close()
			_, err = c.Status(testContext(t))
			require.NoError(t, err, "what one exec breaks is not the channel")
			c.Close()
			closed(t, c)
		})
	}
}

func TestAResetStreamIsNoEnding(t *testing.T) {
	c := openHTTP(t, execs(func(w http.ResponseWriter, _ wire.Frame, _ *FrameReader) {
		_ = NewFrameWriter(w, http.NewResponseController(w).Flush).Write(wire.Frame{Kind: wire.KindStdout, Payload: []byte("x")})
		panic(http.ErrAbortHandler)
	}))
	s, err := c.Exec(testContext(t), "e1", Start{}, nil)
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Recv()
	for err == nil { // the reset may overtake the frame
		_, err = s.Recv()
	}
	require.NotEqual(t, io.EOF, err)
}

// stalled starts an exec whose runner has answered and then neither reads nor
// writes, with a Recv that hangs.
func stalled(t *testing.T) (c *Client, s *ExecStream, cancel context.CancelFunc, recv chan error) {
	t.Helper()
	release := make(chan struct{})
	c = openHTTP(t, execs(func(http.ResponseWriter, wire.Frame, *FrameReader) { <-release }))
	t.Cleanup(func() { close(release) })
	ctx, cancel := context.WithCancel(testContext(t))
	s, err := c.Exec(ctx, "e1", Start{}, nil)
	require.NoError(t, err)
	recv = make(chan error, 1)
	go func() {
		_, err := s.Recv()
		recv <- err
	}()
	return c, s, cancel, recv
}

// flood sends until an error comes. It returns once the first frame is on its way.
func flood(s *ExecStream) (failed chan error) {
	failed = make(chan error, 1)
	sending := make(chan struct{})
	go func() {
		frame := wire.Frame{Kind: wire.KindStdin, Payload: make([]byte, wire.MaxData)}
		err := s.Send(frame)
		close(sending)
		for err == nil {
			err = s.Send(frame)
		}
		failed <- err
	}()
	<-sending
	return failed
}

func TestAStalledExecEnds(t *testing.T) {
	for name, end := range map[string]func(c *Client, s *ExecStream, cancel context.CancelFunc){
		"with its stream":  func(_ *Client, s *ExecStream, _ context.CancelFunc) { s.Close() },
		"with its context": func(_ *Client, _ *ExecStream, cancel context.CancelFunc) { cancel() },
		"with the client":  func(c *Client, _ *ExecStream, _ context.CancelFunc) { c.Close() },
	} {
		// HTTP/2 waits in different places while input is stuck and while there is none.
		for _, busy := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, with input: %t", name, busy), func(t *testing.T) {
				c, s, cancel, recv := stalled(t)
				defer cancel()
				var send chan error
				if busy {
					send = flood(s)
				}
				end(c, s, cancel)
				var err error
				select {
				case err = <-recv:
				case <-time.After(testTimeout):
					require.Fail(t, "Recv still waits")
				}
				require.Error(t, err)
				require.NotEqual(t, io.EOF, err, "an exec that was left is not an exec that ended")
				if !busy {
					send = flood(s)
				}
				require.Error(t, <-send)
				s.Close()
				c.Close()
				closed(t, c)
			})
		}
	}
}

func TestAnExecWithoutAnAnswerEndsWithItsContext(t *testing.T) {
	arrived := make(chan struct{})
	c := openHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(testContext(t))
	asked := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, "e1", Start{}, make([]byte, 4<<20))
		asked <- err
	}()
	<-arrived
	cancel()
	require.ErrorIs(t, <-asked, context.Canceled)
	running(t, c)
}
