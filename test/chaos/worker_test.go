//go:build e2e

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

const (
	// callTimeout bounds a call whatever happens; none should need it.
	callTimeout = ample + 2*time.Minute
	// retries bounds how often a start is tried again, and retryPause is in between.
	retries    = 60
	retryPause = 500 * time.Millisecond
	// ownPrefix marks execs of the suite's own, which are no part of the workload.
	ownPrefix = "own-"
	// releaseWithin bounds how long a lease is tried to be released.
	releaseWithin = 2 * time.Minute
)

// worker is one caller, with a client of its own.
type worker struct {
	*suite
	name   string
	client *sandboxclient.Client
	random *rand.Rand
}

// work does one thing after the other until ctx ends, and finishes what it began.
func (w *worker) work(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%s-%d", w.name, n)
		if w.random.IntN(100) < 65 {
			w.run(drawProgram(w.random, id, w.longest))
		} else {
			w.lease(id)
		}
	}
}

// watched is what is noted while a program runs.
type watched struct {
	Entry
	out, errs *checker
}

func begin(p Program, lease string, held time.Time) *watched {
	return &watched{
		Entry: Entry{Program: p, Lease: lease, Began: time.Now(), Held: held},
		out:   newChecker(p.stdoutKey(), size(p.Stdout)), errs: newChecker(p.stderrKey(), size(p.Stderr)),
	}
}

// governed is the program's context. One that must be canceled is, when all of its
// output is there.
func (x *watched) governed() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	if x.CancelAfter == 0 {
		return ctx, cancel
	}
	go func() {
		for _, c := range []*checker{x.out, x.errs} {
			select {
			case <-c.full:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(x.CancelAfter):
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// end notes what the call returned.
func (x *watched) end(s *suite, n *sandboxclient.Ending, started bool, err error) Outcome {
	x.Ended, x.Success = time.Now(), err == nil
	x.Stdout, x.Stderr = x.out.delivery(), x.errs.delivery()
	x.Outcome = outcome(n, started, err)
	if err != nil {
		x.Err = err.Error()
	}
	if n != nil {
		ending := *n
		x.Ending = &ending
	}
	s.add(x.Entry)
	return x.Outcome
}

// outcome reads what a call returned.
func outcome(n *sandboxclient.Ending, started bool, err error) Outcome {
	var gone *sandboxclient.DisconnectedError
	switch {
	case n != nil:
		return Ended
	case errors.Is(err, sandboxclient.ErrStartUnknown):
		return StartUnknown
	case !started && isOver(err):
		return NoLease
	case !started:
		return Refused
	case errors.Is(err, context.Canceled):
		return Unconfirmed
	case errors.As(err, &gone) && isOver(err):
		return Gone
	case errors.As(err, &gone):
		return Unreachable
	}
	return Failed
}

// isOver says that there is no such lease or program, in whatever way it is told.
func isOver(err error) bool {
	return errors.Is(err, sandboxclient.ErrLeaseExpired) || errors.Is(err, sandboxclient.ErrNotFound)
}

// run takes a sandbox for one program.
func (w *worker) run(p Program) {
	x := begin(p, "", time.Time{})
	ctx, cancel := x.governed()
	defer cancel()
	code := sandboxclient.Code{
		Pool: pool, Language: p.Language, Source: p.Source(), Stdout: x.out, Stderr: x.errs, Timeout: p.Timeout,
		Started: func(string) { x.Held = time.Now() },
	}
	if p.Echo {
		code.Stdin = p.input()
	}
	res, err := w.client.Run(ctx, code)
	var n *sandboxclient.Ending
	if res != nil {
		x.Request = res.RequestID
		if res.Ending.Reason != "" {
			n = &res.Ending
		}
	}
	if x.end(w.suite, n, res != nil, err) == Refused {
		time.Sleep(retryPause) // as a caller would who is told no
	}
}

// lease takes a sandbox for several programs, some of them at once.
func (w *worker) lease(name string) {
	rounds := 1 + w.random.IntN(3)
	var plan [][]Program
	for i := range rounds {
		var at []Program
		for k := range 1 + w.random.IntN(2) {
			at = append(at, drawProgram(w.random, fmt.Sprintf("%s-%d-%d", name, i, k), w.longest/2))
		}
		plan = append(plan, at)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	l, err := w.client.Acquire(ctx, pool, sandboxclient.WithTTL(w.ttl))
	if err != nil {
		w.notAcquired(name, began, err)
		return
	}
	held := time.Now()
	w.hold(name, l)
	for _, at := range plan {
		var all sync.WaitGroup
		for _, p := range at {
			all.Go(func() { w.exec(l, name, held, p) })
		}
		all.Wait()
	}
	w.ranTwice(ctx, name, l)
	w.letGo(name)
	w.release(name, l)
}

// notAcquired notes an Acquire without a lease.
func (w *worker) notAcquired(name string, began time.Time, err error) {
	o := Refused
	if errors.Is(err, sandboxclient.ErrStartUnknown) {
		o = StartUnknown // a lease may be there that nobody knows, until its time is up
		w.doubt()
	}
	if o == Refused {
		w.add(Entry{
			Program: Program{ID: name, Language: "lease"}, Began: began, Ended: time.Now(), Outcome: o, Err: err.Error(),
			Stdout: Delivery{WrongAt: -1}, Stderr: Delivery{WrongAt: -1},
		})
	}
	time.Sleep(retryPause)
}

// exec runs a program in a lease. It has a name of its own, so a start of which
// nothing is known is tried again, as one that was refused for a while.
func (w *worker) exec(l *sandboxclient.Lease, lease string, held time.Time, p Program) {
	for range retries {
		x := begin(p, lease, held)
		ctx, cancel := x.governed()
		cmd := l.Script(p.Language, p.Source())
		cmd.ID, cmd.Timeout, cmd.Stdout, cmd.Stderr = p.ID, p.Timeout, x.out, x.errs
		if p.Echo {
			cmd.Stdin = p.input()
		}
		err := cmd.Run(ctx)
		cancel()
		var n *sandboxclient.Ending
		if e, ok := cmd.Ending(); ok {
			n = &e
		}
		switch outcome(n, cmd.Handle() != "", err) {
		case StartUnknown:
		case Refused:
			x.end(w.suite, n, false, err)
		default:
			x.end(w.suite, n, cmd.Handle() != "", err)
			return
		}
		time.Sleep(retryPause)
	}
	w.problem("program %s could not be started in %d attempts", p.ID, retries)
}

// ranTwice looks into the file in which each program of the lease wrote its ID.
func (w *worker) ranTwice(ctx context.Context, name string, l *sandboxclient.Lease) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := l.Command("cat", ranFile)
	cmd.ID = ownPrefix + "look-" + name
	text, err := cmd.Output(ctx)
	if err != nil {
		return // the sandbox is gone, or a fault came; there are other leases
	}
	w.looked(strings.Fields(string(text)))
}

// release gives the lease back, however long that takes.
func (w *worker) release(name string, l *sandboxclient.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	if err := until(ctx, releaseWithin, "lease "+name+" is released", func() error { return l.Release(ctx) }); err != nil {
		w.problem("%v", err)
	}
}
