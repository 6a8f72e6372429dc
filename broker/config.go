package broker

import (
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// PoolConfig is one pool of the configuration. Zero values mean the defaults
// given here; see [PoolConfig.WithDefaults].
type PoolConfig struct {
	Name      string
	WarmPool  string   // the provider's name; default Name
	Languages []string // names of languages callers may use; default python, node, shell
	Tenants   []string // who may use the pool; empty: everyone

	MaxSandboxes int // stock and leases together; default 10
	Stock        int // sandboxes taken ahead; default 0
	Refills      int // takes for the stock at once; default 4
	// Spares are the languages of which a sandbox in stock, and one that was
	// acquired, keeps an interpreter started; nil: Languages, empty: none.
	Spares []string
	// Preload are the modules that spares import ahead, by language.
	Preload map[string][]string
	// Cold says what happens when no warm sandbox is ready.
	Cold ColdPolicy

	QueueLength  int           // callers that may wait; default 100
	QueueTimeout time.Duration // how long one may wait; default 30 s
	ReadyTimeout time.Duration // how long one take may last; default 60 s

	DefaultTimeout time.Duration // of a program; default 60 s
	MaxTimeout     time.Duration // of a program; default and at most 300 s
	CodeLimit      int           // bytes of code; default 1 MiB, at most wire.MaxCode
	OutputLimit    int64         // bytes that a program may write to both outputs together; 0: no limit

	DefaultTTL time.Duration // of an acquired lease; default 10 min
	MaxTTL     time.Duration // of an acquired lease; default 1 h

	DetachGrace time.Duration // how long a run lives without a client; default 10 s
	Linger      time.Duration // how long an ending waits for its confirmation; default 2 s
}

// ColdPolicy says whether callers wait for warm sandboxes.
type ColdPolicy string

// The policies.
const (
	// ColdQueue takes no more at once than are warm (one if none is), so that
	// callers wait for the warm pool instead of starting pods of their own.
	ColdQueue ColdPolicy = "queue"
	// ColdAllow takes as many as callers wait for.
	ColdAllow ColdPolicy = "allow"
)

// Bounds on what programs may ask for, whatever a pool says.
const (
	MinTimeout = time.Second
	MaxTimeout = 300 * time.Second
)

// WithDefaults fills in what is not set.
func (c PoolConfig) WithDefaults() PoolConfig {
	def(&c.WarmPool, c.Name)
	def(&c.MaxSandboxes, 10)
	def(&c.Refills, 4)
	def(&c.Cold, ColdQueue)
	def(&c.QueueLength, 100)
	def(&c.QueueTimeout, 30*time.Second)
	def(&c.ReadyTimeout, 60*time.Second)
	def(&c.MaxTimeout, MaxTimeout)
	def(&c.DefaultTimeout, min(60*time.Second, c.MaxTimeout))
	def(&c.CodeLimit, 1<<20)
	def(&c.MaxTTL, time.Hour)
	def(&c.DefaultTTL, min(10*time.Minute, c.MaxTTL))
	def(&c.DetachGrace, 10*time.Second)
	def(&c.Linger, 2*time.Second)
	if len(c.Languages) == 0 {
		c.Languages = []string{"python", "node", "shell"}
	}
	if c.Spares == nil {
		c.Spares = c.Languages
	}
	return c
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Check reports the first setting that cannot work, as a *wire.Error that names
// it by its key in the configuration file.
func (c PoolConfig) Check() error {
	bad := func(field string, limit int64, format string, args ...any) error {
		return wire.Invalid(field, limit, format, args...)
	}
	switch {
	case c.Name == "":
		return bad("name", 0, "a pool needs a name")
	case c.MaxSandboxes < 1:
		return bad("maxSandboxes", 1, "at least 1 is needed, not %d", c.MaxSandboxes)
	case c.Stock < 0 || c.Stock > c.MaxSandboxes:
		return bad("stock", int64(c.MaxSandboxes), "a stock of %d must lie between 0 and maxSandboxes (%d)", c.Stock, c.MaxSandboxes)
	case c.Refills < 1:
		return bad("refills", 1, "at least 1 is needed, not %d", c.Refills)
	case c.Cold != ColdQueue && c.Cold != ColdAllow:
		return bad("cold", 0, "%q is neither queue nor allow", c.Cold)
	case c.QueueLength < 1:
		return bad("queue.length", 1, "at least 1 is needed, not %d", c.QueueLength)
	case c.MaxTimeout < MinTimeout || c.MaxTimeout > MaxTimeout:
		return bad("timeout.max", int64(MaxTimeout/time.Second), "%s must lie between %s and %s", c.MaxTimeout, MinTimeout, MaxTimeout)
	case c.DefaultTimeout < MinTimeout || c.DefaultTimeout > c.MaxTimeout:
		return bad("timeout.default", int64(c.MaxTimeout/time.Second), "%s must lie between %s and the maximum of %s", c.DefaultTimeout, MinTimeout, c.MaxTimeout)
	case c.CodeLimit < 1 || c.CodeLimit > wire.MaxCode:
		return bad("codeLimit", wire.MaxCode, "%d must lie between 1 and %d bytes", c.CodeLimit, wire.MaxCode)
	case c.OutputLimit < 0:
		return bad("outputLimit", 0, "%d bytes are less than none", c.OutputLimit)
	case c.DefaultTTL > c.MaxTTL:
		return bad("lease.default", int64(c.MaxTTL/time.Second), "%s exceeds the maximum of %s", c.DefaultTTL, c.MaxTTL)
	}
	if err := c.checkSpares(); err != nil {
		return err
	}
	for field, d := range map[string]time.Duration{
		"queue.timeout": c.QueueTimeout, "readyTimeout": c.ReadyTimeout, "detachGrace": c.DetachGrace,
		"linger": c.Linger, "lease.default": c.DefaultTTL, "lease.max": c.MaxTTL,
	} {
		if d <= 0 {
			return bad(field, 0, "%s must be positive", d)
		}
	}
	return nil
}

// Bounds of what spares import ahead.
const (
	maxPreload = 64
	maxModule  = 256
)

func (c PoolConfig) checkSpares() error {
	for _, l := range c.Spares {
		if !slices.Contains(c.Languages, l) {
			return wire.Invalid("spares", 0, "%q is none of the pool's languages (%s)", l, strings.Join(c.Languages, ", "))
		}
	}
	for l, modules := range c.Preload {
		field := "preload." + l
		switch {
		case !slices.Contains(c.Spares, l):
			return wire.Invalid(field, 0, "modules are imported by spares, and %q is none of the pool's (%s)", l, strings.Join(c.Spares, ", "))
		case len(modules) > maxPreload:
			return wire.Invalid(field, maxPreload, "%d modules are more than %d", len(modules), maxPreload)
		}
		for _, m := range modules {
			if m == "" || len(m) > maxModule || strings.ContainsFunc(m, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
				return wire.Invalid(field, maxModule, "%q is no module's name: 1 to %d characters, none of them a space", m, maxModule)
			}
		}
	}
	return nil
}
