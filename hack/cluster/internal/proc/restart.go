package proc

import (
	"bytes"
	"context"
	"fmt"
	"os"
)

// Restart kills the process, as a crash would, and starts it again with the command
// line and the environment that it had. What is not running cannot be restarted.
func (k Keeper) Restart(ctx context.Context, name string) error {
	r, running, err := k.Lookup(name)
	if err != nil {
		return err
	}
	if !running {
		return fmt.Errorf("%s does not run", name)
	}
	c, err := commandOf(r)
	if err != nil {
		return fmt.Errorf("reading how %s was started: %w", name, err)
	}
	if err := kill(ctx, r); err != nil {
		return fmt.Errorf("killing %s (process %d): %w", name, r.PID, err)
	}
	return k.start(c, r.Spec)
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
