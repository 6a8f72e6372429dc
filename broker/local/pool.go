//go:build linux

package local

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// startTimeout bounds the start of a warm sandbox.
	startTimeout = 60 * time.Second
	// backoffMin and backoffMax bound the pause after failed starts.
	backoffMin = 500 * time.Millisecond
	backoffMax = 30 * time.Second
)

// pool keeps warm sandboxes of one kind. At most one is being started ahead at a
// time, so that starting the next does not starve the run before it.
type pool struct {
	p       *Provider
	cfg     Pool
	root    rootFS
	problem error // why no sandbox of this pool can be had; nil: it can

	mu       sync.Mutex // guards the rest
	warm     []*sandbox // oldest first
	starting bool
	failures int // in a row
}

// newPool prepares a pool's root file system. A pool that asks for what this
// host cannot do, or whose files are of no use, has a problem.
func (p *Provider) newPool(ctx context.Context, c Pool) (*pool, error) {
	if c.Network == "" {
		c.Network = NetworkNone
	}
	asked := c.Limits
	c.Limits = c.Limits.withDefaults()
	pl := &pool{p: p, cfg: c}
	if pl.problem = p.runtime.refuses(c, asked); pl.problem != nil {
		p.log.Error("a pool is not ready", "pool", c.Name, "reason", pl.problem)
		return pl, nil
	}
	var err error
	pl.root, err = p.runtime.prepare(ctx, c)
	return pl, err
}

// pop takes the oldest warm sandbox; nil if there is none.
func (pl *pool) pop() *sandbox {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if len(pl.warm) == 0 {
		return nil
	}
	s := pl.warm[0]
	pl.warm = pl.warm[1:]
	return s
}

func (pl *pool) ready() int {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return len(pl.warm)
}

// fill starts the next warm sandbox if one is missing and none is on its way.
func (pl *pool) fill() {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.starting || pl.problem != nil || pl.p.life.Err() != nil || len(pl.warm) >= pl.cfg.Warm {
		return
	}
	pl.starting = true
	pause := time.Duration(0)
	if pl.failures > 0 {
		pause = min(backoffMin<<min(pl.failures-1, 10), backoffMax)
	}
	pl.p.jobs.Go(func() { pl.startWarm(pause) })
}

func (pl *pool) startWarm(pause time.Duration) {
	wait := time.NewTimer(pause)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-pl.p.life.Done():
		return
	}
	ctx, cancel := context.WithTimeout(pl.p.life, startTimeout)
	defer cancel()
	s, err := pl.start(ctx)
	pl.mu.Lock()
	pl.starting = false
	if err == nil {
		pl.failures = 0
		pl.warm = append(pl.warm, s)
	} else {
		pl.failures++
	}
	pl.mu.Unlock()
	if err != nil && pl.p.life.Err() == nil {
		pl.p.log.Warn("a warm sandbox could not be started", "pool", pl.cfg.Name, "error", err)
	}
	if err == nil && s.isDead() {
		pl.drop(s) // it died before it was listed
	}
	pl.fill()
}

// drop removes a sandbox that died while it was warm.
func (pl *pool) drop(s *sandbox) {
	pl.mu.Lock()
	for i, w := range pl.warm {
		if w == s {
			pl.warm = append(pl.warm[:i], pl.warm[i+1:]...)
			pl.failures++
			break
		}
	}
	pl.mu.Unlock()
	pl.fill()
}

// start starts one sandbox and waits until its runner listens.
func (pl *pool) start(ctx context.Context) (*sandbox, error) {
	if pl.p.life.Err() != nil {
		return nil, errors.New("local: the provider is closed")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := pl.p.newSandbox(pl)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}
