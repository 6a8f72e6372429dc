//go:build !linux

package local

import (
	"context"
	"errors"

	"github.com/sandbox-broker/sandbox-broker/broker"
)

// Provider is not to be had here.
type Provider struct{ broker.Provider }

// New says that sandboxes need Linux.
func New(context.Context, Options) (*Provider, error) {
	return nil, errors.New("local: sandboxes need Linux: run the broker there, for example in a virtual machine, and name it with --server")
}

// Isolation is never asked for.
func (p *Provider) Isolation() string { return "" }

// Close has nothing to end.
func (p *Provider) Close(context.Context) error { return nil }
