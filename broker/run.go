package broker

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// DefaultStartLogDelay is how long a program runs until the log says so. One that is over
// before has all of it in the line of its ending: a line costs the node a tenth of such a
// run.
const DefaultStartLogDelay = 100 * time.Millisecond

// bindAttempts bounds how many sandboxes in doubt are tried for one lease.
const bindAttempts = 3

// Caller is who asks, and under what name the logs know it.
type Caller struct {
	Tenant    string
	RequestID string
}

// Do serves one request. Output, and the ending of an exec, go to the stream;
// for the operations that only answer, so does the response. An error is a
// *wire.Error to tell the client, or ErrDetached: nobody is left to tell.
//
// Cancelling ctx with cause ErrDetached leaves what was started running; a
// cancelled ctx ends the wait for a sandbox. A program is cancelled by a
// KindCancel frame.
func (b *Broker) Do(ctx context.Context, c Caller, req wire.Request, code []byte, s Stream) error {
	if !b.enter() {
		return wire.Errorf(wire.CodeUnavailable, "the broker is shutting down; connect again")
	}
	defer b.requests.Done()
	// What callers make up must become neither a label nor a name: those are kept
	// for ever.
	op := string(req.Op)
	if !slices.Contains(wire.Ops, req.Op) {
		op = "unknown"
	}
	ctx, span := tracer.Start(ctx, "broker."+op, trace.WithAttributes(
		attribute.String("sandbox.tenant", c.Tenant), attribute.String("request.id", c.RequestID)))
	defer span.End()
	err := b.dispatch(ctx, c, req, code, s)
	if e := wire.AsError(err); e != nil {
		// The message may quote what a program was called with.
		span.SetStatus(codes.Error, string(e.Code))
		span.SetAttributes(attribute.String("error.field", e.Field), attribute.String("error.reason", e.Reason))
		if e.Reason != reasonCanceled {
			b.metrics.errors.WithLabelValues(op, string(e.Code)).Inc()
		}
	}
	return err
}

// reasonCanceled marks a wait that its caller ended: no failure of the broker.
const reasonCanceled = "canceled"

func (b *Broker) dispatch(ctx context.Context, c Caller, req wire.Request, code []byte, s Stream) error {
	switch req.Op {
	case wire.OpRun:
		return b.run(ctx, c, req, code, s)
	case wire.OpAcquire:
		return b.acquire(ctx, c, req, s)
	case wire.OpExec:
		return b.exec(ctx, c, req, code, s)
	case wire.OpAttach:
		return b.attach(ctx, c, req, s)
	case wire.OpRelease:
		return b.release(ctx, c, req, s)
	}
	return wire.Invalid("op", 0, "there is no operation %q", req.Op)
}

// run takes a sandbox, runs one program in it and destroys it.
func (b *Broker) run(ctx context.Context, c Caller, req wire.Request, code []byte, s Stream) error {
	began := time.Now()
	p, x, err := b.prepare(c, req, code)
	if err != nil {
		return err
	}
	defer x.paid()
	x.id, x.fresh = randomID(), true
	cfg := p.cfg
	// The run's hard end: what it may take in all, and room to say so.
	ttl := x.start.Timeout + deadlineSlack + cfg.DetachGrace + cfg.Linger + drainGrace
	l, err := b.lease(ctx, p, c.Tenant, KindRun, x.id, ttl, s.Canceled())
	if err != nil {
		return err
	}
	l.attach()
	res := b.describe(l, x.id, c)
	if err := s.Send(wire.JSONFrame(wire.KindResponse, 0, res)); err != nil {
		l.end(fateReleased) // nothing has run, and nobody knows the handle
		return err
	}
	return b.carry(ctx, c, l, x, s, began)
}

// program is one exec, as it is asked for.
type program struct {
	id    string
	fresh bool // the ID was made for it: nobody can have started it before
	start channel.Start
	code  []byte
	paid  func() // gives back what it takes of the budget, once
}

// carry relays one exec and decides what its end means for the lease.
func (b *Broker) carry(ctx context.Context, c Caller, l *lease, x program, s Stream, began time.Time) error {
	cfg, st := l.pool.cfg, x.start
	log := b.log.With("request", c.RequestID, "tenant", c.Tenant, "pool", cfg.Name, "lease", l.sb.ID().Name, "exec", x.id)
	ctx, span := tracer.Start(ctx, "exec", trace.WithAttributes(attribute.String("sandbox.lease", l.sb.ID().Name)))
	defer span.End()
	var what []any // for the log
	switch {
	case st.AttachOnly:
	case st.Program.File != nil:
		op := string(st.Program.File.Op)
		span.SetAttributes(attribute.String("file.op", op))
		log = log.With("file", op)
		what = []any{"timeout", st.Timeout.String()}
	default:
		hash := sum(x.code)
		span.SetAttributes(attribute.String("code.sha256", hash))
		what = []any{"language", st.Program.Language, "timeout", st.Timeout.String(), "code_sha256", hash, "code_bytes", len(x.code)}
	}
	begins := time.AfterFunc(b.startLogDelay, func() {
		if !st.AttachOnly {
			log.Info("exec", what...)
		}
	})
	x.start.Bind = l.binding()
	if st.AttachOnly || st.Program.File == nil { // nobody comes back for a file
		l.goesOn(x.id)
	}
	started := time.Now()
	r := newRelay(l, x, s, func() {
		b.metrics.firstByte.WithLabelValues(cfg.Name).Observe(time.Since(began).Seconds())
	})
	n, confirmed, err := r.run(ctx)
	switch unsaid := begins.Stop(); {
	case unsaid && n != nil:
		log = log.With(what...)
	case unsaid && !st.AttachOnly: // it may go on
		log.Info("exec", what...)
	}
	if n != nil {
		span.SetAttributes(attribute.String("exec.reason", string(n.Reason)), attribute.Int("exec.exit_code", n.ExitCode))
		b.metrics.ended(cfg.Name, n, time.Since(started))
		log.Info("exec ended", "reason", n.Reason, "exit_code", n.ExitCode, "cause", n.Cause, "signal", n.Signal,
			"stdin_bytes", r.stdinBytes(), "stdout_bytes", n.StdoutBytes, "stderr_bytes", n.StderrBytes, "complete", n.Complete, "wall_ms", time.Since(started).Milliseconds())
	}
	if l.kind != KindRun {
		return err
	}
	switch {
	case confirmed, n != nil && err == nil && !l.shared(): // nobody needs the sandbox any more
		l.end(fateReleased)
	case !st.AttachOnly && !r.hasStarted(): // nothing runs in it
		l.end(fateReleased)
	default:
		// This client is gone, or another one has taken its place, or it asked for
		// what cannot be. The run is not this stream's to end: someone may come, or
		// be there, for it.
		if isClientGone(err) {
			b.metrics.detached.WithLabelValues(cfg.Name).Inc()
			log.Info("client detached", "grace", cfg.DetachGrace.String())
		}
		l.detach()
	}
	return err
}

// acquire takes a lease that lives until it is released or expires.
func (b *Broker) acquire(ctx context.Context, c Caller, req wire.Request, s Stream) error {
	p, err := b.pool(req.Pool, c.Tenant)
	if err != nil {
		return err
	}
	ttl, err := p.cfg.checkTTL(req.TTLMS)
	if err != nil {
		return err
	}
	l, err := b.lease(ctx, p, c.Tenant, KindLease, "", ttl, s.Canceled())
	if err != nil {
		return err
	}
	b.log.Info("lease acquired", "request", c.RequestID, "tenant", c.Tenant, "pool", p.cfg.Name, "lease", l.sb.ID().Name, "ttl", ttl.String())
	if err := s.Send(wire.JSONFrame(wire.KindResponse, 0, b.describe(l, "", c))); err != nil {
		l.end(fateReleased) // nobody knows the handle
		return err
	}
	return nil
}

// exec runs a program in a lease. An ID that exists attaches.
func (b *Broker) exec(ctx context.Context, c Caller, req wire.Request, code []byte, s Stream) error {
	l, _, err := b.find(ctx, req.Lease, c.Tenant)
	if err != nil {
		return err
	}
	if l.kind != KindLease {
		return wire.Errorf(wire.CodeConflict, "the handle names a run, which has one exec; acquire a lease for several")
	}
	req.Pool = l.pool.cfg.Name
	fresh := req.ID == ""
	if fresh {
		req.ID = randomID()
	} else if err := wire.CheckExecID(req.ID); err != nil {
		return err
	}
	_, x, err := b.prepare(c, req, code)
	if err != nil {
		return err
	}
	defer x.paid()
	x.id, x.fresh = req.ID, fresh
	if err := s.Send(wire.JSONFrame(wire.KindResponse, 0, b.describe(l, req.ID, c))); err != nil {
		return err
	}
	return b.carry(ctx, c, l, x, s, time.Now())
}

// attach takes up the streams of an exec.
func (b *Broker) attach(ctx context.Context, c Caller, req wire.Request, s Stream) error {
	l, h, err := b.find(ctx, req.Exec, c.Tenant)
	if err != nil {
		return b.attachToEnded(ctx, c, req, h, s, err)
	}
	if h.exec == "" {
		return wire.Invalid("exec", 0, "the handle names a lease, not an exec")
	}
	x := program{id: h.exec, start: channel.Start{AttachOnly: true}, paid: func() {}}
	if x.start.Stdout, x.start.Stderr, err = checkWindows(&req); err != nil {
		return err
	}
	if l.kind == KindRun {
		l.attach()
	}
	if err := s.Send(wire.JSONFrame(wire.KindResponse, 0, b.describe(l, h.exec, c))); err != nil {
		if l.kind == KindRun {
			l.detach()
		}
		return err
	}
	return b.carry(ctx, c, l, x, s, time.Now())
}

// release ends a lease, or a run.
func (b *Broker) release(ctx context.Context, c Caller, req wire.Request, s Stream) error {
	l, _, err := b.find(ctx, req.Lease, c.Tenant)
	if err != nil {
		return err
	}
	b.log.Info("lease released", "request", c.RequestID, "tenant", c.Tenant, "lease", l.sb.ID().Name)
	l.end(fateReleased)
	return s.Send(wire.JSONFrame(wire.KindResponse, 0, wire.Response{RequestID: c.RequestID}))
}

// prepare validates a run or an exec before anything is taken for it. The caller gives
// back what the program takes of the budget.
func (b *Broker) prepare(c Caller, req wire.Request, code []byte) (*pool, program, error) {
	x := program{code: code}
	p, err := b.pool(req.Pool, c.Tenant)
	if err != nil {
		return nil, x, err
	}
	st := &x.start
	if st.Timeout, err = p.cfg.checkProgram(req.Program, code); err != nil {
		return nil, x, err
	}
	st.Program = req.Program
	if st.Program.File == nil && st.Program.OutputLimit == 0 {
		st.Program.OutputLimit = p.cfg.OutputLimit
	}
	if st.Stdout, st.Stderr, err = checkWindows(&req); err != nil {
		return nil, x, err
	}
	x.paid, err = b.waiting.take(c.Tenant, weight(st.Program, code))
	return p, x, err
}

// lease waits for a sandbox and makes it the tenant's. The wait ends with ctx, or
// when canceled is closed. From the stock it takes no round trip: the runner hears
// whose its sandbox is behind the caller's back, at the latest with a program.
func (b *Broker) lease(ctx context.Context, p *pool, tenant string, kind LeaseKind, execID string, ttl time.Duration, canceled <-chan struct{}) (*lease, error) {
	ctx, span := tracer.Start(ctx, "acquire")
	defer span.End()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-canceled:
			cancel()
		case <-ctx.Done():
		}
	}()
	id := randomID()
	m, err := b.acquireMember(ctx, p, channel.Bind{Lease: id, Tenant: tenant})
	if err != nil {
		if ctx.Err() != nil && !isClientGone(err) && wire.AsError(err) == nil {
			err = &wire.Error{Code: wire.CodeUnavailable, Reason: reasonCanceled, Message: "the request was canceled while it waited for a sandbox"}
		}
		return nil, notWire(err, "taking a sandbox")
	}
	l := newLease(p, m.sb, m.ch, Record{Lease: id, Tenant: tenant, Kind: kind, Exec: execID, Boot: m.ch.Boot(), Until: time.Now().Add(ttl)})
	l.guarded = m.guarded
	b.register(l)
	if m.bound {
		l.mark()
	}
	if kind == KindLease {
		if !m.bound {
			p.jobs.Go(l.bind)
		}
		if !p.isPrepared(m) { // it comes from the provider, or left the stock at once
			p.jobs.Go(func() { _, _ = p.spares(p.life, m) }) // its word is one tenant's by now
		}
	}
	p.jobs.Go(l.record)
	return l, nil
}

// acquireMember waits for a sandbox. One whose owner is in doubt is bound before it is
// given to anybody.
func (b *Broker) acquireMember(ctx context.Context, p *pool, bind channel.Bind) (*member, error) {
	for range bindAttempts {
		m, err := p.acquire(ctx)
		if err != nil || !m.contested && b.roster.Current() {
			return m, err
		}
		binding, cancel := context.WithTimeout(p.life, bindTimeout)
		err = m.ch.Bind(binding, bind)
		cancel()
		if err == nil {
			m.bound = true
			return m, nil
		}
		p.log.Info("a sandbox could not be bound", "sandbox", m.sb.ID().Name, "error", err)
		m.ch.Close()
		if channel.IsBoundElsewhere(err) {
			p.forgo(m.sb)
		} else {
			p.release(m.sb)
		}
	}
	return nil, wire.Errorf(wire.CodeUnavailable, "no sandbox could be bound in %d attempts; the broker's log has the reasons", bindAttempts)
}

// notWire makes an error of the platform one that can be told, without its
// details: those are for the log.
func notWire(err error, doing string) error {
	if wire.AsError(err) != nil || isClientGone(err) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &wire.Error{Code: wire.CodeNotReady, Reason: "timeout", Message: doing + " took longer than the pool allows"}
	}
	return wire.Errorf(wire.CodeUnavailable, "%s failed; the broker's log has the reason", doing)
}

func (b *Broker) describe(l *lease, execID string, c Caller) wire.Response {
	h := handle{claim: l.sb.ID().Name, lease: l.id, tenant: l.tenant}
	r := wire.Response{
		Lease:     b.secret.seal(h),
		ExpiresMS: l.until.UnixMilli(), Isolation: l.sb.Info().Isolation, RequestID: c.RequestID,
	}
	if execID != "" {
		h.exec = execID
		r.Exec = b.secret.seal(h)
	}
	if l.kind == KindRun {
		r.DetachGraceMS = l.pool.cfg.DetachGrace.Milliseconds()
	}
	return r
}

// randomID names an exec, a lease, or one start of a broker.
func randomID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	return hex.EncodeToString(b[:])
}

// sum is all that logs and traces ever say of code.
func sum(code []byte) string {
	h := sha256.Sum256(code)
	return hex.EncodeToString(h[:])
}
