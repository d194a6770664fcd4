package gate

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
)

// request has the state of a request from its header to its log line. It is the context of
// the request. That of a write continues when its client disconnects.
type request struct {
	deadline

	id       string // X-Request-Id
	began    time.Time
	identity auth.Identity // zero before the API key is verified
	reserved reservation
	// connection ends when the client disconnects. It has no deadline and reads from the
	// primary.
	connection   context.Context //nolint:containedctx // of the request that it is about
	route        Route
	body         []byte // after it was read
	bodyRead     bool
	injected     *injection      // nil: no fault
	waited       time.Duration   // for a change or for events
	received     time.Duration   // the time in which the body came
	cause        error           // of a 5xx
	change       string          // a security event; "": none
	target       slog.Attr       // of the change
	limitReached telemetry.Limit // that refused the request; "": none
	code         string          // of the error response; "": none
	sent         *captured       // the response, if it is recorded
}

type requestKey struct{}

// newRequest returns the state of a request that must end at a time.
func newRequest(r *http.Request, at time.Time) *request {
	ctx := r.Context()
	state := &request{connection: ctx, deadline: deadline{Context: ctx, at: at}}
	if isWrite(r.Method) {
		state.Context = context.WithoutCancel(ctx)
	}
	return state
}

// Value returns a value of the context. The request is one itself.
func (r *request) Value(key any) any {
	if key == (requestKey{}) {
		return r
	}
	return r.deadline.Value(key)
}

// scope tells the database which nodes of a cluster the request needs.
func (r *request) scope(d *postgres.DB, route Route) {
	if d.NodeOf(r.identity.AccountID) == nil {
		return
	}
	scope := func(ctx context.Context) context.Context { return d.ForAccounts(ctx, r.identity.AccountID) }
	if route.has(AllNodes) {
		scope = postgres.ForAllAccounts
	}
	r.connection, r.Context = scope(r.connection), scope(r.Context)
	r.move(r.at)
}

// requestOf returns the state of a request.
func requestOf(c *gin.Context) *request {
	return c.Request.Context().Value(requestKey{}).(*request) //nolint:forcetypeassert // logRequest sets it
}

// isKnown reports whether the API key is verified.
func (r *request) isKnown() bool { return r.identity.KeyID != 0 }

// Caller returns the identity of the API key. The operation must require a key.
func Caller(c *gin.Context) auth.Identity { return requestOf(c).identity }

// Statuses in the log of a request without a response. nginx uses the same numbers.
const (
	// statusClosed means that a fault closed the connection before the operation.
	statusClosed = 444
	// statusClientGone means that the client disconnected before the response.
	statusClientGone = 499
)

// Errors that end a request without a response.
var (
	errConnectionClosed = errors.New("gate: a fault closes the connection")
	errClientGone       = errors.New("gate: the client has disconnected")
)

// handler runs the checks that all operations share, then the handler of the
// operation, and writes the error of either.
func (g *Gate) handler(r Route) gin.HandlerFunc {
	deprecated := newDeprecation(r.Deprecated, g.options.BaseURL)
	return func(c *gin.Context) {
		r, deprecated := r, deprecated
		if matchedPath(c) == "" {
			r, deprecated = Route{Handle: g.notFound}, nil
		}
		state := requestOf(c)
		state.route = r
		defer state.stop()

		if !r.has(Body) {
			limitUnreadBody(c)
			defer limitUnreadBody(c) // again, because the handler may take longer
		}
		err := g.sunset(c, deprecated)
		if unknown := checkPath(c); unknown != nil {
			err = unknown
		}
		if err == nil {
			err = g.authorize(c, r)
		}
		if err == nil && r.Scope != 0 { // operations without a key use no limited resource
			defer state.reserved.release()
			err = g.injectFault(c)
			if err == nil && !r.has(Body) { // otherwise after the body has arrived
				err = state.reserved.take(c.Request.Context(), g.Limits.requests, 1)
			}
		}
		switch {
		case err != nil:
		case isWrite(c.Request.Method):
			err = g.write(c, r)
		default:
			err = g.read(c, r) // it writes no response before it succeeds
		}
		switch {
		case err == nil:
		case errors.Is(err, errConnectionClosed):
			c.Status(statusClosed) // for the log
		case errors.Is(err, errClientGone), errors.Is(state.Err(), context.Canceled):
			c.Status(statusClientGone) // for the log
		default:
			limitUnreadBody(c)
			g.writeError(c, err)
		}
	}
}

// read runs the handler of a GET. It is the only place that chooses where a request reads.
// By default, the statements of [postgres.Reads] run on the primary. With the preference they run on
// a replica, if one includes the position of the client. The handler may run several times, until it
// has waited.
func (g *Gate) read(c *gin.Context, r Route) error {
	ctx, state := c.Request.Context(), requestOf(c)
	value, preferred := "", false
	if g.options.Replicas != nil && r.Scope != 0 {
		if value, preferred = httpjson.Preference(c.Request.Header, consistencyPreference); !preferred {
			g.options.Replicas.ServedByDefault()
		}
	}
	handle := func() error {
		err := r.Handle(c)
		if err != nil { // it has sent nothing
			c.Writer.Header().Del("Preference-Applied")
		}
		if state.waited > 0 && postgres.ConnectionLost(err) { // a second run would wait again, for something later
			state.cause, err = err, ErrUnavailable
		}
		return err
	}
	if !preferred {
		return postgres.RetryRead(ctx, handle)
	}
	after, err := g.WantedPosition(ctx, value)
	if err != nil {
		return err
	}
	return g.options.Replicas.Read(ctx, after, func(ctx context.Context) error {
		c.Request = c.Request.WithContext(ctx)
		httpjson.ApplyPreference(c.Writer.Header(), consistencyPreference+"="+value)
		return handle()
	})
}

// write runs the handler of a write. If the response needs a token, it first gets the key,
// so that a write that has committed does not fail.
func (g *Gate) write(c *gin.Context, r Route) error {
	if g.options.Replicas != nil && r.Scope != 0 {
		if _, err := g.sharedSecrets(c.Request.Context()); err != nil {
			return err
		}
	}
	return r.Handle(c)
}

// isWrite reports whether requests with this method change something.
func isWrite(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch || method == http.MethodDelete
}

// checkPath returns [ErrRouteNotFound] if the path is not text that Postgres can store. Such
// a path has no resource, whatever the operation.
func checkPath(c *gin.Context) error {
	if path := c.Request.URL.Path; !utf8.ValidString(path) || strings.ContainsRune(path, 0) {
		return ErrRouteNotFound
	}
	return nil
}
