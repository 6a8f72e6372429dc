package main

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// connectFlags say how a command reaches the broker. A flag counts before its
// environment variable.
type connectFlags struct {
	server, tokenFile, caFile string
}

func (f *connectFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.server, "server", "", "the broker's `URL` (default $"+sandboxclient.EnvURL+", else "+sandboxclient.DefaultURL+")")
	flags.StringVar(&f.tokenFile, "token-file", "", "`file` with the token to show (default $"+sandboxclient.EnvTokenFile+")")
	flags.StringVar(&f.caFile, "ca-file", "", "PEM `file` with the authority of the broker's certificate (default $"+sandboxclient.EnvCAFile+")")
}

// url is the broker's address.
func (f *connectFlags) url() string {
	return firstSet(f.server, os.Getenv(sandboxclient.EnvURL), sandboxclient.DefaultURL)
}

// client makes a client of the broker; it does not connect yet.
func (f *connectFlags) client() (*sandboxclient.Client, error) {
	var opts []sandboxclient.Option
	if file := firstSet(f.tokenFile, os.Getenv(sandboxclient.EnvTokenFile)); file != "" {
		opts = append(opts, sandboxclient.WithTokenFile(file))
	}
	if file := firstSet(f.caFile, os.Getenv(sandboxclient.EnvCAFile)); file != "" {
		opts = append(opts, sandboxclient.WithCAFile(file))
	}
	return sandboxclient.New(f.url(), opts...)
}

func firstSet(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
