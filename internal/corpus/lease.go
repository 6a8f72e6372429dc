package corpus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// maxTries bounds how often a program is run until a spare was used: the client
// sees from outside only that one has started, not that it is ready.
const maxTries = 20

// findSpare prints the process of a spare of the language $1 that seems to wait.
const findSpare = `for p in /proc/[0-9]*; do
	tr '\0' '\n' <$p/environ 2>/dev/null | grep -q "^SANDBOX_EXEC_ID=spare/$1/" || continue
	test -e $p/fd/100 && ! test -e $p/fd/101 && echo ${p#/proc/}
done; true`

// ErrNoSpare says that no program got a spare in a lease.
var ErrNoSpare = errors.New("corpus: the sandbox lets no program have a spare interpreter")

// PrintsID reports that the program prints its exec's ID, which a client of a
// broker cannot choose for both runs.
func (c Case) PrintsID() bool { return strings.HasSuffix(c.Name, "environ") }

// CompareInLease runs a program both ways in a lease and says where they differ.
// Its working directory is emptied.
func (c Case) CompareInLease(ctx context.Context, l *sandboxclient.Lease) (string, error) {
	fresh, err := c.ForFresh().inLease(ctx, l)
	if err != nil {
		return "", err
	}
	for range maxTries {
		pid, err := spareIn(ctx, l, c.Language)
		if err != nil {
			return "", err
		}
		spare, err := c.ForSpare().inLease(ctx, l)
		if err != nil {
			return "", err
		}
		// It is gone if the program had it: then it was the program's process.
		if err := l.Command("test", "!", "-e", "/proc/"+pid).Run(ctx); err == nil || c.Fresh {
			return Diff(fresh, spare), nil
		}
	}
	return "", ErrNoSpare
}

// spareIn waits for a spare and returns its process ID.
func spareIn(ctx context.Context, l *sandboxclient.Lease, lang string) (string, error) {
	for {
		out, err := l.Command("sh", "-c", findSpare, "sh", lang).Output(ctx)
		if err != nil {
			return "", fmt.Errorf("corpus: looking for a spare: %w", err)
		}
		if pid := strings.TrimSpace(string(out)); pid != "" {
			return pid, nil
		}
	}
}

// inLease runs the program, and empties the working directory after it.
func (c Case) inLease(ctx context.Context, l *sandboxclient.Lease) (Result, error) {
	var out, errs bytes.Buffer
	cmd := l.Script(c.Language, string(c.Code), c.Args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = c.Env, &out, &errs
	if c.Stdin != nil {
		cmd.Stdin = strings.NewReader(*c.Stdin)
	}
	err := cmd.Run(ctx)
	var exit *sandboxclient.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Result{}, err
	}
	end, ok := cmd.Ending()
	if !ok || !end.Complete {
		return Result{}, ErrIncomplete
	}
	r := Result{Stdout: out.Bytes(), Stderr: errs.Bytes(), Reason: string(end.Reason), ExitCode: end.ExitCode, Signal: end.Signal}
	return r, l.Command("sh", "-c", "rm -rf ./* /tmp/*").Run(ctx)
}
