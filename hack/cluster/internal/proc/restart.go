package proc

import (
	"bytes"
	"context"
	"fmt"
	"os"
)

// Restart kills the process, as a crash would, and starts it again with the command
// line and the environment that it had. What is not running cannot be restarted.
//
// between, which may be nil, is called while the process is not there.
//
// It may end at once, since what it needs is not there yet. Then revive starts it once
// more, as an init system would; while it runs, revive does nothing.
func (k Keeper) Restart(ctx context.Context, name string, between func() error) (revive func() error, err error) {
	r, running, err := k.Lookup(name)
	if err != nil {
		return nil, err
	}
	if !running {
		return nil, fmt.Errorf("%s does not run", name)
	}
	c, err := commandOf(r)
	if err != nil {
		return nil, fmt.Errorf("reading how %s was started: %w", name, err)
	}
	if err := kill(ctx, r); err != nil {
		return nil, fmt.Errorf("killing %s (process %d): %w", name, r.PID, err)
	}
	if between != nil {
		if err := between(); err != nil {
			return nil, err
		}
	}
	revive = func() error {
		if _, running, err := k.Lookup(name); running || err != nil {
			return err
		}
		return k.start(c, r.Spec)
	}
	return revive, revive()
}

// commandOf reads from the kernel how a running process was started.
func commandOf(r Record) (Command, error) {
	c := Command{Name: r.Name}
	for file, to := range map[string]*[]string{"cmdline": &c.Args, "environ": &c.Env} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", r.PID, file))
		if err != nil {
			return c, err
		}
		for s := range bytes.SplitSeq(bytes.TrimSuffix(text, []byte{0}), []byte{0}) {
			*to = append(*to, string(s))
		}
	}
	return c, nil
}
