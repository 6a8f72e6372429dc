// Command demo shows the main job on one machine: it builds what is missing,
// starts a broker with sandboxes on this machine, and runs programs that do well
// and programs that do not. It exits with 0 only if each ended as it should, and
// leaves nothing behind but what was built.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// limit bounds the whole demonstration, first build included.
const limit = 30 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := demo(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1) //nolint:gocritic // the deferred calls free what ends with the process
	}
}

// stage is one step of the demonstration.
type stage struct {
	name string
	run  func(ctx context.Context) error
}

func demo(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "sandbox-broker-demo-")
	if err != nil {
		return err
	}
	s := &show{dir: dir, bin: "bin"}
	defer func() { err = errors.Join(err, s.close(), os.RemoveAll(dir)) }()
	if s.bin, err = filepath.Abs(s.bin); err != nil {
		return err
	}
	var took []time.Duration
	stages := []stage{
		{"build the broker and the runner", func(ctx context.Context) error { return build(ctx, "build") }},
		{"build gVisor", func(ctx context.Context) error { return build(ctx, "runsc") }},
		{"start a broker with sandboxes on this machine", s.start},
		{"a Python program, seen as it runs", s.python},
		{"a Node program", s.node},
		{"a shell program", s.shell},
		{"a program that takes too long", s.timeout},
		{"a program that wants too much memory", s.memory},
		{"a file in, a result out", s.files},
		{"how long it takes", s.latencies},
	}
	began := time.Now()
	for _, st := range stages {
		fmt.Printf("\n=== %s\n", st.name)
		start := time.Now()
		if err := st.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", st.name, err)
		}
		took = append(took, time.Since(start))
	}
	fmt.Printf("\n=== all did what they should\n")
	for i, st := range stages {
		fmt.Printf("%8.1f s  %s\n", took[i].Seconds(), st.name)
	}
	fmt.Printf("%8.1f s  in all\n", time.Since(began).Seconds())
	return nil
}
