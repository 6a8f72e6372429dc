//go:build e2e

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/cutproxy"
)

// startWithin bounds a broker's start, on a machine that has much else to do.
const startWithin = 90 * time.Second

// brokerProcess is one replica: a process, and after a kill the next one.
type brokerProcess struct {
	site               *site
	name, config, logs string
	back               *cutproxy.Proxy

	mu           sync.Mutex // guards the rest
	cmd          *exec.Cmd
	ended        chan struct{} // closed when it has ended and its log is read
	leaving      bool          // it was killed, or asked to end
	url, metrics string        // hosts and ports
}

// start runs a broker and waits until it listens.
func (b *brokerProcess) start() error {
	cmd := exec.Command(filepath.Join(root(), "bin", "sandbox-broker"), "serve", "--config", b.config)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(b.logs, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s (make build?): %w", b.name, err)
	}
	listening, ended := make(chan struct{}), make(chan struct{})
	b.mu.Lock()
	b.cmd, b.ended, b.leaving = cmd, ended, false
	b.mu.Unlock()
	go func() {
		defer close(ended)
		b.read(io.TeeReader(stderr, log), sync.OnceFunc(func() { close(listening) }))
		_ = log.Close()
		_ = cmd.Wait() // how it ended, stop asks the process state
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.leaving {
			b.site.notes.died(fmt.Sprintf("%s ended by itself (%s), see %s", b.name, cmd.ProcessState, b.logs))
		}
	}()
	late := time.NewTimer(startWithin)
	defer late.Stop()
	select {
	case <-listening:
		return nil
	case <-ended:
		return fmt.Errorf("%s ended at once, see %s", b.name, b.logs)
	case <-late.C:
		return fmt.Errorf("%s does not listen, see %s", b.name, b.logs)
	}
}

// read finds in the log where the broker listens, and what it says of execs.
func (b *brokerProcess) read(log io.Reader, listening func()) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l logLine
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			continue
		}
		switch l.Msg {
		case "metrics":
			b.mu.Lock()
			b.metrics = l.Address
			b.mu.Unlock()
		case "listening":
			b.mu.Lock()
			b.url = l.Address
			b.mu.Unlock()
			listening()
		case "exec", "exec ended":
			b.site.notes.add(b.name, l)
		}
	}
}

// logLine is what of a line of the log is of interest here.
type logLine struct {
	Msg, Address, Request, Lease, Exec, Reason, Cause, Signal string
	ExitCode                                                  int `json:"exit_code"`
}

func (n *notes) add(by string, l logLine) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.requests[l.Request] = l.Exec
	told, known := n.told[l.Exec]
	if known && told.Claim != l.Lease {
		n.twice = append(n.twice, fmt.Sprintf("exec %s in %s and %s", l.Exec, told.Claim, l.Lease))
	}
	told.Claim = l.Lease
	if !known {
		told.By = by
	}
	if l.Msg == "exec ended" {
		if e := strings.Join(strings.Fields(fmt.Sprint(l.Reason, " ", l.Cause, " ", l.ExitCode, " ", l.Signal)), " "); !slices.Contains(told.Endings, e) {
			told.Endings = append(told.Endings, e)
		}
	}
	n.told[l.Exec] = told
}

func (b *brokerProcess) address() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.url
}

// leave notes that its end is wanted.
func (b *brokerProcess) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaving = true
}

// kill ends it as a crash would, and returns when it is gone.
func (b *brokerProcess) kill() error {
	b.mu.Lock()
	cmd, ended := b.cmd, b.ended
	b.mu.Unlock()
	select {
	case <-ended:
		return nil
	default:
	}
	b.leave()
	if err := cmd.Process.Kill(); err != nil {
		return fmt.Errorf("killing %s: %w", b.name, err)
	}
	<-ended
	return nil
}

// stop asks it to end.
func (b *brokerProcess) stop() error {
	b.mu.Lock()
	cmd, ended := b.cmd, b.ended
	b.mu.Unlock()
	b.leave()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		return fmt.Errorf("stopping %s: %w", b.name, err)
	}
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
		return fmt.Errorf("%s does not end", b.name)
	}
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("%s ended badly (%s), see %s", b.name, cmd.ProcessState, b.logs)
	}
	return nil
}

// end stops it, if it runs, so that it takes its stock along; in whatever way.
func (b *brokerProcess) end() {
	b.mu.Lock()
	ended := b.ended
	b.mu.Unlock()
	select {
	case <-ended:
		return
	default:
	}
	if b.stop() != nil {
		_ = b.kill()
	}
}

// ready asks whether it serves.
func (b *brokerProcess) ready(ctx context.Context) error {
	return b.get(ctx, "/readyz", func(io.Reader) error { return nil })
}

// gauge reads metrics by their names, from /metrics.
func (b *brokerProcess) gauges(ctx context.Context, names ...string) (map[string]float64, error) {
	out := map[string]float64{}
	err := b.get(ctx, "/metrics", func(r io.Reader) error {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			name, value, _ := strings.Cut(lines.Text(), " ")
			if slices.Contains(names, name) {
				var v float64
				if _, err := fmt.Sscan(value, &v); err != nil {
					return err
				}
				out[name] = v
			}
		}
		return lines.Err()
	})
	return out, err
}

func (b *brokerProcess) get(ctx context.Context, path string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b.mu.Lock()
	address := b.metrics
	b.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return err
	}
	req.Close = true // no connection of ours counts as the broker's
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s of %s: %s", path, b.name, res.Status)
	}
	return read(res.Body)
}
