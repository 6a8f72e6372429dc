package processtest_test

import (
	"context"
	"os"
	"testing"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/conformance"
	"github.com/sandbox-broker/sandbox-broker/internal/processtest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestMain(m *testing.M) {
	processtest.Main()
	os.Exit(m.Run())
}

// A stand-in counts only while it passes what the real providers pass.
func TestConformance(t *testing.T) {
	conformance.Provider(t, func(t *testing.T) conformance.Subject {
		p := processtest.New(t)
		return conformance.Subject{
			Provider: p, Pool: "test", WarmPool: "test",
			Kill: func(_ context.Context, s broker.Sandbox) error {
				s.(*processtest.Sandbox).Die(broker.Fate{Reason: wire.ReasonLost, Cause: wire.CauseDeleted})
				return nil
			},
			Exists: func(ctx context.Context, s broker.Sandbox) (bool, error) {
				found, err := p.List(ctx)
				for _, f := range found {
					if f.ID() == s.ID() {
						return true, err
					}
				}
				return false, err
			},
		}
	})
}
