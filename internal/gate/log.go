package gate

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/telemetry"
)

// Values of headers that all responses share. Do not modify them.
var (
	varyByOrigin = []string{varyOfAll}
	noSniff      = []string{"nosniff"}
)

// requestIDPattern matches the request ids that the server accepts from a client.
var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// logRequest sets the request id and the headers of every response, and turns a panic
// into a 500. It records the request in the metrics, the trace and one log line.
func (g *Gate) logRequest(c *gin.Context) {
	began := time.Now()
	op := g.operation(c)
	g.options.Metrics.Start()
	var span *telemetry.Span
	c.Request, span = g.options.Tracer.Request(c.Request, op)
	state := newRequest(c.Request, began.Add(g.options.RequestTimeout))
	c.Request = c.Request.WithContext(state)
	state.began, state.id = began, c.GetHeader("X-Request-Id")
	if _, err := auth.ParseSecret(state.id); err == nil || !requestIDPattern.MatchString(state.id) { // a key must not be logged
		state.id = rand.Text()
	}
	header := c.Writer.Header()
	header["X-Request-Id"] = []string{state.id}
	header["Vary"], header["Api-Version"], header["X-Content-Type-Options"] = varyByOrigin, g.apiVersion, noSniff
	if c.GetHeader("Origin") != "" {
		maps.Copy(header, corsHeaders)
	}
	g.closeAtShutDown(c)

	defer func() {
		panicked := recover()
		if panicked != nil {
			state.cause = fmt.Errorf("panic: %v\n%s", panicked, debug.Stack())
			if !c.Writer.Written() {
				g.writeError(c, state.cause)
			}
		}
		took := time.Since(began)
		g.recordMetrics(c, op, took)
		injected := state.injected
		if injected != nil {
			span.Inject(injected.String(), injected.replacesResponse())
		}
		span.End(c.Writer.Status())
		g.record(c, took)
		g.writeLogLine(c, op, span.TraceID(), took)
		switch {
		case injected.closes():
			panic(http.ErrAbortHandler) // close the connection without a response
		case panicked != nil && c.Writer.Status() < http.StatusInternalServerError:
			panic(http.ErrAbortHandler) // part of the response is sent: close the connection
		}
	}()
	c.Next()
}

// closeAtShutDown closes the connection after the response if the server shuts down. net/http accepts
// PRI * HTTP/2.0 over HTTP/1.1, which no valid request follows, so that closes it too. Over HTTP/2,
// Connection: close becomes a GOAWAY.
func (g *Gate) closeAtShutDown(c *gin.Context) {
	if g.shuttingDown.Load() || c.Request.Method == "PRI" {
		c.Header("Connection", "close")
	}
}

// writeLogLine writes the log line of a request. The operation has the labels of the metrics. The trace
// is the id of our span, or empty.
func (g *Gate) writeLogLine(c *gin.Context, op telemetry.Operation, trace string, took time.Duration) {
	state, level := requestOf(c), slog.LevelInfo
	const usual = 7 // so many are on the stack, and slog allocates those from the sixth
	attributes := make([]slog.Attr, 0, usual)
	attributes = append(attributes,
		slog.String("method", op.Method),
		slog.String("route", op.Route),
		slog.Int("status", c.Writer.Status()),
		slog.Int64("duration_us", took.Microseconds()), // an integer, because slog leaves floats to the slow encoding/json
		slog.String("request_id", state.id))
	if trace == "" {
		trace = telemetry.TraceID(c.Request)
	}
	if trace != "" {
		attributes = append(attributes, slog.String("trace_id", trace))
	}
	if state.isKnown() {
		attributes = append(attributes, slog.String("key", state.identity.Prefix))
	}
	if state.injected != nil {
		attributes = append(attributes, slog.String("fault", state.injected.String()))
	}
	attributes = append(attributes, securityAttributes(c)...)
	if state.cause != nil {
		level = slog.LevelError
		attributes = append(attributes, slog.Any("error", state.cause))
	}
	if ctx, log := c.Request.Context(), g.options.Log.Handler(); log.Enabled(ctx, level) {
		record := slog.NewRecord(state.began.Add(took), level, "request", 0) // without the place in the code, which takes time
		record.AddAttrs(attributes...)
		_ = log.Handle(ctx, record) // nobody can log that the log fails
	}
}

// Record adds a security event to the log line of the request: a change of an API key, a
// sandbox, a sample or a webhook. docs/observability.md lists the events.
func Record(c *gin.Context, event string, target slog.Attr) {
	state := requestOf(c)
	state.change, state.target = event, target
}

// securityAttributes returns the attributes of the security event of a request, or nil
// if there is none. They are part of its log line, so that a flood of rejected requests
// writes no additional lines.
func securityAttributes(c *gin.Context) []slog.Attr {
	state := requestOf(c)
	event := state.change
	if state.injected != nil && state.injected.replacesResponse() {
		return nil
	}
	switch c.Writer.Status() {
	case http.StatusUnauthorized:
		event = "authentication_failed"
	case http.StatusForbidden:
		event = "access_denied"
	case http.StatusTooManyRequests:
		event = "rate_limited"
	}
	if event == "" {
		return nil
	}
	attributes := []slog.Attr{slog.String("event", event), slog.String("client", clientIP(c))}
	if state.isKnown() {
		identity := state.identity
		attributes = append(attributes, slog.String("account_id", account.PublicID(identity.AccountID, identity.IsSandbox())), slog.Int64("key_id", identity.KeyID))
	}
	if state.change != "" {
		attributes = append(attributes, state.target)
	}
	return attributes
}
