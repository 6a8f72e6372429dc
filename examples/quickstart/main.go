// Command quickstart runs one line of Python in a sandbox.
package main

import (
	"context"
	"log"
	"os"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

func main() {
	client, err := sandboxclient.New(os.Getenv("SANDBOX_BROKER_URL"),
		sandboxclient.WithTokenFile(os.Getenv("SANDBOX_BROKER_TOKEN_FILE")),
		sandboxclient.WithCAFile(os.Getenv("SANDBOX_BROKER_CA_FILE")))
	if err != nil {
		log.Fatal(err)
	}
	code := sandboxclient.Code{Pool: "python-gvisor", Language: "python", Source: "print(1+1)", Stdout: os.Stdout}
	if _, err := client.Run(context.Background(), code); err != nil {
		log.Fatal(err)
	}
}
