// Package config reads the broker's configuration file: YAML, strict about
// unknown keys. Every error names the key and its line.
package config

import (
	"errors"
	"fmt"
	"net"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/auth"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// defaultInstance is the name of a broker that has been given none.
const defaultInstance = "default"

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// Config is the file's content. docs/configuration.md describes every key.
type Config struct {
	Listen        string   `yaml:"listen"`
	MetricsListen string   `yaml:"metricsListen"`
	TLS           TLS      `yaml:"tls"`
	Instance      string   `yaml:"instance"`
	HandleKeyFile string   `yaml:"handleKeyFile"`
	Auth          Auth     `yaml:"auth"`
	Provider      Provider `yaml:"provider"`
	Pools         []Pool   `yaml:"pools"`

	root *yaml.Node // for the lines of errors found later
	file string
}

// TLS names the server's certificate; it is read again when it changes.
type TLS struct {
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
}

// Auth says how callers are known.
type Auth struct {
	TokenReview *TokenReview `yaml:"tokenReview"`
	TokensFile  string       `yaml:"tokensFile"`
}

// TokenReview asks the cluster's API server.
type TokenReview struct {
	Audiences []string `yaml:"audiences"`
}

// Provider says where sandboxes come from: exactly one is set.
type Provider struct {
	AgentSandbox *AgentSandbox `yaml:"agentSandbox"`
	Local        *Local        `yaml:"local"`
}

// AgentSandbox is broker/agentsandbox's.
type AgentSandbox struct {
	Namespace  string `yaml:"namespace"`
	Kubeconfig string `yaml:"kubeconfig"`
	Container  string `yaml:"container"`
	Runner     string `yaml:"runner"`
}

// Pool is one pool; see broker.PoolConfig.
type Pool struct {
	Name         string   `yaml:"name"`
	WarmPool     string   `yaml:"warmPool"`
	Languages    []string `yaml:"languages"`
	Tenants      []string `yaml:"tenants"`
	MaxSandboxes int      `yaml:"maxSandboxes"`
	Stock        int      `yaml:"stock"`
	Refills      int      `yaml:"refills"`
	// Spares is nil when the key is not there; an empty list means none.
	Spares       []string            `yaml:"spares"`
	Preload      map[string][]string `yaml:"preload"`
	Cold         broker.ColdPolicy   `yaml:"cold"`
	Queue        Queue               `yaml:"queue"`
	ReadyTimeout Duration            `yaml:"readyTimeout"`
	Timeout      Range               `yaml:"timeout"`
	CodeLimit    Size                `yaml:"codeLimit"`
	OutputLimit  Size                `yaml:"outputLimit"`
	Lease        Range               `yaml:"lease"`
	DetachGrace  Duration            `yaml:"detachGrace"`
	Linger       Duration            `yaml:"linger"`
	Local        *LocalPool          `yaml:"local"`
}

// Queue bounds who waits for a sandbox.
type Queue struct {
	Length  int      `yaml:"length"`
	Timeout Duration `yaml:"timeout"`
}

// Range is a default and a maximum.
type Range struct {
	Default Duration `yaml:"default"`
	Max     Duration `yaml:"max"`
}

// Load reads and checks a file.
func Load(path string) (*Config, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if st.Size() > maxFile {
		return nil, fmt.Errorf("config: %s has %d bytes; the limit is %d", path, st.Size(), maxFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(path, b)
}

// Parse checks a file's content; name is for errors.
func Parse(name string, b []byte) (*Config, error) {
	c := &Config{file: name}
	if err := decodeStrict(name, b, &c.root, c); err != nil {
		return nil, err
	}
	return c, c.check()
}

// errorAt names the file, the line and the key.
func (c *Config) errorAt(key, format string, args ...any) error {
	if c.root == nil { // not from a file
		return fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...))
	}
	return fmt.Errorf("%s:%d: %s: %s", c.file, lineOf(c.root, key), key, fmt.Sprintf(format, args...))
}

// SetListen changes the address of the API, which is checked as the file's is.
func (c *Config) SetListen(address string) error {
	c.Listen = address
	return c.checkListen()
}

func (c *Config) checkListen() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return c.errorAt("listen", "%q is not HOST:PORT: %v", c.Listen, err)
	}
	if !c.Auth.Enabled() && !isLoopback(host) {
		return c.errorAt("listen", "%q is reachable from other machines, but auth is empty: set auth.tokenReview or auth.tokensFile, or listen on 127.0.0.1", c.Listen)
	}
	return nil
}

func (c *Config) check() error {
	if c.Listen == "" {
		c.Listen = sandboxclient.DefaultAddress
	}
	if c.Instance == "" {
		c.Instance = defaultInstance
	}
	if err := c.checkListen(); err != nil {
		return err
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return c.errorAt("tls", "certFile and keyFile belong together")
	}
	if c.Auth.TokenReview != nil && len(c.Auth.TokenReview.Audiences) == 0 {
		return c.errorAt("auth.tokenReview.audiences", "at least one is needed, so that tokens meant for others are refused")
	}
	if (c.Provider.AgentSandbox == nil) == (c.Provider.Local == nil) {
		return c.errorAt("provider", "exactly one of agentSandbox and local is needed")
	}
	if c.Auth.TokenReview != nil && c.Provider.AgentSandbox == nil {
		return c.errorAt("auth.tokenReview", "it asks the cluster of provider.agentSandbox; use auth.tokensFile")
	}
	if c.Provider.AgentSandbox != nil && c.Provider.AgentSandbox.Namespace == "" {
		return c.errorAt("provider.agentSandbox.namespace", "the namespace of the warm pools is needed")
	}
	if len(c.Pools) == 0 {
		return c.errorAt("pools", "at least one is needed")
	}
	return c.checkPools()
}

func (c *Config) checkPools() error {
	seen := map[string]bool{}
	for i, p := range c.Pools {
		key := fmt.Sprintf("pools[%d]", i)
		if seen[p.Name] {
			return c.errorAt(key+".name", "the name %q is taken", p.Name)
		}
		seen[p.Name] = true
		for j, t := range p.Tenants {
			if err := auth.CheckTenant(t); err != nil {
				return c.errorAt(fmt.Sprintf("%s.tenants[%d]", key, j), "%v", err)
			}
		}
		err := p.Broker().WithDefaults().Check()
		if e := wire.AsError(err); e != nil {
			return c.errorAt(key+"."+e.Field, "%s", e.Message)
		} else if err != nil {
			return c.errorAt(key, "%v", err)
		}
		if err := c.checkLocal(key, p); err != nil {
			return err
		}
	}
	return nil
}

// Broker is the pool as the broker takes it.
func (p Pool) Broker() broker.PoolConfig {
	return broker.PoolConfig{
		Name: p.Name, WarmPool: p.WarmPool, Languages: p.Languages, Tenants: p.Tenants,
		MaxSandboxes: p.MaxSandboxes, Stock: p.Stock, Refills: p.Refills, Spares: p.Spares, Preload: p.Preload, Cold: p.Cold,
		QueueLength: p.Queue.Length, QueueTimeout: p.Queue.Timeout.D, ReadyTimeout: p.ReadyTimeout.D,
		DefaultTimeout: p.Timeout.Default.D, MaxTimeout: p.Timeout.Max.D, CodeLimit: int(p.CodeLimit), OutputLimit: int64(p.OutputLimit),
		DefaultTTL: p.Lease.Default.D, MaxTTL: p.Lease.Max.D, DetachGrace: p.DetachGrace.D, Linger: p.Linger.D,
	}
}

// Enabled reports whether callers are authenticated at all.
func (a Auth) Enabled() bool { return a.TokenReview != nil || a.TokensFile != "" }

// isLoopback reports whether a listener on host is reachable from this machine
// only. An empty host is every address.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// LoadTokens reads a tokens file: a YAML list of tenant with token or sha256.
func LoadTokens(path string) (auth.Static, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: auth.tokensFile: %w", err)
	}
	var file struct {
		Tokens []token `yaml:"tokens"`
	}
	var root *yaml.Node
	if err := decodeStrict(path, b, &root, &file); err != nil {
		return nil, err
	}
	tokens := make([]auth.StaticToken, len(file.Tokens))
	for i, t := range file.Tokens {
		tokens[i] = auth.StaticToken(t)
	}
	s, err := auth.NewStatic(tokens)
	if err != nil {
		return nil, fmt.Errorf("%s: tokens: %w", path, err)
	}
	if len(s) == 0 {
		return nil, fmt.Errorf("%s: tokens: %w", path, errors.New("the list is empty"))
	}
	return s, nil
}

type token struct {
	Token  string `yaml:"token"`
	SHA256 string `yaml:"sha256"`
	Tenant string `yaml:"tenant"`
}
