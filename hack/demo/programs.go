package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// expect runs a program and compares how it ended, and what must be in its
// output.
func (s *show) expect(ctx context.Context, code int, text string, args ...string) error {
	got, err := s.call(ctx, args...)
	switch {
	case err != nil:
		return err
	case got.code != code:
		return fmt.Errorf("it ended with %d instead of %d", got.code, code)
	case !strings.Contains(got.out, text):
		return fmt.Errorf("its output lacks %q", text)
	}
	return nil
}

func (s *show) python(ctx context.Context) error {
	began := time.Now()
	const pauses = 4
	err := s.expect(ctx, 0, "4 of 4", "run", "--pool", "warm", "-e",
		"import time\nfor i in range(1, 5):\n    print(i, \"of 4\")\n    time.sleep(0.3)")
	if took := time.Since(began); err == nil && took < pauses*300*time.Millisecond {
		return fmt.Errorf("it was over after %s, which cannot be", took)
	}
	return err
}

func (s *show) node(ctx context.Context) error {
	return s.expect(ctx, 0, "2.718", "run", "--pool", "warm", "--language", "node", "-e", `console.log("e is", Math.E)`)
}

func (s *show) shell(ctx context.Context) error {
	return s.expect(ctx, 3, "gVisor", "run", "--pool", "warm", "--language", "shell", "-e", "id; dmesg | head -1; exit 3")
}

func (s *show) timeout(ctx context.Context) error {
	return s.expect(ctx, 124, "before it", "run", "--pool", "warm", "--timeout", "1s", "-e", `print("before it"); import time; time.sleep(60)`)
}

func (s *show) memory(ctx context.Context) error {
	return s.expect(ctx, 137, "out of memory", "run", "--pool", "warm", "-e", "x = []\nwhile True: x.append(bytearray(8 << 20))")
}

func (s *show) files(ctx context.Context) error {
	input, result := filepath.Join(s.dir, "numbers.txt"), filepath.Join(s.dir, "sum.txt")
	if err := os.WriteFile(input, []byte("17\n4\n21\n"), 0o600); err != nil {
		return err
	}
	lease, err := s.call(ctx, "acquire", "--pool", "warm")
	if err != nil || lease.code != 0 {
		return fmt.Errorf("acquire: %w", err)
	}
	handle := strings.TrimSpace(lease.out)
	for _, args := range [][]string{
		{"cp", input, handle + ":numbers.txt"},
		{"exec", handle, "--", "sh", "-c", "awk '{s += $1} END {print s}' numbers.txt > sum.txt"},
		{"cp", handle + ":sum.txt", result},
		{"release", handle},
	} {
		if err := s.expect(ctx, 0, "", args...); err != nil {
			return err
		}
	}
	got, err := os.ReadFile(result)
	if err != nil {
		return err
	}
	fmt.Printf("  sum.txt: %s", got)
	if string(got) != "42\n" {
		return fmt.Errorf("the result is %q instead of 42", got)
	}
	return nil
}

// rounds is how often each way is measured, with a pause before each.
const (
	rounds = 5
	pause  = 500 * time.Millisecond
)

// latencies measures the same program in a sandbox that has to be started, in one
// that waits, and in one that is held.
func (s *show) latencies(ctx context.Context) error {
	client, err := sandboxclient.New(s.url)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	one := func(pool string) func() error {
		return func() error {
			_, err := client.Run(ctx, sandboxclient.Code{Pool: pool, Language: "python", Source: "print(1+1)"})
			return err
		}
	}
	lease, err := client.Acquire(ctx, "warm")
	if err != nil {
		return err
	}
	defer func() { _ = lease.Release(context.WithoutCancel(ctx)) }()
	fmt.Println("  print(1+1) in Python, from the call to its end      median   fastest")
	for _, way := range []struct {
		name string
		run  func() error
	}{
		{"in a sandbox started for it", one("cold")},
		{"in a fresh sandbox that was waiting", one("warm")},
		{"in a sandbox that is held", func() error { return lease.Script("python", "print(1+1)").Run(ctx) }},
	} {
		var took []time.Duration
		for range rounds {
			// The pool starts the next sandbox meanwhile; here the run is measured.
			time.Sleep(pause)
			began := time.Now()
			if err := way.run(); err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		fmt.Printf("  %-46s %8d ms %6d ms\n", way.name, took[rounds/2].Milliseconds(), took[0].Milliseconds())
	}
	return nil
}
