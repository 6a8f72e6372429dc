package scale

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/simulated"
)

// envCallers names the broker's URL to a process that was started as the callers.
const envCallers = "SCALE_CALLERS_URL"

// stopTimeout bounds how long the callers' process may take to end by itself.
const stopTimeout = 20 * time.Second

// Main must be called first in a program that calls [Run]: in the processes that
// it starts, it does not return.
func Main() {
	simulated.Main()
	url := os.Getenv(envCallers)
	if url == "" {
		return
	}
	if err := serveCallers(url, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "callers:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// callers is the process of those who call the broker.
type callers struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ended chan error
}

func startCallers(url string) (*callers, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("scale: finding this program: %w", err)
	}
	c := &callers{cmd: exec.Command(self), ended: make(chan error, 1)}
	c.cmd.Env = append(os.Environ(), envCallers+"="+url)
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("scale: preparing the callers: %w", err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("scale: preparing the callers: %w", err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("scale: starting the callers: %w", err)
	}
	return c, nil
}

func (c *callers) pid() int { return c.cmd.Process.Pid }

// do has an order carried out. A failure of any part of it is an error: figures
// of half a task are worth nothing.
func (c *callers) do(ctx context.Context, o order) (outcome, error) {
	var out outcome
	b, err := json.Marshal(o)
	if err != nil {
		return out, fmt.Errorf("scale: encoding an order: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() })
	defer stop()
	if _, err := c.in.Write(append(b, '\n')); err != nil {
		return out, fmt.Errorf("scale: telling the callers: %w", errors.Join(ctx.Err(), err))
	}
	line, err := c.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &out)
	}
	if err != nil {
		return out, fmt.Errorf("scale: the callers' answer to %s: %w", o.Task, errors.Join(ctx.Err(), err))
	}
	if out.Failed > 0 {
		return out, fmt.Errorf("scale: %s: %d of %d failed, the first: %s", o.Task, out.Failed, out.Failed+out.Done, out.Problem)
	}
	return out, nil
}

// close ends the process.
func (c *callers) close() error {
	_ = c.in.Close()
	t := time.AfterFunc(stopTimeout, func() { _ = c.cmd.Process.Kill() })
	defer t.Stop()
	_, _ = io.Copy(io.Discard, c.out) // Wait must come after the last read
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("scale: the callers' process: %w", err)
	}
	return nil
}
