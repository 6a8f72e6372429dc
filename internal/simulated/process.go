package simulated

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"
)

// envSocket names the socket to a process that was started to be the runners.
const envSocket = "SIMULATED_RUNNERS_SOCKET"

const (
	// startTimeout bounds how long the runners' process may take to listen.
	startTimeout = 30 * time.Second
	// stopTimeout bounds how long it may take to end by itself.
	stopTimeout = 10 * time.Second
)

// ready is the line with which it says that it listens.
const ready = "ready\n"

// Main must be called first in the main function of a program that calls [New]:
// in a process that was started as the runners it does not return.
func Main() {
	socket := os.Getenv(envSocket)
	if socket == "" {
		return
	}
	l, err := net.Listen("unix", socket)
	if err == nil {
		_, err = os.Stdout.WriteString(ready)
	}
	if err == nil {
		err = serve(l, os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulated runners:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is that of the simulated runners.
type process struct {
	socket string
	cmd    *exec.Cmd
	orders io.WriteCloser
	ended  chan struct{} // closed when the process has
	err    error         // how; written before ended is closed
}

// startProcess starts this program again as simulated runners. ctx bounds the
// start alone.
func startProcess(ctx context.Context) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	r := &process{socket: "@simulated-runners-" + hex.EncodeToString(b[:]), ended: make(chan struct{})}
	r.cmd = exec.Command(self)
	// The race detector's pause at an exit is long, and tests start many of these.
	r.cmd.Env = append(os.Environ(), envSocket+"="+r.socket, "GORACE=atexit_sleep_ms=0")
	r.cmd.Stderr = os.Stderr
	if r.orders, err = r.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("preparing the runners: %w", err)
	}
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("preparing the runners: %w", err)
	}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the runners: %w", err)
	}
	listens := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err == nil && line != ready {
			err = fmt.Errorf("they said %q", line)
		}
		listens <- err
		r.err = r.cmd.Wait()
		close(r.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	select {
	case err = <-listens:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for the runners: %w", err), r.stop())
	}
	return r, nil
}

// stop ends the process and waits for it.
func (r *process) stop() error {
	_ = r.orders.Close()
	t := time.NewTimer(stopTimeout)
	defer t.Stop()
	select {
	case <-r.ended:
	case <-t.C:
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
	if r.err != nil {
		return fmt.Errorf("the runners' process: %w", r.err)
	}
	return nil
}
