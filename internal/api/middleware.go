package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
)

// Keys of values in a gin.Context.
const (
	identityKey     = "identity"
	reservationKey  = "reservation"
	causeKey        = "cause"
	eventKey        = "event"
	limitKey        = "limit"
	cancelKey       = "cancel"
	bodyKey         = "body"
	injectionKey    = "injection"
	optionalBodyKey = "optionalBody"
	connectionKey   = "connection"
	waitedKey       = "waited"
)

// Statuses in the log of a request without a response. nginx uses the same numbers.
const (
	// statusClosed means that a fault closed the connection before the operation.
	statusClosed = 444
	// statusClientGone means that the client disconnected before the response.
	statusClientGone = 499
)

// handler runs the checks that all operations share, then the handler of the
// operation, and writes the error of either.
func (s *Server) handler(r route) gin.HandlerFunc {
	deprecated, operation := s.deprecated[r.method+" "+r.path], s.faults.operations[r.method+" "+r.path]
	return func(c *gin.Context) {
		connection := c.Request.Context()
		ctx, writes := connection, isWrite(c.Request.Method)
		if writes {
			ctx = context.WithoutCancel(ctx) // a write continues when its client disconnects
		}
		ctx, cancel := context.WithTimeout(ctx, s.requestTimeout)
		defer cancel()
		defer cancelExtended(c)
		c.Request = c.Request.WithContext(ctx)

		if !r.readsBody(c.Request.Method) {
			limitUnreadBody(c)
		}
		err := s.sunset(c, deprecated)
		if err == nil {
			err = checkPath(c)
		}
		if err == nil {
			err = s.authorize(c, r)
		}
		if err == nil && r.scope != 0 { // operations without a key use no limited resource
			defer s.limits.release(reservationOf(c))
			if mayWait(r.path) {
				c.Set(connectionKey, connection)
			}
			err = s.injectFault(connection, c, operation)
			ctx = c.Request.Context()                         // with the deadline after a delay
			if err == nil && !r.readsBody(c.Request.Method) { // otherwise after the body has arrived
				err = s.reservePlace(c)
			}
		}
		switch {
		case err != nil:
		case writes:
			err = s.write(c, r)
		default: // a read, which writes no response before it succeeds
			err = s.read(c, r)
		}
		switch {
		case err == nil:
		case errors.Is(err, errConnectionClosed):
			c.Status(statusClosed) // for the log
		case errors.Is(err, errClientGone), errors.Is(ctx.Err(), context.Canceled):
			c.Status(statusClientGone) // for the log
		default:
			limitUnreadBody(c)
			s.writeError(c, err)
		}
	}
}

// checkPath returns [errRouteNotFound] if the path is not text that Postgres can store. Such
// a path has no resource, whatever the operation.
func checkPath(c *gin.Context) error {
	if path := c.Request.URL.Path; !utf8.ValidString(path) || strings.ContainsRune(path, 0) {
		return errRouteNotFound
	}
	return nil
}

// unreadBodyTime is the maximum time that net/http waits for the rest of an unread body
// before it sends the response and can reuse the connection.
const unreadBodyTime = time.Second

// limitUnreadBody limits the time that net/http waits for the rest of a body before it
// sends the response. Otherwise it would wait for its ReadTimeout, so that clients
// without a key could occupy all connections. The next request sets another deadline.
func limitUnreadBody(c *gin.Context) {
	if _, read := c.Get(bodyKey); c.Request.ContentLength != 0 && !read {
		// If this fails, so does the response.
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(unreadBodyTime))
	}
}

// extendDeadline extends the request deadline by the time spent reading the body, or by
// that of an injected delay. The former depends on the client and has its own limit. It
// restarts the write timeout of the HTTP server for the same reason. The context of the
// request becomes a child of the parent.
func extendDeadline(parent context.Context, c *gin.Context, took time.Duration) {
	deadline, _ := c.Request.Context().Deadline()
	ctx, cancel := context.WithDeadline(parent, deadline.Add(took))
	cancelExtended(c)
	c.Set(cancelKey, cancel)
	c.Request = c.Request.WithContext(ctx)
	if limit := writeTimeout(ctx); limit > 0 {
		setWriteDeadline(c, limit)
	}
}

// writeTimeout returns the write timeout of the HTTP server, or 0 if it has none.
func writeTimeout(ctx context.Context) time.Duration {
	if server, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok {
		return server.WriteTimeout
	}
	return 0
}

// setWriteDeadline limits the time from now to send the response. The HTTP server
// must have a WriteTimeout, so that it resets the deadline for the next request.
func setWriteDeadline(c *gin.Context, limit time.Duration) {
	// If this fails, so does the response.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(limit))
}

// cancelExtended cancels the context of extendDeadline, if there is one.
func cancelExtended(c *gin.Context) {
	if cancel, ok := c.Value(cancelKey).(context.CancelFunc); ok {
		cancel()
	}
}

// sunset sets the headers of a deprecated operation. The error is
// [errOperationSunset] after the sunset, if the server enforces it.
func (s *Server) sunset(c *gin.Context, d *deprecation) error {
	if d == nil {
		return nil
	}
	d.announce(c)
	if s.enforceSunset && !s.now().Before(d.end) {
		return errOperationSunset
	}
	return nil
}

// authorize runs the checks that come before parameters, in the order of the API
// reference ("Errors"): API key, rate limit, scope, Accept and Content-Type.
func (s *Server) authorize(c *gin.Context, r route) error {
	if r.scope == 0 {
		return nil
	}
	identity, err := s.authenticate(c)
	if failure, ok := errors.AsType[*httpjson.Error](err); ok {
		return s.limits.countFailure(c, failure)
	}
	if err != nil {
		return err
	}
	c.Set(identityKey, identity)
	if r.bodyOptional() {
		c.Set(optionalBodyKey, true)
	}
	c.Set(reservationKey, &reservation{payer: identity.Payer()})
	if limit, err := s.limits.countRequest(c.Writer.Header(), identity, r.cost(c.Request)); err != nil {
		c.Set(limitKey, limit)
		return err
	}
	s.known(c.Request.Context()) // after the limit, so that a key without tokens protects no connections
	switch {
	case !identity.Scope.Includes(r.scope):
		return errInsufficientScope.WithMessage(fmt.Sprintf("The API key has the scope %s. This operation needs the scope %s.", identity.Scope, r.scope))
	case !httpjson.AcceptsJSON(c.Request.Header) && !acceptsStream(c):
		return httpjson.ErrNotAcceptable
	case r.readsBody(c.Request.Method) && !httpjson.IsJSON(c.Request) && !(r.bodyOptional() && httpjson.HasNoBody(c.Request)):
		return httpjson.ErrUnsupportedContentType
	default:
		return nil
	}
}

// authenticate verifies the API key of the request (RFC 6750, section 2.1).
func (s *Server) authenticate(c *gin.Context) (auth.Identity, error) {
	r := c.Request
	fields := r.Header.Values("Authorization")
	credentials, found := "", false
	for _, field := range fields {
		if scheme, rest, _ := strings.Cut(field, " "); strings.EqualFold(scheme, "Bearer") {
			credentials, found = rest, true
		}
	}
	switch {
	case !found:
		return auth.Identity{}, errMissingAPIKey
	case len(fields) > 1: // ambiguous
		return auth.Identity{}, errInvalidAPIKey
	}
	credentials = strings.Trim(credentials, " ")
	var identity auth.Identity
	err := postgres.RetryRead(r.Context(), func() (err error) {
		identity, err = s.verifier.Verify(r.Context(), credentials, func() (netip.Addr, bool) { return s.limits.overFailureLimit(c) })
		return err
	})
	if errors.Is(err, auth.ErrInvalidKey) {
		return auth.Identity{}, errInvalidAPIKey
	}
	return identity, err
}

// caller returns the identity of the API key. The operation must require a key.
func caller(c *gin.Context) auth.Identity {
	return c.MustGet(identityKey).(auth.Identity) //nolint:forcetypeassert // only authorize sets it
}

// requestIDPattern matches the request ids that the server accepts from a client.
var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// logRequest sets the request id and the headers of every response, and turns a panic
// into a 500. It records the request in the metrics, the trace and one log line.
func (s *Server) logRequest(c *gin.Context) {
	began := time.Now()
	op := s.observed(c)
	op.Start()
	var span *telemetry.Span
	c.Request, span = s.tracer.Request(c.Request, op.Operation)
	id := c.GetHeader("X-Request-Id")
	if !requestIDPattern.MatchString(id) {
		id = rand.Text()
	}
	header := c.Writer.Header()
	header.Set("X-Request-Id", id)
	maps.Copy(header, s.commonHeader)
	maps.Copy(header, s.corsHeaders(c.GetHeader("Origin")))
	// net/http accepts PRI * HTTP/2.0, which no valid request follows.
	if s.shuttingDown.Load() || c.Request.ProtoMajor != 1 {
		header.Set("Connection", "close")
	}

	defer func() {
		panicked := recover()
		if panicked != nil && !c.Writer.Written() {
			s.writeError(c, fmt.Errorf("panic: %v\n%s", panicked, debug.Stack()))
		}
		took := time.Since(began)
		s.recordMetrics(c, op, took)
		injected := injectionOf(c)
		if injected != nil {
			span.Inject(injected.String(), injected.replacesResponse())
		}
		span.End(c.Writer.Status())
		writeLogLine(c, op.log, requestLine{id, span.TraceID(), took})
		switch {
		case injected != nil && injected.Effect == effectClose:
			panic(http.ErrAbortHandler) // close the connection without a response
		case panicked != nil && c.Writer.Status() < http.StatusInternalServerError:
			panic(http.ErrAbortHandler) // part of the response is sent: close the connection
		}
	}()
	c.Next()
}

// requestLine has the attributes of a log line that the gin.Context does not have.
type requestLine struct {
	id, trace string // trace is that of our span, or empty
	took      time.Duration
}

// writeLogLine writes the log line of a request. The log adds method and route.
func writeLogLine(c *gin.Context, log *slog.Logger, line requestLine) {
	level := slog.LevelInfo
	const usual = 5 // slog allocates nothing for so many
	attributes := make([]slog.Attr, 0, usual)
	attributes = append(attributes,
		slog.Int("status", c.Writer.Status()),
		slog.Float64("duration_ms", float64(line.took.Microseconds())/1000),
		slog.String("request_id", line.id))
	if line.trace == "" {
		line.trace = telemetry.TraceID(c.Request)
	}
	if line.trace != "" {
		attributes = append(attributes, slog.String("trace_id", line.trace))
	}
	if identity, known := c.Get(identityKey); known {
		attributes = append(attributes, slog.String("key", identity.(auth.Identity).Prefix)) //nolint:forcetypeassert // only authorize sets it
	}
	if injected := injectionOf(c); injected != nil {
		attributes = append(attributes, slog.String("fault", injected.String()))
	}
	attributes = append(attributes, securityAttributes(c)...)
	if cause, failed := c.Get(causeKey); failed {
		level = slog.LevelError
		attributes = append(attributes, slog.Any("error", cause))
	}
	log.LogAttrs(c.Request.Context(), level, "request", attributes...)
}
