package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// show is the demonstration: a broker process and the command line on it.
type show struct {
	dir    string // temporary
	bin    string // what was built
	broker *exec.Cmd
	url    string
}

// startTimeout bounds the broker's start, stopTimeout its end.
const (
	startTimeout = time.Minute
	stopTimeout  = 30 * time.Second
)

// config has a pool for the programs, and one whose sandboxes are started only
// when they are wanted.
const config = `
listen: 127.0.0.1:0
provider: {local: {stateDir: %s}}
pools:
- {name: warm, stock: 2, maxSandboxes: 6, timeout: {max: 30s}, local: {memory: 256MiB}}
- {name: cold, cold: allow, maxSandboxes: 6, local: {warm: 0, memory: 256MiB}}
`

// start starts the broker and waits until it says where it listens.
func (s *show) start(ctx context.Context) error {
	file := filepath.Join(s.dir, "config.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, filepath.Join(s.dir, "state")), 0o600); err != nil {
		return err
	}
	s.broker = exec.Command(filepath.Join(s.bin, "sandbox-broker"), "serve", "--config", file)
	// A terminal's ^C is for this program, which then ends the broker.
	s.broker.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := s.broker.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.broker.Start(); err != nil {
		return err
	}
	address := make(chan string, 1)
	go readLog(log, address)
	select {
	case a := <-address:
		if a == "" {
			return errors.New("the broker ended at once; its log is above")
		}
		s.url = "http://" + a
		fmt.Printf("  it listens at %s\n", s.url)
		return nil
	case <-time.After(startTimeout):
		return fmt.Errorf("the broker did not start within %s", startTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readLog finds the broker's address in its log, and shows what is not as it
// should be.
func readLog(log io.Reader, address chan<- string) {
	defer close(address)
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var line struct{ Level, Msg, Address, Error string }
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			fmt.Fprintln(os.Stderr, lines.Text())
			continue
		}
		if line.Msg == "listening" {
			address <- line.Address
		}
		if line.Level == "ERROR" {
			fmt.Fprintln(os.Stderr, "  broker:", line.Msg, line.Error)
		}
	}
}

// close ends the broker, which ends its sandboxes.
func (s *show) close() error {
	if s.broker == nil || s.broker.Process == nil {
		return nil
	}
	_ = s.broker.Process.Signal(syscall.SIGTERM) // it may have just ended
	kill := time.AfterFunc(stopTimeout, func() { _ = s.broker.Process.Kill() })
	defer kill.Stop()
	if err := s.broker.Wait(); err != nil {
		return fmt.Errorf("ending the broker: %w", err)
	}
	return nil
}

// ended is what became of a call of the command line.
type ended struct {
	out  string
	code int
}

// call runs the command line and shows what is called, what it prints as it
// appears, and how it ended if that is not with 0.
func (s *show) call(ctx context.Context, args ...string) (ended, error) {
	fmt.Printf("  $ sandbox-broker %s\n", quoted(args))
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "sandbox-broker"), args...)
	cmd.Env = append(os.Environ(), "SANDBOX_BROKER_URL="+s.url, "SANDBOX_BROKER_TOKEN_FILE=")
	var text strings.Builder
	cmd.Stdout = &indented{w: io.MultiWriter(os.Stdout, &text)}
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		fmt.Printf("  (exit code %d)\n", exit.ExitCode())
		return ended{text.String(), exit.ExitCode()}, nil
	}
	return ended{text.String(), 0}, err
}

// quoted shows arguments as a shell would take them.
func quoted(args []string) string {
	var out []string
	for _, a := range args {
		if strings.ContainsAny(a, " \n\"'$;|&()*<>") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out = append(out, strings.ReplaceAll(a, "\n", "\n    "))
	}
	return strings.Join(out, " ")
}

// indented sets every line in.
type indented struct {
	w      io.Writer
	inLine bool
}

// Write implements io.Writer.
func (i *indented) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if !i.inLine {
			line = "    " + line
		}
		i.inLine = !strings.HasSuffix(line, "\n")
		if _, err := io.WriteString(i.w, line); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
