package bench

import (
	"context"
	"time"
)

// What calls are expected to cost, with the rest before them. Only the progress
// depends on it.
const (
	costJob    = 5 * time.Second
	costFresh  = 1500 * time.Millisecond // a call that takes a sandbox
	costBack   = 500 * time.Millisecond  // the same without a rest
	costHeld   = 50 * time.Millisecond
	costSpared = sparePause + 20*time.Millisecond
	costTrip   = 2 * time.Millisecond
	costBulk   = 4 * time.Second
)

// plan lists the ways, in the order of the table. In each turn they go in this
// order, so that the ones which are compared are close to each other in time.
func (s *Suite) plan() {
	c, n := s.cluster, s.o.Counts
	s.add(way{series: Series{Key: Job, Name: "one Job per call", Fewest: MinSlow}, count: n.Jobs, call: c.Job, rest: s.settle, cost: costJob})
	s.add(way{series: Series{Key: ClaimExec, Name: "claim, and one exec", Fewest: MinFast}, count: n.Others, call: c.ClaimExec, rest: s.settle, cost: costFresh})
	if s.peer != nil {
		s.add(way{series: Series{Key: PeerFirst, Name: "agent-sandbox's client: created, first run", Fewest: MinFast}, count: n.Others, call: s.peer.First, rest: s.settle, cost: costFresh})
		s.add(way{series: Series{Key: PeerLater, Name: "agent-sandbox's client: later run", Fewest: MinFast}, count: n.Runs, call: s.peer.Later, rest: s.settledOnce(pause(sparePause)), cost: costSpared})
		s.add(way{series: Series{Key: PeerBackToBack, Name: "agent-sandbox's client: later run, back to back", Fewest: MinFast}, count: n.Runs, call: s.peer.Later, cost: costHeld})
	}
	s.add(way{series: Series{Key: RunStock, Name: "run, from stock", Fewest: MinFast}, count: n.Runs, call: s.broker.Run, rest: s.settle, cost: costFresh})
	s.add(way{series: Series{Key: RunBackToBack, Name: "run, back to back", Fewest: MinFast}, count: n.Extras, call: s.broker.Run, cost: costBack})
	if s.o.NoStock == "" {
		s.leftOut = append(s.leftOut, "runs without stock: no pool without stock is named")
	} else {
		s.add(way{series: Series{Key: RunNoStock, Name: "run, without stock", Fewest: MinFast}, count: n.Extras, call: s.broker.RunNoStock, rest: s.settle, cost: costFresh})
	}
	s.add(way{series: Series{Key: AcquireStock, Name: "acquire, from stock", Fewest: MinFast}, count: n.Others, call: s.broker.Acquire, rest: s.settle, cost: costFresh})
	s.add(way{series: Series{Key: Exec, Name: "exec in a held lease", Fewest: MinFast}, count: n.Runs, call: s.broker.Exec, rest: s.settledOnce(pause(sparePause)), cost: costSpared})
	s.add(way{series: Series{Key: ExecBackToBack, Name: "exec in a held lease, back to back", Fewest: MinFast}, count: n.Runs, call: s.broker.Exec, cost: costHeld})
	s.planTrips(n)
	s.add(way{series: Series{Key: StdoutBare, Name: "64 MiB of stdout, bare exec", Fewest: MinSlow, Bytes: stdoutBytes}, count: n.Bulk, call: s.held.Stdout, rest: s.settle, cost: costBulk})
	s.add(way{series: Series{Key: StdoutLease, Name: "64 MiB of stdout, exec in a lease", Fewest: MinSlow, Bytes: stdoutBytes}, count: n.Bulk, call: s.broker.Stdout, rest: s.settle, cost: costBulk})
}

// planTrips adds the round trips, which within a turn follow one another.
func (s *Suite) planTrips(n Counts) {
	delay := &way{series: Series{Key: OutputDelay, Name: "output's way from the program to the caller", Fewest: MinFast}}
	bare := &way{series: Series{Key: BareEcho, Name: "line to a shell and back, bare exec", Fewest: MinFast}}
	lease := &way{series: Series{Key: LeaseEcho, Name: "line to a program and back, in a lease", Fewest: MinFast}}
	bare.call = s.held.Echo
	lease.call = func(ctx context.Context) (Sample, error) {
		whole, back, err := s.broker.Echo(ctx)
		if err == nil {
			delay.series.Samples = append(delay.series.Samples, back)
		}
		return whole, err
	}
	s.add(way{series: Series{Key: Channel, Name: "round trip of the channel", Fewest: MinFast}, count: n.Trips, cost: costTrip, rest: s.settledOnce(nil), call: s.held.RoundTrip})
	bare.count, bare.cost = n.Trips, costTrip
	lease.count, lease.cost = n.Trips, costTrip
	s.ways = append(s.ways, bare, lease, delay)
}

func (s *Suite) add(w way) { s.ways = append(s.ways, &w) }

// settledOnce waits until the pools have settled, once a turn, and rests before
// each call.
func (s *Suite) settledOnce(rest func(context.Context) error) func(context.Context) error {
	return s.settledOnceBy(s.settle, rest)
}

func (s *Suite) settledOnceBy(settle, rest func(context.Context) error) func(context.Context) error {
	turn := -1
	return func(ctx context.Context) error {
		if turn != s.turn {
			turn = s.turn
			if err := settle(ctx); err != nil {
				return err
			}
		}
		if rest == nil {
			return nil
		}
		return rest(ctx)
	}
}
