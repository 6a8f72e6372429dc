package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/server"
	"github.com/sandbox-broker/sandbox-broker/internal/simulated"
)

const (
	poolName = "scale"
	// seed makes the delays those of every other time.
	seed = 4
	// refills is how many takes for the stock go on at once: enough for the goal of
	// runs a second, each of which waits for a claim and an attach.
	refills = 512
	// headerTimeout bounds the head of a request to the edge.
	headerTimeout = 10 * time.Second
	// closeTimeout bounds the end of the whole site.
	closeTimeout = 30 * time.Second
	// pollEvery is how often the stock is looked at until it is full.
	pollEvery = 20 * time.Millisecond
)

// site is the broker with all around it, set up as its serve command does: with
// logs and metrics, only that nobody reads them.
type site struct {
	stock    int
	provider *simulated.Provider
	broker   *broker.Broker
	edge     *server.Server
	http     *http.Server
	served   chan error
	log      *os.File
	callers  *callers
}

func newSite(ctx context.Context, o Options) (s *site, err error) {
	s = &site{stock: o.Stock, served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.log, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
		return s, fmt.Errorf("scale: opening the log: %w", err)
	}
	log := slog.New(slog.NewJSONHandler(s.log, nil))
	if s.provider, err = simulated.New(ctx, simulated.Measured(), seed); err != nil {
		return s, err
	}
	s.broker, err = broker.New(ctx, broker.Options{
		Pools: []broker.PoolConfig{{
			Name: poolName, MaxSandboxes: o.sandboxes(), Stock: o.Stock, Refills: refills, Cold: broker.ColdAllow,
			QueueLength: o.sandboxes(), DefaultTTL: time.Hour,
		}},
		Provider: s.provider, Secret: []byte(strings.Repeat("s", broker.MinSecret)), Metrics: prometheus.NewRegistry(), Log: log,
	})
	if err != nil {
		return s, fmt.Errorf("scale: starting the broker: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return s, fmt.Errorf("scale: listening on loopback: %w", err)
	}
	s.edge = server.New(server.Options{Broker: s.broker, Log: log})
	s.http = &http.Server{Handler: s.edge, ReadHeaderTimeout: headerTimeout}
	go func() { s.served <- s.http.Serve(l) }()
	if s.callers, err = startCallers("http://" + l.Addr().String()); err != nil {
		return s, err
	}
	return s, s.full(ctx)
}

// full waits until the stock is.
func (s *site) full(ctx context.Context) error {
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	for {
		if p := s.broker.Pools("scale"); p[0].InStock == s.stock {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("scale: waiting for the stock to be full: %w", ctx.Err())
		}
	}
}

// close ends whatever of it has started.
func (s *site) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	if s.callers != nil {
		errs = append(errs, s.callers.close())
	}
	if s.http != nil {
		errs = append(errs, s.edge.Close(ctx), s.http.Close())
		if err := <-s.served; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	if s.broker != nil {
		errs = append(errs, s.broker.Close(ctx))
	}
	if s.provider != nil {
		errs = append(errs, s.provider.Close())
	}
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	return errors.Join(errs...)
}

// times is the processor time of each of the three processes, and of all other
// programs.
type times struct {
	broker, runners, callers, others time.Duration
	elapsed                          time.Duration
}

// during measures the times that something takes.
func (s *site) during(do func() error) (times, error) {
	before, err := s.times()
	if err != nil {
		return times{}, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return times{}, err
	}
	after, err := s.times()
	return times{
		after.broker - before.broker, after.runners - before.runners, after.callers - before.callers,
		after.others - before.others, time.Since(began),
	}, err
}

func (s *site) times() (times, error) {
	t := times{broker: ownCPU()}
	var errs [3]error
	t.runners, errs[0] = cpuOf(s.provider.RunnersPID())
	t.callers, errs[1] = cpuOf(s.callers.pid())
	t.others, errs[2] = busyCPU()
	t.others -= t.broker + t.runners + t.callers
	return t, errors.Join(errs[:]...)
}
