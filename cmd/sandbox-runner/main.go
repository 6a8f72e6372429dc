// Command sandbox-runner is the supervisor inside a sandbox; see package runner.
//
//	sandbox-runner serve         the sandbox's first process
//	sandbox-runner connect       run by the broker with pods/exec: one channel
//	sandbox-runner file ...      run by serve: reads or writes one file
//	sandbox-runner install DIR   run by an init container: copies itself to DIR
//	sandbox-runner version
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/sandbox-broker/sandbox-broker/internal/version"
	"github.com/sandbox-broker/sandbox-broker/runner"
)

const usage = "usage: sandbox-runner serve | connect | install DIR | version"

// gcPercent trades a little processor time for a smaller runner: its memory
// counts against the program's limit.
const gcPercent = 50

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	var err error
	switch {
	case command == "serve" && len(args) == 1:
		debug.SetGCPercent(gcPercent)
		runtime.GOMAXPROCS(1)
		err = runner.Serve(ctx, runner.Options{
			Socket:    os.Getenv("SANDBOX_SOCKET"),
			Workspace: os.Getenv("SANDBOX_WORKSPACE"),
			Limits:    runner.LimitsFromEnviron(),
			Prepare:   runner.PrepareFromEnviron(),
			// Whoever started this process may want to know when to connect.
			Ready: func() { _, _ = fmt.Fprintln(stdout, "ready") },
			Log:   slog.New(slog.NewJSONHandler(stderr, nil)),
		})
	case command == "connect" && len(args) == 1:
		err = runner.Connect(ctx, os.Getenv("SANDBOX_SOCKET"), os.Stdin, os.Stdout)
	case command == "file":
		if runner.File(ctx, args[1:], os.Stdin, stdout, stderr) != nil {
			return 1 // it has said why, in its own form
		}
	case command == "install" && len(args) == 2:
		err = runner.Install(args[1])
	case command == "version" && len(args) == 1:
		_, err = fmt.Fprintln(stdout, version.String())
	default:
		_, _ = fmt.Fprintln(stderr, usage)
		return 2
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "sandbox-runner:", err)
		return 1
	}
	return 0
}
