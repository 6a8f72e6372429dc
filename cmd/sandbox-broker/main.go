// Command sandbox-broker is the broker, and a client of it for the command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// repeatPause is how long after a signal to stop another one means the same.
const repeatPause = time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once, but not one that comes right behind
	// the first: some tools send two.
	context.AfterFunc(ctx, func() { time.AfterFunc(repeatPause, stop) })
	code := run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(code)
}
