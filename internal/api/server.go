// Package api is the HTTP API of Petstore: routes, middleware and handlers. The
// contract test compares every request and response with openapi.yaml.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/docs"
	"petstore/internal/egress"
	"petstore/internal/feed"
	"petstore/internal/groupcommit"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
	"petstore/internal/ratelimit"
	"petstore/internal/telemetry"
	"petstore/internal/webhook"
)

// Version is the version of the API, info.version of the spec.
const Version = "1.0.0"

// Options are the dependencies and settings of a Server.
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
	// its body.
	RequestTimeout time.Duration

	// CORSOrigins are the origins whose pages may call the API, in the form of the
	// Origin header; empty: all.
	CORSOrigins []string
	// EnforceSunset ends deprecated operations after the day of their sunset.
	EnforceSunset bool

	// KeyLimit limits the requests of each API key, AccountLimit those of each account
	// together with its sandboxes, and FailureLimit the failed authentications from each
	// address. Zero: no limit.
	KeyLimit, AccountLimit, FailureLimit ratelimit.Limit
	// TrustedProxies are the addresses and networks (CIDR) whose X-Forwarded-For
	// header the server trusts.
	TrustedProxies []string
	// Known is called with the context of a request when its API key is verified; nil:
	// nobody needs it.
	Known func(context.Context)
	// MaxInFlight is the maximum number of requests with an API key in progress. The
	// server rejects more of them immediately. Zero: no limit.
	MaxInFlight int

	// Egress decides which URLs webhooks may have; nil: public addresses with https.
	Egress *egress.Guard
	// Vault seals the secrets of webhooks; nil: they are stored as they are.
	Vault *webhook.Vault

	// Announce is called after a commit with events of an account; nil: nobody else needs
	// them.
	Announce func(accountID int64)
	// Deliver is called after a commit that makes deliveries to a webhook due; nil: the
	// worker looks for them itself.
	Deliver func(accountID int64, webhookID string)

	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Server is the handler of the API. It is safe for concurrent use.
type Server struct {
	db        *postgres.DB
	queries   *db.Queries
	writes    *db.Queries        // for statements that write
	replicas  *postgres.Replicas // nil: none
	reads     *db.Queries        // for GET: on the primary or a replica, see Server.read
	planned   *db.Queries        // as reads, for statements that Postgres plans with their values
	verifier  *auth.Verifier
	log       *slog.Logger
	pets      *sharedRead[struct{}, ownPet, *db.Pet]
	committer *groupcommit.Committer // runs the writes of stores
	// pagesOfPets are different pages, by sort.
	pagesOfPets *sharedRead[string, db.PetListParams, []db.Pet]
	pages       *sharedRead[string, func(context.Context) (encodedPage, error), encodedPage]
	counts      *sharedRead[string, func(context.Context) (int64, error), int64]
	feedPages   *sharedRead[string, *feedQuery, feedPage]
	messages    *sharedRead[int64, string, *db.MessageGetManyRow] // by account
	feed        *feed.Hub
	announce    func(accountID int64) // nil: none
	deliver     func(accountID int64, webhookID string)
	known       func(context.Context) // see [Options.Known]
	metrics     *telemetry.Metrics
	tracer      *telemetry.Tracer
	egress      *egress.Guard
	vault       *webhook.Vault

	openAPIJSON    document
	openAPIYAML    document
	deprecated     map[string]*deprecation // by method and path
	enforceSunset  bool
	now            func() time.Time
	compressor     *compressor
	cursorKey      readOnce[[]byte]
	positions      readOnce[*httpjson.Sealer] // seals the positions of writes and pages
	limits         *limits
	faults         *faults
	base           string
	maxBodyBytes   int64
	requestTimeout time.Duration
	streamPause    time.Duration
	shuttingDown   atomic.Bool
	schema         schemaChecks
	engine         *gin.Engine
	routed         []route
	docs           map[string]*docs.File // files of the reference page by path
	allowed        map[string]string     // Allow headers by path
	observedRoutes map[routeKey]observed

	// Headers of every response, and more headers of responses to an origin. Requests share
	// them: do not modify.
	commonHeader http.Header
	corsHeaders  func(origin string) http.Header
}

// setDefaults sets the options that are nil.
func (options *Options) setDefaults() {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Egress == nil {
		options.Egress = egress.New(egress.Options{})
	}
	if options.Vault == nil {
		options.Vault = &webhook.Vault{}
	}
	if options.Deliver == nil {
		options.Deliver = func(int64, string) {}
	}
	if options.Known == nil {
		options.Known = func(context.Context) {}
	}
}

// New returns a Server. The error is an invalid address in TrustedProxies, or a
// mistake in the embedded spec or reference pages.
func New(options Options) (*Server, error) {
	options.setDefaults()
	s := &Server{
		db:             options.DB,
		queries:        db.New(options.DB),
		writes:         db.New(options.DB.Writing()),
		replicas:       options.Replicas,
		reads:          db.New(postgres.Reads{DB: options.DB}),
		planned:        db.New(plannedByValues{postgres.Reads{DB: options.DB}}),
		verifier:       options.Verifier,
		log:            options.Log,
		metrics:        options.Metrics,
		tracer:         options.Tracer,
		base:           options.BaseURL,
		maxBodyBytes:   options.MaxBodyBytes,
		requestTimeout: options.RequestTimeout,
		streamPause:    streamPause,
		enforceSunset:  options.EnforceSunset,
		now:            options.Now,
		compressor:     newCompressor(),
		limits:         newLimits(options, options.DB.LockWaits()),
		egress:         options.Egress,
		vault:          options.Vault,
	}
	s.pets = newPetReader(s.reads)
	s.committer = groupcommit.New(s.db, s.limits.locks)
	s.pages = newPageReader()
	s.pagesOfPets = s.newPageOfPetsReader()
	s.counts = newCounter()
	s.feedPages = s.newFeedReader()
	s.messages = newMessageReader(s.reads)
	s.feed = feed.New(s.queries)
	s.announce, s.deliver, s.known = options.Announce, options.Deliver, options.Known
	if s.metrics == nil {
		s.metrics = telemetry.NewMetrics()
	}
	s.cursorKey.read = func(ctx context.Context) ([]byte, error) { return s.queries.SigningKeyGet(ctx, "cursor") }
	s.positions.read = s.readSealer
	s.schema.query, s.schema.now = s.readSchema, s.now
	s.routed = s.routes()
	var err error
	if s.docs, err = docsFiles(); err != nil {
		return nil, err
	}
	s.allowed = allowedByPath(s.routed, s.docs)
	s.corsHeaders = corsHeaders(options.CORSOrigins)
	s.commonHeader = http.Header{"Vary": {varyOfAll}}
	s.commonHeader.Set("API-Version", Version)
	s.commonHeader.Set("X-Content-Type-Options", "nosniff")

	if err := s.useSpec(options.BaseURL); err != nil {
		return nil, err
	}
	s.engine = s.newEngine()
	if err := s.engine.SetTrustedProxies(options.TrustedProxies); err != nil {
		return nil, fmt.Errorf("api: trusted proxies: %w", err)
	}
	s.observedRoutes = observe(s.engine, s.metrics, s.log)
	return s, nil
}

// useSpec makes everything that follows from the spec.
func (s *Server) useSpec(baseURL string) error {
	document, err := specFor(baseURL)
	if err != nil {
		return err
	}
	s.openAPIJSON = newDocument(httpjson.ContentType, document.json)
	s.openAPIYAML = newDocument("application/yaml", document.yaml) // RFC 9512
	if s.deprecated, err = deprecations(document.operations, baseURL); err != nil {
		return err
	}
	s.faults = newFaults(faultOperations(s.routed, document.operations), s.db, s.queries, s.writes)
	return nil
}

// ServeHTTP handles one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.engine.ServeHTTP(w, r) }

// Announce wakes the requests that wait for events of an account, after a commit with
// events.
func (s *Server) Announce(accountID int64) { s.feed.Announce(accountID) }

// ShutDown makes /readyz fail from now on, so that load balancers send no new requests.
// The server still handles requests, and closes the connection after each. Injected
// delays end.
func (s *Server) ShutDown() {
	if s.shuttingDown.CompareAndSwap(false, true) {
		close(s.faults.shuttingDown)
		s.feed.Close()
	}
}

// Routes lists the method and path pattern of every operation.
func (s *Server) Routes() []Route {
	all := make([]Route, len(s.routed))
	for i, r := range s.routed {
		all[i] = Route{Method: r.method, Path: r.path}
	}
	return all
}

// Route is the method and the path pattern of an operation. A {name} in the pattern
// matches one segment.
type Route struct{ Method, Path string }
