package sandboxclient

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const tracerName = "github.com/sandbox-broker/sandbox-broker/sandboxclient"

// startSpan starts a client span. Code, arguments and environment are not among
// the attributes: of code there is the SHA-256 and the size.
func (c *Client) startSpan(ctx context.Context, name, pool string, p *wire.Program, code []byte) (context.Context, trace.Span) {
	ctx, span := c.tracer.Start(ctx, "sandboxclient."+name, trace.WithSpanKind(trace.SpanKindClient))
	if !span.IsRecording() {
		return ctx, span
	}
	if pool != "" {
		span.SetAttributes(attribute.String("sandbox.pool", pool))
	}
	if p != nil && p.Language != "" {
		sum := sha256.Sum256(code)
		span.SetAttributes(
			attribute.String("sandbox.language", p.Language),
			attribute.String("sandbox.code.sha256", hex.EncodeToString(sum[:])),
			attribute.Int("sandbox.code.size", len(code)),
		)
	}
	return ctx, span
}

// injectTrace carries the caller's trace to the broker.
func injectTrace(ctx context.Context, req *wire.Request) {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	req.Traceparent, req.Tracestate = carrier["traceparent"], carrier["tracestate"]
}

// endExecSpan ends the span of a program. A program that fails is not an error
// of the call, but its ending is told; early is what went wrong on this side.
func endExecSpan(span trace.Span, r streamResult, early, err error) {
	if r.ending != nil {
		span.SetAttributes(
			attribute.String("sandbox.ending.reason", string(r.ending.Reason)),
			attribute.Int("sandbox.ending.exit_code", r.ending.ExitCode),
		)
	}
	var exit *ExitError
	if errors.As(err, &exit) {
		err = early
	}
	endSpan(span, r, err)
}

// endSpan ends the span of a call.
func endSpan(span trace.Span, r streamResult, err error) {
	if r.response != nil && r.response.RequestID != "" {
		span.SetAttributes(attribute.String("sandbox.request_id", r.response.RequestID))
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
