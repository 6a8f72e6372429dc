// Command plot has a program in a sandbox analyse data and draw the result: a
// CSV file goes in, a PNG file comes out.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// analysis needs nothing but Python itself, so that it runs in any image.
//
//go:embed analysis.py
var analysis string

//go:embed temperatures.csv
var data []byte

// limit bounds everything.
const limit = 2 * time.Minute

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	to := "plot.png"
	if len(os.Args) > 1 {
		to = os.Args[1]
	}
	if err := plot(ctx, to); err != nil {
		log.Print(err)
		defer os.Exit(1)
	}
}

func plot(ctx context.Context, to string) (err error) {
	client, err := sandboxclient.FromEnvironment()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	lease, err := client.Acquire(ctx, os.Getenv("SANDBOX_BROKER_POOL"))
	if err != nil {
		return err
	}
	// Whatever happens, the sandbox is given back; its end is not the caller's.
	defer func() { err = errors.Join(err, lease.Release(context.WithoutCancel(ctx))) }()

	if _, err := lease.Files().Write(ctx, "temperatures.csv", bytes.NewReader(data), 0o644); err != nil {
		return fmt.Errorf("writing the data: %w", err)
	}
	cmd := lease.Script("python", analysis, "temperatures.csv", "plot.png")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(ctx); err != nil {
		return fmt.Errorf("the analysis: %w", err)
	}
	var png bytes.Buffer
	info, err := lease.Files().Read(ctx, "plot.png", &limited{w: &png, left: maxPlot})
	if err != nil {
		return fmt.Errorf("reading the plot: %w", err)
	}
	fmt.Printf("%s: %d bytes, SHA-256 %s\n", to, info.Size, info.SHA256)
	return os.WriteFile(to, png.Bytes(), 0o644) //nolint:gosec // a plot is for everyone
}

// maxPlot bounds what a program can make this one keep, in bytes.
const maxPlot = 10 << 20

// limited refuses to write more than is left.
type limited struct {
	w    io.Writer
	left int
}

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, fmt.Errorf("the plot has more than %d bytes", maxPlot)
	}
	l.left -= len(p)
	return l.w.Write(p)
}
