package agentsandbox

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// reachPatience bounds how long the API server may be out of reach when a broker
	// starts: it may restart, or change place, just then.
	reachPatience = time.Minute
	// reachPause lies between two attempts.
	reachPause = time.Second
)

// whileOutOfReach tries again for as long as the API server cannot be reached, at most
// for reachPatience or until ctx ends. What it says counts at once.
func whileOutOfReach(ctx context.Context, log *slog.Logger, try func() error) error {
	patience := time.NewTimer(reachPatience)
	defer patience.Stop()
	for {
		err := try()
		if err == nil || !outOfReach(err) {
			return err
		}
		log.Warn("the API server cannot be reached yet", "error", err)
		pause := time.NewTimer(reachPause)
		select {
		case <-pause.C:
		case <-patience.C:
			pause.Stop()
			return err
		case <-ctx.Done():
			pause.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

// outOfReach reports whether an error is that of the way to the API server, or its word
// that it cannot answer now.
func outOfReach(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}
