package processtest

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/runner"
)

const (
	envRole   = "PROCESSTEST_ROLE"
	envSocket = "PROCESSTEST_SOCKET"
	// argFile is the argument with which a runner starts this program for a file:
	// the environment is the runner's, and so is the role in it.
	argFile = "processtest-file"
)

// Main must be called first in TestMain: in a process that was started as a
// runner, or by one, it does not return.
func Main() {
	role := os.Getenv(envRole)
	if role == "" {
		return
	}
	if len(os.Args) > 1 && os.Args[1] == argFile {
		os.Exit(file())
	}
	var err error
	switch role {
	case "serve":
		err = runner.Serve(context.Background(), runner.Options{
			Socket: os.Getenv(envSocket), Environ: os.Environ(), Self: []string{os.Args[0], argFile},
		})
	case "connect":
		err = runner.Connect(context.Background(), os.Getenv(envSocket), os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "processtest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// file is "sandbox-runner file".
func file() (code int) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	if runner.File(ctx, os.Args[2:], os.Stdin, os.Stdout, os.Stderr) != nil {
		return 1
	}
	return 0
}
