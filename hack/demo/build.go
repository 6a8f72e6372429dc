package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/term"
)

// build has make build a target and shows that something happens: go's -v prints
// a line for each package.
func build(ctx context.Context, target string) error {
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", target)
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -v"))
	out, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	last := progress(out)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("make %s: %w\n%s", target, err, strings.Join(last, "\n"))
	}
	return nil
}

// kept is how many of a build's last lines an error shows.
const kept = 20

// every is how often progress is shown where it cannot overwrite itself.
const every = 100

// progress counts a build's lines and returns the last of them.
func progress(out io.Reader) []string {
	terminal := term.IsTerminal(int(os.Stdout.Fd()))
	var last []string
	lines := bufio.NewScanner(out)
	n := 0
	for lines.Scan() {
		n++
		last = append(last, lines.Text())
		if len(last) > kept {
			last = last[1:]
		}
		switch {
		case terminal:
			fmt.Printf("\r  %d packages compiled or fetched: %-60.60s", n, lines.Text())
		case n%every == 0:
			fmt.Printf("  %d packages compiled or fetched so far\n", n)
		}
	}
	if terminal {
		fmt.Print("\r")
	}
	if n == 0 {
		fmt.Println("  nothing to do")
	} else {
		fmt.Printf("  %d packages compiled or fetched%-64s\n", n, "")
	}
	return last
}
