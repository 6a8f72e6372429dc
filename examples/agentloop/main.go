// Command agentloop is the loop of an agent that writes code: ask a model, run
// what it wrote in a sandbox, show it the error, until the program works. The
// model here is scripted, so that the example needs no network; a real one takes
// its place behind the same interface.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// Model writes a program for a task, given what came of its earlier tries.
type Model interface {
	Write(ctx context.Context, task string, tries []Try) (code string, err error)
}

// Try is one program and what became of it.
type Try struct {
	Code   string
	Output string
	Error  string // empty: it worked
}

// maxTries bounds the loop: a model that does not learn is not asked for ever.
const maxTries = 5

// timeout bounds one program.
const timeout = 5 * time.Second

func main() {
	ctx := context.Background()
	client, err := sandboxclient.FromEnvironment()
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	answer, err := solve(ctx, client, scripted{}, "What is the sum of the first 100 primes?")
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Print("answer: ", answer)
}

// solve lets the model try until a program works. Every program gets a sandbox
// of its own: what one leaves behind cannot mislead the next.
func solve(ctx context.Context, client *sandboxclient.Client, model Model, task string) (string, error) {
	var tries []Try
	for range maxTries {
		code, err := model.Write(ctx, task, tries)
		if err != nil {
			return "", fmt.Errorf("asking the model: %w", err)
		}
		res, err := client.Run(ctx, sandboxclient.Code{
			Pool: os.Getenv("SANDBOX_BROKER_POOL"), Language: "python", Source: code, Timeout: timeout,
		})
		// A program's own failure is the model's to mend; any other is not.
		var failed *sandboxclient.ExitError
		switch {
		case err == nil:
			fmt.Printf("try %d: it works\n", len(tries)+1)
			return string(res.Stdout), nil
		case errors.As(err, &failed):
			fmt.Printf("try %d: %v\n", len(tries)+1, failed)
			tries = append(tries, Try{code, string(res.Stdout), string(res.Stderr) + failed.Error()})
		default:
			return "", fmt.Errorf("running the program: %w", err)
		}
	}
	return "", fmt.Errorf("no program worked after %d tries; the last said: %s", maxTries, tries[maxTries-1].Error)
}
