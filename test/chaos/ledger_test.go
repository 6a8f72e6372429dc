//go:build e2e

package chaos

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

// ledger knows which claims ever had which pod. A claim can get one that is being ended, and
// be gone before anybody who lists the claims can see it.
type ledger struct {
	mu     sync.Mutex // guards the rest
	claims map[string]map[string]bool
}

// newLedger watches the suite's claims until ctx ends; wait returns when it has stopped.
func newLedger(ctx context.Context, t *testing.T, config *rest.Config, k8s client.Client) (l *ledger, wait func()) {
	t.Helper()
	ctrllog.SetLogger(logr.Discard())
	l = &ledger{claims: map[string]map[string]bool{}}
	watch, err := cache.New(config, cache.Options{Scheme: k8s.Scheme(), DefaultNamespaces: map[string]cache.Config{namespace: {}}})
	require.NoError(t, err)
	claims, err := watch.GetInformer(ctx, &extensionsv1beta1.SandboxClaim{}, cache.BlockUntilSynced(false))
	require.NoError(t, err)
	_, err = claims.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    l.note,
		UpdateFunc: func(_, now any) { l.note(now) },
		DeleteFunc: l.note,
	})
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- watch.Start(ctx) }()
	require.True(t, watch.WaitForCacheSync(ctx))
	return l, func() { require.NoError(t, <-stopped) }
}

func (l *ledger) note(o any) {
	if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	c, ok := o.(*extensionsv1beta1.SandboxClaim)
	if !ok || podOf(c) == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claims[podOf(c)] == nil {
		l.claims[podOf(c)] = map[string]bool{}
	}
	l.claims[podOf(c)][c.Name] = true
}

// of are the claims that had one of these pods.
func (l *ledger) of(pods []string) (claims []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, pod := range pods {
		claims = slices.AppendSeq(claims, maps.Keys(l.claims[pod]))
	}
	return claims
}
