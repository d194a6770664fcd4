package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/netip"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
)

// Keys of values in a gin.Context.
const (
	identityKey = "identity"
	heldKey     = "held"
	causeKey    = "cause"
	eventKey    = "event"
	cancelKey   = "cancel"
	bodyReadKey = "bodyRead"
)

// statusClientGone is what the log says of a client that left before the answer;
// nginx uses the same number.
const statusClientGone = 499

// endpoint is the way of every request: who asks, may they, can they read the
// answer, is there a body to read; then the operation's handler.
func (s *Server) endpoint(r route) gin.HandlerFunc {
	deprecated := s.deprecated[r.method+" "+r.path]
	return func(c *gin.Context) {
		ctx := c.Request.Context()
		writes := methodHasBody(c.Request.Method) || c.Request.Method == http.MethodDelete
		if writes {
			ctx = context.WithoutCancel(ctx) // a write is not undone by a client that leaves
		}
		ctx, cancel := context.WithTimeout(ctx, s.requestTimeout)
		defer cancel()
		defer cancelExtended(c)
		c.Request = c.Request.WithContext(ctx)

		if !methodHasBody(c.Request.Method) {
			hurryBody(c)
		}
		err := s.sunset(c, deprecated)
		if err == nil {
			err = s.admit(c, r)
		}
		if err == nil && r.scope != 0 { // an operation without a key needs nothing that could run short
			defer s.limits.release(heldBy(c))
			if !methodHasBody(c.Request.Method) { // with a body, once that has arrived
				err = s.enter(c)
			}
		}
		switch {
		case err != nil:
		case writes:
			err = r.handle(c)
		default: // a read, which answers nothing when it fails
			err = postgres.RetryRead(ctx, func() error { return r.handle(c) })
		}
		switch {
		case err == nil:
		case errors.Is(ctx.Err(), context.Canceled):
			c.Status(statusClientGone) // nobody is there to be told
		default:
			hurryBody(c)
			s.fail(c, err)
		}
	}
}

// unreadBodyTime is how long a response waits for the rest of a body that the server
// does not read, so that the connection can be kept.
const unreadBodyTime = time.Second

// hurryBody bounds the time that net/http waits for the rest of a body before it sends
// the response and closes the connection. The bound would otherwise be its ReadTimeout,
// and strangers could hold all connections. The next request sets another deadline.
func hurryBody(c *gin.Context) {
	if c.Request.ContentLength != 0 && !c.GetBool(bodyReadKey) {
		// If this fails, so does the response.
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(unreadBodyTime))
	}
}

// extendDeadline extends the deadline of the request by the time that its body took
// to arrive: that depends on the client, and the HTTP server bounds it. The
// server's time to write begins again, or it would cut off a response that is late
// for that reason.
func (s *Server) extendDeadline(c *gin.Context, took time.Duration) {
	ctx := c.Request.Context()
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(took))
	c.Set(cancelKey, cancel)
	c.Request = c.Request.WithContext(ctx)
	if limit := writeTimeout(ctx); limit > 0 {
		setWriteDeadline(c, limit)
	}
}

// writeTimeout is the time that the HTTP server gives a response; 0: any time.
func writeTimeout(ctx context.Context) time.Duration {
	if server, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok {
		return server.WriteTimeout
	}
	return 0
}

// setWriteDeadline bounds the time from now on to send the response. The HTTP
// server must have a WriteTimeout, which it sets again for the next request.
func setWriteDeadline(c *gin.Context, limit time.Duration) {
	// If this fails, so does the response.
	_ = http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(limit))
}

// cancelExtended frees what extendDeadline took, if it was called.
func cancelExtended(c *gin.Context) {
	if cancel, ok := c.Value(cancelKey).(context.CancelFunc); ok {
		cancel()
	}
}

// sunset announces that an operation is deprecated, if it is, and ends it when
// its time has come.
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

// admit makes the checks that come before any parameter is read, in the order of
// section 3 of the contract.
func (s *Server) admit(c *gin.Context, r route) error {
	if r.scope == 0 {
		return nil
	}
	identity, err := s.authenticate(c)
	if failure, ok := errors.AsType[*problem](err); ok {
		return s.limits.countFailure(c, failure)
	}
	if err != nil {
		return err
	}
	c.Set(identityKey, identity)
	c.Set(heldKey, &held{account: identity.AccountID})
	if err := s.limits.count(c.Writer.Header(), identity, r.cost(c.Request)); err != nil {
		return err
	}
	switch {
	case !identity.Scope.Includes(r.scope):
		return errInsufficientScope.saying(fmt.Sprintf("The API key has the scope %s. This operation needs the scope %s.", identity.Scope, r.scope))
	case !acceptsJSON(c.Request.Header.Values("Accept")):
		return errNotAcceptable
	case methodHasBody(c.Request.Method) && !isJSONContent(c.Request) && !(r.bodyOptional() && hasNoContent(c.Request)):
		return errUnsupportedContent
	default:
		return nil
	}
}

// authenticate finds out whose API key the request carries (RFC 6750, 2.1).
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
	case len(fields) > 1: // which of them would be meant?
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

// caller is whose request it is; the operation must need a key.
func caller(c *gin.Context) auth.Identity {
	return c.MustGet(identityKey).(auth.Identity) //nolint:forcetypeassert // set by admit alone
}

// acceptsJSON reports whether the Accept fields (RFC 9110, 12.5.1) leave room
// for application/json: the most specific range that covers it decides. Ranges
// that cannot be read exclude nothing.
func acceptsJSON(fields []string) bool {
	specificity := map[string]int{"*/*": 1, "application/*": 2, "application/json": 3}
	best, accepted, readable := 0, false, false
	for field := range strings.SplitSeq(strings.Join(fields, ","), ",") {
		mediaRange, parameters, err := mime.ParseMediaType(field)
		if err != nil {
			continue
		}
		readable = true
		if specific := specificity[mediaRange]; specific > best {
			weight, err := strconv.ParseFloat(parameters["q"], 64)
			best, accepted = specific, err != nil || weight > 0
		}
	}
	return accepted || !readable
}

// isJSONContent reports whether the body is declared as this API takes it.
func isJSONContent(r *http.Request) bool {
	types := r.Header.Values("Content-Type")
	if len(types) != 1 || len(r.Header.Values("Content-Encoding")) > 0 {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(types[0])
	return err == nil && (mediaType == jsonContentType ||
		(mediaType == "application/merge-patch+json" && r.Method == http.MethodPatch))
}

// hasNoContent reports whether a request has no body and does not speak of one.
func hasNoContent(r *http.Request) bool {
	return r.ContentLength == 0 && len(r.Header.Values("Content-Type")) == 0 && len(r.Header.Values("Content-Encoding")) == 0
}

// requestIDPattern is what is taken over from a client as the id of a request.
var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// observe gives a request its id and the headers of every answer, turns a panic
// into a 500, and writes the request's one log line.
func (s *Server) observe(c *gin.Context) {
	began := time.Now()
	asked := s.operation(c)
	asked.Began()
	var span *telemetry.Span
	c.Request, span = s.tracer.Request(c.Request, asked)
	id := c.GetHeader("X-Request-Id")
	if !requestIDPattern.MatchString(id) {
		id = rand.Text()
	}
	header := c.Writer.Header()
	header.Set("X-Request-Id", id)
	maps.Copy(header, s.everyAnswer)
	maps.Copy(header, s.answerTo[c.GetHeader("Origin")])
	// net/http lets PRI * HTTP/2.0 pass, and what follows that is no request.
	if s.shuttingDown.Load() || c.Request.ProtoMajor != 1 {
		header.Set("Connection", "close")
	}

	defer func() {
		panicked := recover()
		if panicked != nil && !c.Writer.Written() {
			s.fail(c, fmt.Errorf("panic: %v\n%s", panicked, debug.Stack()))
		}
		took := time.Since(began)
		s.count(c, asked, took)
		span.End(c.Writer.Status())
		s.logRequest(c, id, span.TraceID(), took)
		if panicked != nil && c.Writer.Status() < http.StatusInternalServerError {
			panic(http.ErrAbortHandler) // part of another answer is out: cut it
		}
	}()
	c.Next()
}

func (s *Server) logRequest(c *gin.Context, id, trace string, took time.Duration) {
	level := slog.LevelInfo
	attributes := []slog.Attr{
		slog.String("method", c.Request.Method),
		slog.String("route", c.FullPath()),
		slog.Int("status", c.Writer.Status()),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000),
		slog.String("request_id", id),
	}
	if trace == "" {
		trace = traceID(c.Request.Header.Values("Traceparent"))
	}
	if trace != "" {
		attributes = append(attributes, slog.String("trace_id", trace))
	}
	if identity, known := c.Get(identityKey); known {
		attributes = append(attributes, slog.String("key", identity.(auth.Identity).Prefix)) //nolint:forcetypeassert // set by admit alone
	}
	attributes = append(attributes, securityAttributes(c)...)
	if cause, failed := c.Get(causeKey); failed {
		level = slog.LevelError
		attributes = append(attributes, slog.Any("error", cause))
	}
	s.log.LogAttrs(c.Request.Context(), level, "request", attributes...)
}
