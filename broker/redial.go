package broker

import (
	"context"
	"errors"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// channel returns the open channel, dialling again if it broke: at most one
// dialling at a time, at most until ctx or the lease ends. A runner that is not
// the bound one ends the lease.
func (l *lease) channel(ctx context.Context) (*channel.Client, error) {
	for {
		l.mu.Lock()
		ch, wait := l.ch, l.dialling
		if ch != nil {
			select {
			case <-ch.Done():
				ch = nil
			default:
			}
		}
		if ch == nil && wait == nil && !l.ended {
			wait = make(chan struct{})
			l.dialling = wait
			go l.redial(wait)
		}
		l.mu.Unlock()
		if ch != nil {
			return ch, nil
		}
		if wait == nil {
			return nil, errLeaseDead
		}
		select {
		case <-wait:
		case <-l.dead:
			return nil, errLeaseDead
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

var errLeaseDead = errors.New("the lease has ended")

// redial opens the channel again, until it is open, the lease is dead, or
// reattachWindow has passed; then the lease is lost.
func (l *lease) redial(done chan struct{}) {
	ctx, cancel := context.WithTimeout(l.pool.life, reattachWindow)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-l.dead:
			cancel()
		case <-stop:
		}
	}()
	l.pauseIfBreaking(ctx)
	ch, err := l.openAgain(ctx)
	var changed *channel.BootChangedError
	switch {
	case err == nil:
	case errors.As(err, &changed) || errors.Is(err, channel.ErrKeyRefused):
		// Another sandbox answers under this name. The provider knows why.
		l.awaitFate(ctx, Fate{Reason: wire.ReasonLost, Cause: wire.CauseDeleted, Message: err.Error()})
	case l.pool.life.Err() == nil:
		l.end(Fate{Reason: wire.ReasonLost, Cause: wire.CauseChannelLost, Message: "the sandbox could not be reached again: " + err.Error()})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ch, l.dialling, l.opened = ch, nil, time.Now()
	if l.ended && ch != nil {
		ch.Close()
	}
	close(done)
}

// pauseIfBreaking waits, until ctx ends, before a channel is opened again that keeps
// breaking.
func (l *lease) pauseIfBreaking(ctx context.Context) {
	l.mu.Lock()
	if time.Since(l.opened) > steadyAfter {
		l.breaks = 0
	}
	l.breaks++
	beyond := l.breaks - freeRedials
	l.mu.Unlock()
	if beyond <= 0 {
		return
	}
	pause := time.NewTimer(min(redialPause<<min(beyond-1, 10), maxRedialPause))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// openAgain dials until it succeeds or a final answer comes.
func (l *lease) openAgain(ctx context.Context) (*channel.Client, error) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		ch, err := openChannel(ctx, l.sb, l.pool.secret, l.boot)
		var changed *channel.BootChangedError
		if err == nil || errors.As(err, &changed) || errors.Is(err, channel.ErrKeyRefused) {
			return ch, err
		}
		pause.Reset(redialPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// awaitFate ends the lease with what the provider reports within fateTimeout, or
// else with the given fate.
func (l *lease) awaitFate(ctx context.Context, otherwise Fate) {
	t := time.NewTimer(fateTimeout)
	defer t.Stop()
	select {
	case <-l.dead:
	case <-t.C:
		l.end(otherwise)
	case <-ctx.Done():
		l.end(otherwise)
	}
}
