package sandboxclient_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// A run in one call: its output is kept, and a program that fails is an ExitError.
func ExampleClient_Run() {
	client, err := sandboxclient.New("https://broker:8443", sandboxclient.WithTokenFile("/var/run/secrets/broker/token"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	res, err := client.Run(ctx, sandboxclient.Code{
		Pool: "python-gvisor", Language: "python", Source: "print(1+1)", Timeout: 10 * time.Second,
	})
	var exit *sandboxclient.ExitError
	switch {
	case errors.As(err, &exit):
		log.Printf("%v; it wrote %q", exit, res.Stderr)
	case errors.Is(err, sandboxclient.ErrExhausted):
		log.Print("no sandbox is free")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Printf("%s", res.Stdout)
	}
}

// Several programs in one sandbox, with live streams.
func ExampleClient_Acquire() {
	client, err := sandboxclient.New("https://broker:8443")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	lease, err := client.Acquire(ctx, "python-gvisor", sandboxclient.WithTTL(10*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := lease.Release(context.WithoutCancel(ctx)); err != nil {
			log.Print(err)
		}
	}()

	write := lease.Command("tee", "numbers.txt")
	write.Stdin = strings.NewReader("1\n2\n3\n")
	if err := write.Run(ctx); err != nil {
		log.Fatal(err)
	}
	sum := lease.Script("python", "print(sum(map(int, open('numbers.txt'))))")
	sum.Stdout, sum.Stderr = os.Stdout, os.Stderr
	if err := sum.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// A file goes in, a program makes another of it, and that one comes back.
func ExampleLease_Files() {
	client, err := sandboxclient.New("https://broker:8443")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	lease, err := client.Acquire(ctx, "python-gvisor")
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := lease.Release(context.WithoutCancel(ctx)); err != nil {
			log.Print(err)
		}
	}()

	files := lease.Files()
	if _, err := files.Write(ctx, "data/in.txt", strings.NewReader("b\na\n"), 0); err != nil {
		log.Fatal(err)
	}
	if err := lease.Command("sort", "-o", "data/out.txt", "data/in.txt").Run(ctx); err != nil {
		log.Fatal(err)
	}
	info, err := files.Read(ctx, "data/out.txt", os.Stdout)
	switch {
	case errors.Is(err, sandboxclient.ErrNotFound):
		log.Print("the program made no file")
	case err != nil:
		log.Fatal(err)
	default:
		log.Printf("%d bytes with SHA-256 %s", info.Size, info.SHA256)
	}
}
