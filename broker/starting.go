package broker

import "context"

// starting is a program on its way to its sandbox.
type starting struct {
	running <-chan struct{} // closed when the runner has answered
	over    chan struct{}   // closed when nobody tries to start it any more
}

// starts notes that an exec is on its way, until over is called. Who attaches to it
// meanwhile must not be told that there is no such exec.
func (l *lease) starts(exec string, running <-chan struct{}) (over func()) {
	s := &starting{running: running, over: make(chan struct{})}
	l.mu.Lock()
	if l.starting == nil {
		l.starting = map[string]*starting{}
	}
	l.starting[exec] = s // of two starts of one ID the later one: either is as good
	l.mu.Unlock()
	return func() {
		close(s.over)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.starting[exec] == s {
			delete(l.starting, exec)
		}
	}
}

// awaitStart waits for an exec that is on its way. The error is the cause of ctx's end.
func (l *lease) awaitStart(ctx context.Context, exec string) error {
	l.mu.Lock()
	s := l.starting[exec]
	l.mu.Unlock()
	if s == nil {
		return nil
	}
	select {
	case <-s.running:
	case <-s.over:
	case <-l.dead:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
