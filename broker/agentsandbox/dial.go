package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// maxComplaint bounds what is kept of connect's error output, in bytes.
const maxComplaint = 512

// dialer opens channels by pods/exec.
type dialer struct {
	opts  Options
	rest  *rest.RESTClient
	slots chan struct{} // one for each exec being set up
}

func newDialer(o Options) (*dialer, error) {
	c := rest.CopyConfig(o.Config)
	c.GroupVersion = &corev1.SchemeGroupVersion
	c.APIPath = "/api"
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("agentsandbox: preparing exec: %w", err)
	}
	return &dialer{opts: o, rest: client, slots: make(chan struct{}, maxDials)}, nil
}

// dial starts "sandbox-runner connect" in the pod and returns its standard input
// and output as a connection. ctx bounds the wait for a slot only: an exec gives
// no sign of having started but its first byte, which the handshake waits for.
func (d *dialer) dial(ctx context.Context, pod string) (net.Conn, error) {
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("agentsandbox: waiting to exec into pod %s: %w", pod, ctx.Err())
	}
	url := d.rest.Post().Resource("pods").Namespace(d.opts.Namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: d.opts.Container, Command: []string{d.opts.Runner, "connect"}, Stdin: true, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	exec, err := remotecommand.NewWebSocketExecutor(d.opts.Config, http.MethodGet, url.String())
	if err != nil {
		<-d.slots
		return nil, fmt.Errorf("agentsandbox: preparing exec into pod %s: %w", pod, err)
	}
	ours, theirs := net.Pipe()
	life, cancel := context.WithCancel(context.Background())
	c := &execConn{Conn: ours, cancel: cancel, first: sync.OnceFunc(func() { <-d.slots })}
	go func() {
		err := exec.StreamWithContext(life, remotecommand.StreamOptions{Stdin: quietReader{theirs}, Stdout: theirs, Stderr: &c.complaint})
		if err == nil {
			err = errors.New("connect ended")
		}
		c.end(err)
		_ = theirs.Close()
		cancel()
		c.first()
	}()
	return c, nil
}

// execConn is one exec as a connection. Closing it ends the exec, not what the
// runner runs.
type execConn struct {
	net.Conn
	cancel    context.CancelFunc
	first     func() // gives the slot back, once
	complaint tail

	mu  sync.Mutex // guards err
	err error      // why the exec ended
}

func (c *execConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// Read adds the exec's own reason to the end of its stream.
func (c *execConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.first()
	if err == nil {
		return n, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		err = fmt.Errorf("agentsandbox: exec: %w %s", c.err, c.complaint.String())
	}
	return n, err
}

// Close ends the exec.
func (c *execConn) Close() error {
	err := c.Conn.Close()
	c.cancel()
	c.first()
	return err
}

// quietReader ends where the pipe was closed: client-go logs any other error of
// an exec's input, and to close a channel is nothing to log.
type quietReader struct{ r io.Reader }

func (q quietReader) Read(b []byte) (int, error) {
	n, err := q.r.Read(b)
	if errors.Is(err, io.ErrClosedPipe) {
		err = io.EOF
	}
	return n, err
}

// tail keeps the last bytes written to it.
type tail struct {
	mu sync.Mutex // guards b
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > maxComplaint {
		t.b = append(t.b[:0], t.b[len(t.b)-maxComplaint:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
