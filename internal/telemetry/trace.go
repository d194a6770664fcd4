package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Tracer makes a span of each request, and sends it by OTLP over HTTP. A nil
// Tracer makes none.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// NewTracer returns a Tracer of the program in this version. Where spans go, how
// many, and what else they say of the program is in the OTEL_ variables of the
// process, which the exporter and the SDK read by themselves.
func NewTracer(ctx context.Context, version string, log *slog.Logger) (*Tracer, error) {
	// The SDK tells in no other way that spans cannot be sent.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing failed", "error", err) }))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	program, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName("petstore"), semconv.ServiceVersion(version)),
		resource.WithFromEnv(), // after ours, which it replaces
	)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(program))
	return &Tracer{provider: provider, tracer: provider.Tracer("petstore")}, nil
}

// ShutDown sends the spans that have ended and are still here.
func (t *Tracer) ShutDown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Request begins the span of a request, below the one that its traceparent
// names. The request is to be handled with the context of the one returned.
func (t *Tracer) Request(r *http.Request, o *Operation) (*http.Request, *Span) {
	if t == nil {
		return r, nil
	}
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	// Neither path nor query, address or user agent: what a client writes can be a secret.
	name, attributes := o.Method, []attribute.KeyValue{semconv.HTTPRequestMethodKey.String(o.Method), semconv.URLScheme(scheme)}
	if o.Route != UnmatchedRoute {
		name += " " + o.Route
		attributes = append(attributes, semconv.HTTPRoute(o.Route))
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes...))
	return r.WithContext(ctx), &Span{span}
}

// Span is the time of one request. A nil Span is none.
type Span struct{ span trace.Span }

// TraceID is the id of the trace that the span belongs to; empty without a span.
func (s *Span) TraceID() string {
	if s == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// End ends the span of a request that was answered with this status.
func (s *Span) End(status int) {
	if s == nil {
		return
	}
	s.span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	if status >= http.StatusInternalServerError {
		s.span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(status)))
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
}

// statement begins the span of a statement, if it belongs to a span.
func (t *Tracer) statement(ctx context.Context, name string) (context.Context, trace.Span) {
	if t == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, nil
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		semconv.DBSystemNamePostgreSQL, semconv.DBQuerySummary(name),
	))
}

// failed says on a span why its statement failed: not in the driver's words,
// which can hold values.
func failed(span trace.Span, reason string) {
	span.SetAttributes(semconv.ErrorTypeKey.String(reason))
	span.SetStatus(codes.Error, "")
}
