package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// DefaultSocket is the abstract Unix socket of the server. An abstract name has
// no file that a program could remove or replace.
const DefaultSocket = "@sandbox-runner"

const (
	// handshakeTimeout bounds one connection's handshake.
	handshakeTimeout = 5 * time.Second
	// maxHandshakes bounds the connections in their handshake at once.
	maxHandshakes = 8
	// maxStreams bounds the requests at once on one channel.
	maxStreams = 128
	// streamWindow and connWindow bound the input, in bytes, that waits here for one
	// program and for all of them.
	streamWindow = 256 << 10
	connWindow   = 1 << 20
)

// Options configure [Serve]. The zero value serves a pod of deploy/.
type Options struct {
	// Socket is the Unix socket to listen on; empty is DefaultSocket. A leading @
	// makes it abstract.
	Socket string
	// Workspace is where programs start; empty is the current directory.
	Workspace string
	// Environ is the environment programs start with; nil takes the runner's own
	// without what Kubernetes and the sandbox put there for the runner.
	Environ []string
	// Limits bound the programs together.
	Limits Limits
	// Prepare is what the sandbox gets ready for at once; a broker can ask for it
	// later. Empty: each program starts its own interpreter. See docs/spare.md.
	Prepare channel.Prepare
	// Ready is called, if not nil, once the server listens.
	Ready func()
	// Self is the command that runs [File]; an operation's arguments are added to
	// it. Nil is this process's own program with the argument "file".
	Self []string
	// Log receives what an admin may want to know; nil discards it. It never
	// contains code, arguments or output.
	Log *slog.Logger
}

// Serve runs the supervisor until ctx ends; then it kills every exec and
// returns nil. It needs to be the pod's first process, or it makes itself a
// child subreaper, so that orphans come to it.
func Serve(ctx context.Context, o Options) error {
	if err := hidden(); err != nil {
		return err
	}
	if err := keepDescriptors(); err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("runner: becoming the subreaper: %w", err)
		}
	}
	if o.Workspace == "" {
		wd, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("runner: finding the workspace: %w", err)
		}
		o.Workspace = wd
	}
	if o.Environ == nil {
		o.Environ = programEnviron(os.Environ())
	}
	if o.Self == nil {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("runner: finding itself: %w", err)
		}
		o.Self = []string{self, "file"}
	}
	l, err := listen(o.Socket)
	if err != nil {
		return err
	}
	s := newSupervisor(o)
	defer s.close()
	watched := make(chan struct{})
	defer close(watched)
	s.startSpares(o.Prepare)
	go s.watch(watched)

	conns := newListener(l)
	srv := server(s.handler())
	failed := make(chan error, 2)
	go func() { failed <- conns.acceptAll(ctx, s.identity, o.Log) }()
	go func() { failed <- srv.Serve(conns) }()
	if o.Ready != nil {
		o.Ready()
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	_ = conns.Close()
	_ = srv.Close()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// server is the HTTP/2 server that speaks on every authenticated connection.
func server(h http.Handler) *http.Server {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         &protocols,
		ReadHeaderTimeout: handshakeTimeout,
		MaxHeaderBytes:    8 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			// Input comes in frames of wire.MaxData. A larger size would make the broker
			// hold a buffer of that size for each open exec.
			MaxReadFrameSize:              wire.MaxData,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connWindow,
		},
	}
}

func listen(socket string) (*net.UnixListener, error) {
	if socket == "" {
		socket = DefaultSocket
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("runner: listening on %s: %w", socket, err)
	}
	return l, nil
}

// hidden makes this process unreadable for programs of the same user ID: no
// trace, no /proc/PID/mem, no descriptors to open through /proc.
func hidden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("runner: clearing the dumpable flag: %w", err)
	}
	return nil
}

// keepDescriptors sees to it that no program inherits what this process did.
func keepDescriptors() error {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("runner: listing descriptors: %w", err)
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
