package brokertest

import (
	"sync"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// maxFrames bounds how many of a client's frames wait for a stream's script.
const maxFrames = 4096

// Each is a script that greets and then runs handle for every stream, each in a
// goroutine of its own.
func Each(handle func(*Stream)) Script {
	return func(c *Conn) {
		c.Hello()
		c.Serve(handle)
	}
}

// Serve runs handle for every stream that the client opens, until the connection
// ends, and waits for the handlers.
func (c *Conn) Serve(handle func(*Stream)) {
	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer c.endStreams()
	for {
		f, ok := c.Receive()
		if !ok {
			return
		}
		if f.Kind == wire.KindRequest {
			s, err := c.open(f)
			if err != nil {
				return
			}
			handlers.Go(func() { handle(s) })
			continue
		}
		c.mu.Lock()
		s := c.streams[f.Stream]
		c.mu.Unlock()
		if s != nil {
			s.receive(f)
		}
	}
}

func (c *Conn) open(f wire.Frame) (*Stream, error) {
	req, code, err := wire.ParseRequest(f)
	if err != nil {
		return nil, err
	}
	s := &Stream{
		Conn: c, ID: f.Stream, Request: req, Code: string(code),
		frames: make(chan wire.Frame, maxFrames),
	}
	s.changed.L = &s.mu
	for i, credit := range []*wire.Credit{req.Stdout, req.Stderr} {
		s.limits[i] = wire.DefaultWindow
		if credit != nil {
			s.limits[i], s.offsets[i] = credit.Limit, credit.Acked
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams[s.ID] = s
	return s, nil
}

func (c *Conn) endStreams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.mu.Lock()
		s.gone = true
		s.changed.Broadcast()
		s.mu.Unlock()
		close(s.frames)
	}
}

// Stream is the broker's end of one stream.
type Stream struct {
	Conn    *Conn
	ID      uint32
	Request wire.Request
	Code    string

	frames chan wire.Frame // what the client sent, except windows; closed at the end

	mu      sync.Mutex // guards what follows
	changed sync.Cond  // a window came, or the connection ended
	limits  [2]uint64  // how far stdout and stderr may be sent
	offsets [2]uint64  // how far they were sent; on a stream that attaches, from where the client asked
	windows []wire.Window
	gone    bool // the connection has ended
}

func (s *Stream) receive(f wire.Frame) {
	if f.Kind != wire.KindWindow {
		f.Payload = append([]byte(nil), f.Payload...)
		s.frames <- f
		return
	}
	w, err := wire.ParseWindow(f)
	if err != nil || w.FD == wire.Stdin {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := w.FD - wire.Stdout
	s.limits[i] = max(s.limits[i], w.Limit)
	s.windows = append(s.windows, w)
	s.changed.Broadcast()
}

// Send writes a frame on the stream.
func (s *Stream) Send(f wire.Frame) {
	f.Stream = s.ID
	s.Conn.Send(f)
}

// Respond accepts the request.
func (s *Stream) Respond(r wire.Response) { s.Send(wire.JSONFrame(wire.KindResponse, 0, r)) }

// Fail refuses it, or ends the stream.
func (s *Stream) Fail(e *wire.Error) { s.Send(wire.JSONFrame(wire.KindError, 0, e)) }

// Exit tells the ending of a program.
func (s *Stream) Exit(e wire.Ending) { s.Send(wire.JSONFrame(wire.KindExit, 0, e)) }

// GrantStdin lets the client send input up to limit.
func (s *Stream) GrantStdin(limit uint64) { s.TakeStdin(0, limit) }

// TakeStdin says that the program has taken the input up to acked, and lets the client
// send more, up to limit. On a stream that attaches the first one says where the
// client goes on.
func (s *Stream) TakeStdin(acked, limit uint64) {
	s.Send(wire.Window{FD: wire.Stdin, Acked: acked, Limit: limit}.Frame(0))
}

// Stdout sends output as the client's credit allows.
func (s *Stream) Stdout(text string) { s.write(wire.Stdout, []byte(text)) }

// Stderr sends output as the client's credit allows.
func (s *Stream) Stderr(text string) { s.write(wire.Stderr, []byte(text)) }

func (s *Stream) write(fd wire.FD, p []byte) {
	for len(p) > 0 {
		offset, n := s.takeCredit(fd, len(p))
		if n == 0 {
			return
		}
		s.Send(wire.Frame{Kind: fd.DataKind(), Offset: offset, Payload: p[:n]})
		p = p[n:]
	}
}

// takeCredit waits until some of want bytes may be sent; n is 0 when the
// connection has ended.
func (s *Stream) takeCredit(fd wire.FD, want int) (offset uint64, n int) {
	i := fd - wire.Stdout
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.limits[i] <= s.offsets[i] && !s.gone {
		s.changed.Wait()
	}
	if s.gone {
		return 0, 0
	}
	offset = s.offsets[i]
	n = int(min(uint64(want), s.limits[i]-offset, wire.MaxData))
	s.offsets[i] += uint64(n)
	return offset, n
}

// offset is how far an output was sent.
func (s *Stream) offset(fd wire.FD) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offsets[fd-wire.Stdout]
}

// Windows are the client's windows so far.
func (s *Stream) Windows() []wire.Window {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]wire.Window(nil), s.windows...)
}

// Next is the client's next frame on the stream, windows left out; ok is false
// when the connection has ended.
func (s *Stream) Next() (f wire.Frame, ok bool) {
	f, ok = <-s.frames
	return f, ok
}

// Await skips frames until one of the kind comes; ok is false when the connection
// ended first.
func (s *Stream) Await(k wire.Kind) (f wire.Frame, ok bool) {
	for f, ok = s.Next(); ok && f.Kind != k; f, ok = s.Next() {
	}
	return f, ok
}

// ReadStdin grants limit bytes and returns the whole input.
func (s *Stream) ReadStdin(limit uint64) string {
	s.GrantStdin(limit)
	var in []byte
	for {
		f, ok := s.Next()
		if !ok || f.Kind == wire.KindStdinEnd {
			return string(in)
		}
		if f.Kind == wire.KindStdin {
			in = append(in, f.Payload...)
		}
	}
}
