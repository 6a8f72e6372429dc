package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"k8s.io/client-go/rest"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/agentsandbox"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/internal/config"
)

// exitUsage is the exit code of a serve that was told too little, or what it
// must not do.
const exitUsage = 2

// source is where the broker's sandboxes come from.
type source struct {
	broker.Provider
	// isolation is what clients are told of every sandbox; empty: each tells
	// itself.
	isolation string
	// close ends what would otherwise outlive the broker.
	close func(context.Context) error
}

// openProvider makes the provider that the configuration names. life ends after
// the hand-over.
func openProvider(ctx, life context.Context, c *config.Config, insecure bool, k *rest.Config, log *slog.Logger) (source, error) {
	if c.Provider.Local != nil {
		return openLocal(ctx, c, insecure, log)
	}
	if insecure {
		return source{}, &exitError{exitUsage, errors.New("--insecure-no-isolation is for the provider local")}
	}
	as := c.Provider.AgentSandbox
	p, err := agentsandbox.New(ctx, life, agentsandbox.Options{
		Config: k, Namespace: as.Namespace, Instance: c.Instance, Container: as.Container, Runner: as.Runner, Log: log,
	})
	return source{Provider: p, close: func(context.Context) error { return nil }}, err
}

func openLocal(ctx context.Context, c *config.Config, insecure bool, log *slog.Logger) (source, error) {
	l := c.Provider.Local
	o := local.Options{Runtime: l.Runtime, Runsc: l.Runsc, Runner: l.Runner, StateDir: l.StateDir, Instance: c.Instance, Log: log}
	switch {
	case insecure && l.Runtime == local.RuntimeRunsc:
		return source{}, &exitError{exitUsage, errors.New("--insecure-no-isolation contradicts provider.local.runtime: runsc")}
	case insecure && os.Geteuid() == 0 && !c.Auth.Enabled():
		return source{}, &exitError{exitUsage, errors.New("--insecure-no-isolation as root, without auth, would let every user of this machine run programs as root: set auth.tokensFile in a configuration file, or start as another user")}
	case insecure:
		o.Runtime = local.RuntimeProcess
		log.Warn("NO ISOLATION: programs run as this user, with all its files and network")
	case l.Runtime == local.RuntimeProcess:
		return source{}, &exitError{exitUsage, errors.New("provider.local.runtime: process isolates nothing; if that is wanted, start with --insecure-no-isolation")}
	}
	for _, p := range c.Pools {
		o.Pools = append(o.Pools, p.Provider())
	}
	p, err := local.New(ctx, o)
	var noRunsc *local.NoRunscError
	if errors.As(err, &noRunsc) {
		err = &exitError{exitUsage, err}
	}
	if err != nil {
		return source{}, err
	}
	log.Info("sandboxes are on this machine", "isolation", p.Isolation())
	return source{Provider: p, isolation: p.Isolation(), close: p.Close}, nil
}

// serveConfig is the configuration that the flags ask for.
func serveConfig(file, provider, listen string) (*config.Config, error) {
	var c *config.Config
	switch {
	case file != "" && provider != "":
		return nil, &exitError{exitUsage, errors.New("--config and --provider exclude each other: the file names the provider")}
	case file != "":
		var err error
		if c, err = config.Load(file); err != nil {
			return nil, err
		}
	case provider == "local":
		c = config.DefaultLocal()
	case provider == "":
		return nil, &exitError{exitUsage, errors.New("give the configuration with --config FILE, or take sandboxes on this machine with --provider local")}
	default:
		return nil, &exitError{exitUsage, fmt.Errorf("--provider %q: without a file only local is known", provider)}
	}
	if listen != "" {
		return c, c.SetListen(listen)
	}
	return c, nil
}
