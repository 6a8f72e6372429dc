package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAStartWaitsForTheAPIServer(t *testing.T) {
	reset := fmt.Errorf("reading: %w", &net.OpError{Op: "read", Err: syscall.ECONNRESET})
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no rights"))
	for name, tt := range map[string]struct {
		answers []error // the last one again and again
		want    error
		took    time.Duration
	}{
		"at once":                 {[]error{nil}, nil, 0},
		"after a while":           {[]error{reset, io.ErrUnexpectedEOF, apierrors.NewServiceUnavailable("starting"), nil}, nil, 3 * reachPause},
		"not for ever":            {[]error{reset}, syscall.ECONNRESET, reachPatience},
		"not for what it refuses": {[]error{reset, forbidden}, forbidden, reachPause},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, n := time.Now(), 0
				err := whileOutOfReach(t.Context(), slog.New(slog.DiscardHandler), func() error {
					n++
					return tt.answers[min(n, len(tt.answers))-1]
				})
				require.ErrorIs(t, err, tt.want)
				require.InDelta(t, tt.took, time.Since(began), float64(reachPause))
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, whileOutOfReach(ctx, slog.New(slog.DiscardHandler), func() error { return reset }), context.Canceled)
}
