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

// Tracer creates a span for each request and exports it with OTLP over HTTP. A nil
// Tracer does nothing.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// NewTracer returns a Tracer for this version of the program. The exporter and the
// SDK read the OTEL_ environment variables, which set the endpoint, the sampling
// and further resource attributes.
func NewTracer(ctx context.Context, version string, log *slog.Logger) (*Tracer, error) {
	// The SDK reports export failures only to this handler.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing failed", "error", err) }))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	program, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName("petstore"), semconv.ServiceVersion(version)),
		resource.WithFromEnv(), // last, so that it overrides ours
	)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(program))
	return &Tracer{provider: provider, tracer: provider.Tracer("petstore")}, nil
}

// ShutDown exports the remaining spans.
func (t *Tracer) ShutDown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Request starts the span of a request, as a child of the span in its traceparent
// header. Handle the request with the context of the returned request.
func (t *Tracer) Request(r *http.Request, o Operation) (*http.Request, *Span) {
	if t == nil {
		return r, nil
	}
	ctx := withParent(r)
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	// No path, query, address or user agent: they can contain secrets.
	name, attributes := o.Method, []attribute.KeyValue{semconv.HTTPRequestMethodKey.String(o.Method), semconv.URLScheme(scheme)}
	if o.Route != UnmatchedRoute {
		name += " " + o.Route
		attributes = append(attributes, semconv.HTTPRoute(o.Route))
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes...))
	return r.WithContext(ctx), &Span{span: span}
}

// maxTraceState is the number of bytes from which on withParent ignores a tracestate.
const maxTraceState = 4 << 10

// withParent returns the context of a request with the span in its traceparent header.
func withParent(r *http.Request) context.Context {
	carrier := propagation.MapCarrier{"traceparent": r.Header.Get("Traceparent")}
	if state := r.Header.Get("Tracestate"); len(state) < maxTraceState {
		carrier["tracestate"] = state
	}
	return propagation.TraceContext{}.Extract(r.Context(), carrier)
}

// TraceID returns the trace ID in the traceparent header of a request (W3C Trace
// Context), or "" if there is not exactly one valid header.
func TraceID(r *http.Request) string {
	if len(r.Header["Traceparent"]) != 1 {
		return ""
	}
	id := trace.SpanContextFromContext(withParent(r)).TraceID()
	if !id.IsValid() {
		return ""
	}
	return id.String()
}

// Span is the span of one request. A nil Span does nothing.
type Span struct {
	span trace.Span
	// injectedError is whether a fault replaced the response, which is not an error of the
	// server.
	injectedError bool
}

// TraceID returns the trace ID of the span, or "" for a nil Span.
func (s *Span) TraceID() string {
	if s == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Inject records a fault of a sandbox. If it replaced the response, the span is not one
// of a failed request.
func (s *Span) Inject(fault string, replacedResponse bool) {
	if s == nil {
		return
	}
	s.span.SetAttributes(attribute.String("petstore.fault", fault))
	s.injectedError = replacedResponse
}

// End ends the span of a request with the status of its response.
func (s *Span) End(status int) {
	if s == nil {
		return
	}
	s.span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	if status >= http.StatusInternalServerError && !s.injectedError {
		s.span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(status)))
		s.span.SetStatus(codes.Error, "")
	}
	s.span.End()
}

// statement starts the span of a statement, if its context has a recording span.
func (t *Tracer) statement(ctx context.Context, name func() string) (context.Context, trace.Span) {
	if t == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, nil
	}
	summary := name()
	return t.tracer.Start(ctx, summary, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		semconv.DBSystemNamePostgreSQL, semconv.DBQuerySummary(summary),
	))
}

// failed records why a statement failed, without the text of the driver, which can
// contain values.
func failed(span trace.Span, reason string) {
	span.SetAttributes(semconv.ErrorTypeKey.String(reason))
	span.SetStatus(codes.Error, "")
}
