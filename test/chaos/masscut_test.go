//go:build e2e

package chaos

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// perSandbox is how many of the crowd's programs share a sandbox.
	perSandbox = 8
	// outage is how long nobody can be reached in the second cut.
	outage = 4 * time.Second
	// attemptsInOutage bounds the attempts of one client meanwhile: the waits between
	// them double from 50 ms on at the least, so that the eighth is after 6 s.
	attemptsInOutage = 8
	// backWithin bounds the time until all are back, once they can be.
	backWithin = 15 * time.Second
	// spread is how far apart the early and the late ones must come at the least. The
	// first attempts are drawn from 250 ms, the later ones from longer times.
	spread = 60 * time.Millisecond
	// spreadTries is how often they are cut off for no time until they come so: a machine
	// that stands still for a moment makes many waits end at once. After an outage they
	// come over seconds.
	spreadTries = 3
)

// massCut cuts a crowd of clients off in one moment, first for no time and then for a
// while, and looks at how they come back: each a bounded number of times, not all at
// once.
func (s *suite) massCut(ctx context.Context) {
	if err := s.settle(ctx); err != nil { // the machine shall have nothing else to do
		s.problem("%v", err)
	}
	c := &crowd{suite: s}
	defer c.close()
	if err := c.gather(ctx); err != nil {
		s.problem("the crowd of the mass cut could not be gathered: %v", err)
		return
	}
	for _, down := range []time.Duration{0, outage} {
		apart := s.cutOff(ctx, c, down)
		for try := 1; apart < spread && down == 0 && try < spreadTries; try++ {
			apart = s.cutOff(ctx, c, down)
		}
		if apart < spread {
			s.problem("after a mass cut for %s the clients came back within %s, all at once", down, apart)
		}
	}
}

// cutOff cuts the crowd off for so long, and returns how far apart they came back.
func (s *suite) cutOff(ctx context.Context, c *crowd, down time.Duration) time.Duration {
	name := fmt.Sprintf("mass cut of %d clients for %s", len(c.members), down)
	before := c.counts()
	cut := time.Now()
	if down > 0 {
		s.front.Refuse(true)
	}
	s.front.Cut()
	time.Sleep(down) // that is the fault
	s.front.Refuse(false)
	up := time.Now()
	err := until(ctx, backWithin, "all clients are back", func() error { return c.more(before) })
	if err != nil {
		s.problem("%s: %v", name, err)
	}
	back := time.Since(up).Round(time.Millisecond)
	s.mu.Lock()
	s.evidence.Faults = append(s.evidence.Faults, Fault{Step: Step{Kind: CutClients}, At: cut, Until: time.Now()})
	s.mu.Unlock()
	return s.judgeCrowd(name, len(c.members), s.front.Arrivals(cut), s.front.Arrivals(up), down, back)
}

// judgeCrowd holds the number of attempts after a mass cut against its bound, and returns
// how far apart those came that could come back.
func (s *suite) judgeCrowd(name string, members int, attempts, welcome []time.Time, down, back time.Duration) time.Duration {
	apart := spreadOf(welcome)
	s.t.Logf("%s: %d attempts, the middle 80 %% of those that came back within %s, all back %s after", name, len(attempts), apart.Round(time.Millisecond), back)
	bound := 2 * members
	if down > 0 {
		bound = (attemptsInOutage + 1) * members
	}
	if len(attempts) > bound {
		s.problem("%s: %d attempts to come back, more than %d", name, len(attempts), bound)
	}
	return apart
}

// crowd is many clients with one program each.
type crowd struct {
	*suite
	owner   *sandboxclient.Client
	leases  []*sandboxclient.Lease
	members []*member
	all     sync.WaitGroup
}

// member is one client of a crowd.
type member struct {
	client *sandboxclient.Client
	x      *watched
}

// gather starts the crowd's programs, and returns when all have written something.
func (c *crowd) gather(ctx context.Context) error {
	c.owner = c.newClient(c.t)
	for n := range c.together {
		if n%perSandbox == 0 {
			l, err := c.owner.Acquire(ctx, pool, sandboxclient.WithTTL(4*time.Minute))
			if err != nil {
				return err
			}
			c.leases = append(c.leases, l)
		}
		c.join(n)
	}
	return until(ctx, time.Minute, "all programs have begun", func() error { return c.more(make([]int64, len(c.members))) })
}

// join starts the nth client's program: it writes a little for as long as the cuts take.
func (c *crowd) join(n int) {
	const seconds = 20
	p := Program{
		ID: fmt.Sprintf("crowd-%d", n), Language: "shell", Stdout: 4 * seconds, Steps: 4 * seconds, Pause: 250 * time.Millisecond,
		Reason: wire.ReasonExited, Timeout: ample,
	}
	m := &member{client: c.newClient(c.t), x: begin(p, fmt.Sprint("crowd-lease-", len(c.leases)), time.Now())}
	c.members = append(c.members, m)
	l := m.client.Lease(c.leases[len(c.leases)-1].Handle())
	c.all.Go(func() {
		ctx, cancel := m.x.governed()
		defer cancel()
		cmd := l.Script(p.Language, p.Source())
		cmd.ID, cmd.Timeout, cmd.Stdout, cmd.Stderr = p.ID, p.Timeout, m.x.out, m.x.errs
		err := cmd.Run(ctx)
		var ending *sandboxclient.Ending
		if e, ok := cmd.Ending(); ok {
			ending = &e
		}
		m.x.end(c.suite, ending, cmd.Handle() != "", err)
	})
}

// counts are how many bytes each client has.
func (c *crowd) counts() []int64 {
	var out []int64
	for _, m := range c.members {
		out = append(out, m.x.out.delivery().Bytes)
	}
	return out
}

// more says who has got nothing more since.
func (c *crowd) more(since []int64) error {
	waiting := 0
	for n, now := range c.counts() {
		if now <= since[n] {
			waiting++
		}
	}
	if waiting > 0 {
		return fmt.Errorf("%d of %d are not", waiting, len(c.members))
	}
	return nil
}

// close waits for the programs' ends and gives everything back.
func (c *crowd) close() {
	c.all.Wait()
	for _, m := range c.members {
		_ = m.client.Close()
	}
	w := &worker{suite: c.suite}
	for n, l := range c.leases {
		w.release(fmt.Sprint("crowd ", n), l)
	}
	if c.owner != nil {
		_ = c.owner.Close()
	}
}

// spreadOf is the time from the first tenth of moments to the last.
func spreadOf(moments []time.Time) time.Duration {
	if len(moments) == 0 {
		return 0
	}
	slices.SortFunc(moments, time.Time.Compare)
	tenth := len(moments) / 10
	return moments[len(moments)-1-tenth].Sub(moments[tenth])
}
