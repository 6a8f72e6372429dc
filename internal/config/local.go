package config

import (
	"slices"

	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Local is broker/local's: sandboxes on this machine.
type Local struct {
	Runtime  local.RuntimeName `yaml:"runtime"`
	Runsc    string            `yaml:"runsc"`
	Runner   string            `yaml:"runner"`
	StateDir string            `yaml:"stateDir"`
}

// LocalPool is what a pool of the local provider is made of.
type LocalPool struct {
	RootFS    string        `yaml:"rootFS"`
	Warm      *int          `yaml:"warm"`
	Network   local.Network `yaml:"network"`
	Memory    Size          `yaml:"memory"`
	Disk      Size          `yaml:"disk"`
	Processes int           `yaml:"processes"`
	CPUs      float64       `yaml:"cpus"`
}

// DefaultLocal is the configuration without a file: one pool on this machine,
// for everyone who can reach loopback.
func DefaultLocal() *Config {
	return &Config{
		file:     "the default configuration",
		Listen:   sandboxclient.DefaultAddress,
		Instance: defaultInstance,
		Provider: Provider{Local: &Local{}},
		Pools:    []Pool{{Name: "default", MaxSandboxes: 8, Stock: 1}},
	}
}

// Provider is the pool as the local provider takes it.
func (p Pool) Provider() local.Pool {
	name := p.WarmPool
	if name == "" {
		name = p.Name
	}
	l := p.Local
	if l == nil {
		l = &LocalPool{}
	}
	warm := 1
	if l.Warm != nil {
		warm = *l.Warm
	}
	return local.Pool{
		Name: name, RootFS: l.RootFS, Warm: warm, Network: l.Network,
		Limits: local.Limits{Memory: int64(l.Memory), Disk: int64(l.Disk), Processes: l.Processes, CPUs: l.CPUs},
	}
}

// checkLocal checks what only the local provider reads.
func (c *Config) checkLocal(key string, p Pool) error {
	if p.Local == nil {
		return nil
	}
	if c.Provider.Local == nil {
		return c.errorAt(key+".local", "it is for the provider local; this file names agentSandbox")
	}
	if n := p.Local.Network; n != "" && !slices.Contains([]local.Network{local.NetworkNone, local.NetworkHost}, n) {
		return c.errorAt(key+".local.network", "%q is neither none nor host", n)
	}
	if warm := p.Provider().Warm; warm < 0 || warm > p.Broker().WithDefaults().MaxSandboxes {
		return c.errorAt(key+".local.warm", "%d must lie between 0 and maxSandboxes", warm)
	}
	if e := wire.AsError(p.Provider().Limits.Check()); e != nil {
		return c.errorAt(key+"."+e.Field, "%s", e.Message)
	}
	return nil
}
