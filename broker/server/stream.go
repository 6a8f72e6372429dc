package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// stream is one request of a client. It implements broker.Stream.
type stream struct {
	sess     *session
	id       uint32
	life     context.Context         //nolint:containedctx // the stream's own, which ends with the connection or its own fault
	drop     context.CancelCauseFunc // ends life
	frames   chan wire.Frame
	canceled chan struct{}
	ended    chan struct{}
	once     sync.Once
}

func newStream(s *session, id uint32) *stream {
	st := &stream{sess: s, id: id, frames: make(chan wire.Frame, frameQueue), canceled: make(chan struct{}), ended: make(chan struct{})}
	st.life, st.drop = context.WithCancelCause(s.life)
	return st
}

// serve runs the request.
func (st *stream) serve(f wire.Frame) {
	req, code, err := wire.ParseRequest(f)
	if err != nil {
		st.fail(err)
		return
	}
	ctx := propagation.TraceContext{}.Extract(st.life, propagation.MapCarrier{"traceparent": req.Traceparent, "tracestate": req.Tracestate})
	caller := broker.Caller{Tenant: st.sess.caller.Tenant, RequestID: requestID()}
	err = st.sess.srv.opts.Broker.Do(ctx, caller, req, code, st)
	if err == nil || errors.Is(err, broker.ErrDetached) || st.sess.life.Err() != nil {
		return
	}
	e := wire.AsError(err)
	if e == nil {
		st.sess.log.Error("request failed", "request", caller.RequestID, "error", err)
		e = wire.Errorf(wire.CodeInternal, "an unexpected failure; the broker's log has the reason")
	}
	answer := *e
	answer.RequestID = caller.RequestID
	// Without the message: it may quote arguments, variables or folders.
	st.sess.log.Info("request refused", "request", caller.RequestID, "code", e.Code, "reason", e.Reason, "field", e.Field, "limit", e.Limit)
	st.fail(&answer)
}

func (st *stream) fail(err error) {
	e := wire.AsError(err)
	if e == nil {
		e = wire.Errorf(wire.CodeInternal, "an unexpected failure")
	}
	_ = st.Send(wire.JSONFrame(wire.KindError, st.id, e)) // a client that is gone needs no answer
}

// deliver queues a frame for the handler. A stream that takes no more fails alone:
// the connection's other streams must not wait for it.
func (st *stream) deliver(f wire.Frame) error {
	if f.Kind == wire.KindCancel {
		st.once.Do(func() { close(st.canceled) })
	}
	select {
	case st.frames <- f:
		return nil
	case <-st.ended:
		return nil
	case <-st.life.Done():
		return nil
	default:
	}
	t := time.NewTimer(dispatchTimeout)
	defer t.Stop()
	select {
	case st.frames <- f:
		return nil
	case <-st.ended:
		return nil
	case <-st.sess.life.Done():
		return broker.ErrDetached
	case <-t.C:
		st.drop(&wire.Error{Code: wire.CodeExhausted, Field: "frame", Limit: frameQueue, Message: "the stream has more frames waiting than it may"})
		return nil
	}
}

// Send implements broker.Stream: a failure is the client's going away.
func (st *stream) Send(f wire.Frame) error {
	f.Stream = st.id
	if err := st.sess.send(f); err != nil {
		st.sess.detach(broker.ErrDetached)
		return errors.Join(broker.ErrDetached, err)
	}
	return nil
}

// Frames implements broker.Stream.
func (st *stream) Frames() <-chan wire.Frame { return st.frames }

// Canceled implements broker.Stream.
func (st *stream) Canceled() <-chan struct{} { return st.canceled }
