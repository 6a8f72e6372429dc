package broker

import (
	"context"
	"errors"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// endAttempt bounds one try to end a sandbox.
	endAttempt = 10 * time.Second
	// endBackoffMin and endBackoffMax bound the pause between two tries.
	endBackoffMin = 100 * time.Millisecond
	endBackoffMax = 5 * time.Second
	// endPatience bounds all tries together. A sandbox that could not be ended by
	// then has passed its own end, or will: the provider ends it.
	endPatience = 2 * stockLife
	// shutdownPatience is the same while the broker shuts down.
	shutdownPatience = 5 * time.Second
)

// outlive is the context of work that must not end with the broker at once: it has
// d, but only shutdownPatience of that once the broker's life has ended.
func (p *pool) outlive(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.life), d)
	stop := context.AfterFunc(p.life, func() { time.AfterFunc(shutdownPatience, cancel) })
	return ctx, func() {
		stop()
		cancel()
	}
}

// end destroys a sandbox of this replica, trying until the provider accepts it. It belongs
// to no caller: whoever gave up has given up the sandbox too. But who was away, and could
// not end it at once, may have been taken for dead: another replica may have given it to
// somebody since. It may also have taken over the very lease that has ended here, with
// that ID, which then ends there too.
func (p *pool) end(sb Sandbox, lease string) { p.endOwn(sb, lease, !p.roster.Current()) }

// endStock is that for a sandbox that was in stock: whoever owns it gives it away without
// another word.
func (p *pool) endStock(sb Sandbox) { p.endOwn(sb, "", true) }

func (p *pool) endOwn(sb Sandbox, lease string, doubt bool) {
	p.endBy(sb, func(ctx context.Context) error {
		if doubt && p.endOwned != nil {
			return p.endOwned(ctx, sb, lease)
		}
		doubt = true
		return sb.End(ctx)
	})
}

// endForeign is that for a sandbox that another replica owns, whichever that is.
func (p *pool) endForeign(sb Sandbox) { p.endBy(sb, sb.End) }

func (p *pool) endBy(sb Sandbox, end func(context.Context) error) {
	ctx, cancel := p.outlive(endPatience)
	defer cancel()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for backoff := endBackoffMin; ; backoff = min(2*backoff, endBackoffMax) {
		attempt, done := context.WithTimeout(ctx, endAttempt)
		err := end(attempt)
		done()
		if err == nil {
			return
		}
		if errors.Is(err, wire.ErrConflict) {
			p.log.Info("a sandbox is not ended: another replica has taken it over", "sandbox", sb.ID().Name)
			return
		}
		p.log.Warn("a sandbox could not be ended yet", "sandbox", sb.ID().Name, "error", err)
		pause.Reset(backoff)
		select {
		case <-pause.C:
		case <-ctx.Done():
			p.log.Error("a sandbox was left to its own end", "sandbox", sb.ID().Name, "error", err)
			return
		}
	}
}
