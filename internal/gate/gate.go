// Package gate is everything that happens before and after the handler of an operation. It
// authenticates, limits, injects faults, compresses, logs and counts, lets requests wait, and
// sends streams. It has the operations on the server itself: health, spec and the pages of the
// docs. It knows operations by their attributes (see [Route]), and no resource.
package gate

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/auth"
	"petstore/internal/docs"
	"petstore/internal/exchange"
	"petstore/internal/faults"
	"petstore/internal/feed"
	"petstore/internal/postgres"
	"petstore/internal/ratelimit"
	"petstore/internal/telemetry"
)

// Options are the dependencies and settings of a Gate.
type Options struct {
	DB       *postgres.DB
	Verifier *auth.Verifier
	Log      *slog.Logger
	// Replicas serve the reads of clients that allow it; nil: none.
	Replicas *postgres.Replicas
	// Metrics count the requests; nil: new metrics that nobody reads.
	Metrics *telemetry.Metrics
	// Tracer creates a span for each request; nil: no spans.
	Tracer *telemetry.Tracer

	// BaseURL is the scheme and host at the start of absolute links. If it is empty,
	// links are relative: behind a proxy, the server does not know the scheme that the
	// client used.
	BaseURL string
	// MaxBodyBytes is the maximum size of the body of a request.
	MaxBodyBytes int64
	// RequestTimeout is the maximum time to handle a request, excluding the upload of
	// its body and waits that have a limit of their own.
	RequestTimeout time.Duration
	// StreamPause is the maximum time in which a client of a stream must read what the
	// server has sent; zero: 5 seconds.
	StreamPause time.Duration

	// EnforceSunset ends deprecated operations after the day of their sunset.
	EnforceSunset bool

	// KeyLimit limits the requests of each API key, and AccountLimit the requests of each
	// account together with its sandboxes. FailureLimit limits the failed authentications
	// from each address. Zero: no limit.
	KeyLimit, AccountLimit, FailureLimit ratelimit.Limit
	// TrustedProxies are the addresses and networks (CIDR) whose X-Forwarded-For
	// header the server trusts.
	TrustedProxies []string
	// Known is called with the context of a request when its API key is verified; nil:
	// nobody needs it.
	Known func(context.Context)
	// MaxInFlight is the maximum number of requests with an API key in progress. The
	// server rejects more of them immediately. Zero: the total of [admission.Requests].
	MaxInFlight int
	// MaxConnections is the maximum number of connections of clients. With fewer than by default, the
	// server allows fewer streams, requests that wait and injected delays. Zero: 2000.
	MaxConnections int

	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// SetDefaults sets the options that are nil or zero and have a default. [New] needs them.
func (o *Options) SetDefaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Known == nil {
		o.Known = func(context.Context) {}
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = int(admission.Requests.Total)
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultConnections
	}
	if o.StreamPause == 0 {
		o.StreamPause = defaultStreamPause
	}
	if o.Metrics == nil {
		o.Metrics = telemetry.NewMetrics()
	}
}

// API has the operations and documents behind a Gate.
type API struct {
	Version string // info.version of the spec
	Routes  []Route
	Spec    Spec
	Pages   map[string]*docs.File // of the reference, by path
	Hubs    []*feed.Hub           // in which requests wait
	Faults  *faults.Injector
	// Recorder records the requests of sandboxes; nil: nobody does.
	Recorder *exchange.Recorder
	Locks    *admission.Pool // [Limits.Locks]
}

// Spec is openapi.yaml in the formats that the server returns.
type Spec struct {
	YAML, JSON []byte
	// JSON31 makes the spec in OpenAPI 3.1.
	JSON31 func() ([]byte, error)
}

// Gate is the HTTP handler in front of an API. It is safe for concurrent use.
type Gate struct {
	options Options
	api     API
	queries *db.Queries

	// Limits are the shares and rates of clients.
	Limits *Limits

	uncounted    *ratelimit.Limiter[int64] // by payer: requests in records that count against no rate
	secrets      atomic.Pointer[secrets]   // nil until they are read
	shuttingDown atomic.Bool
	shutDown     chan struct{} // closed when the server shuts down
	schema       schemaChecks
	engine       *gin.Engine
	routes       []Route           // of the API and the server
	patterns     map[string]string // the paths of routes by path in the syntax of gin
	allowed      map[string]string // the headers Allow (RFC 9110, section 10.2.1) by path in the syntax of gin

	// The value of the header API-Version. Requests share it: do not modify.
	apiVersion []string
}

// New returns the Gate of an API. The options must have their defaults. The error is an
// invalid address in TrustedProxies.
func New(options Options, api API) (*Gate, error) {
	g := &Gate{
		options:    options,
		api:        api,
		queries:    db.New(options.DB),
		Limits:     newLimits(options, api.Locks),
		uncounted:  ratelimit.New[int64](options.AccountLimit, options.Now),
		shutDown:   make(chan struct{}),
		apiVersion: []string{api.Version},
	}
	g.routes = slices.Concat(api.Routes, g.ownRoutes(api.Spec))
	g.engine = g.newEngine()
	if err := g.engine.SetTrustedProxies(options.TrustedProxies); err != nil {
		return nil, fmt.Errorf("gate: trusted proxies: %w", err)
	}
	return g, nil
}

// ServeHTTP handles one request.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.engine.ServeHTTP(w, r) }

// ShutDown makes /readyz fail from now on, so that load balancers send no new requests.
// The server still handles requests, and closes the connection after each. Injected
// delays and waits for events end.
func (g *Gate) ShutDown() {
	if g.shuttingDown.CompareAndSwap(false, true) {
		close(g.shutDown)
		for _, hub := range g.api.Hubs {
			hub.Close()
		}
	}
}

// Routes lists every operation, in the order of the spec.
func (g *Gate) Routes() []Route { return g.routes }
