// Package telemetry sets up what the broker tells the outside: logs, traces and
// metrics. Code, output and tokens are in none of them.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/sandbox-broker/sandbox-broker/internal/version"
)

// Logger writes JSON lines.
func Logger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// Quiet is log with every level made Debug: for a library whose errors are
// reported where they matter and are noise where it logs them.
func Quiet(log *slog.Logger) *slog.Logger { return slog.New(quiet{log.Handler()}) }

type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(a)} }
func (q quiet) WithGroup(n string) slog.Handler      { return quiet{q.Handler.WithGroup(n)} }

// Traces exports spans by OTLP over HTTP if the environment names a collector
// (OTEL_EXPORTER_OTLP_ENDPOINT and its kin, OpenTelemetry's "OTLP Exporter
// Configuration"); else it does nothing. The function returned flushes and stops.
func Traces(ctx context.Context) (stop func(context.Context) error, err error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return func(context.Context) error { return nil }, nil
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("telemetry: preparing the trace exporter: %w", err)
	}
	res, err := resource.New(ctx, resource.WithFromEnv(), resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "sandbox-broker"), attribute.String("service.version", version.String())))
	if err != nil {
		return nil, fmt.Errorf("telemetry: describing this process: %w", err)
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	otel.SetTracerProvider(p)
	return p.Shutdown, nil
}

// Metrics is a registry with the process's own metrics, and its handler.
func Metrics() (*prometheus.Registry, http.Handler) {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r, promhttp.HandlerFor(r, promhttp.HandlerOpts{Registry: r})
}
