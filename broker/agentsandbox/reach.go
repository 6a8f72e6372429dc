package agentsandbox

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
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
	var last error
	_ = wait.PollUntilContextTimeout(ctx, reachPause, reachPatience, true, func(context.Context) (bool, error) {
		if last = try(); outOfReach(last) {
			log.Warn("the API server cannot be reached yet", "error", last)
			return false, nil
		}
		return true, nil
	})
	if last != nil {
		return errors.Join(last, ctx.Err())
	}
	return nil
}

// outOfReach reports whether an error is that of the way to the API server, or its word
// that it cannot answer now.
func outOfReach(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}
