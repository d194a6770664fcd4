// Package api is the HTTP contract of Petstore: its routes, what it reads and
// what it answers, held to openapi.yaml by the contract test.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/coalesce"
	"petstore/internal/docs"
	"petstore/internal/postgres"
	"petstore/internal/ratelimit"
	"petstore/internal/telemetry"
)

// Version is the version of the API, info.version of the description.
const Version = "1.0.0"

// Options are what a Server needs, and what may be set about it.
type Options struct {
	DB       *postgres.DB
	Verifier *auth.Verifier
	Log      *slog.Logger
	// Metrics count the requests; nil: they are counted for nobody.
	Metrics *telemetry.Metrics
	// Tracer makes a span of each request; nil: there are none.
	Tracer *telemetry.Tracer

	// BaseURL is the scheme and host at the start of absolute links. If it is empty,
	// links are relative to the URL of the request: the server cannot know the scheme
	// that the client used in front of a proxy.
	BaseURL string
	// MaxBodyBytes bounds the body of a request.
	MaxBodyBytes int64
	// RequestTimeout bounds the time that the handling of a request may take, without
	// that in which its body comes.
	RequestTimeout time.Duration

	// CORSOrigins are the origins whose pages may call the API, as browsers write
	// them; empty: all.
	CORSOrigins []string
	// EnforceSunset ends deprecated operations when their sunset is over.
	EnforceSunset bool

	// KeyLimit bounds the requests of each API key, and FailureLimit the failed
	// authentications from each address. Zero: no limit.
	KeyLimit, FailureLimit ratelimit.Limit
	// TrustedProxies are the addresses and networks (CIDR) whose X-Forwarded-For
	// is believed.
	TrustedProxies []string
	// MaxInFlight bounds the requests with an API key that are answered at the
	// same time; more are unavailable at once. Zero: no limit.
	MaxInFlight int

	// Now tells the time; nil: time.Now.
	Now func() time.Time
}

// Server answers the API's requests. It is safe for concurrent use.
type Server struct {
	db       *postgres.DB
	queries  *db.Queries
	writes   *db.Queries // for statements that write
	planned  *db.Queries // for statements that Postgres must plan with their values
	verifier *auth.Verifier
	log      *slog.Logger
	pets     *coalesce.Coalescer[struct{}, int64, *db.Pet]
	orders   *coalesce.Coalescer[int64, db.OrderPlaceParams, db.OrderPlaceRow]
	pages    *coalesce.Coalescer[string, func(context.Context) (madePage, error), madePage]
	counts   *coalesce.Coalescer[string, func(context.Context) (int64, error), int64]
	metrics  *telemetry.Metrics
	tracer   *telemetry.Tracer

	openAPIJSON    document
	openAPIYAML    document
	deprecated     map[string]*deprecation // by method and path
	enforceSunset  bool
	now            func() time.Time
	compressor     *compressor
	cursorKey      sharedKey
	limits         *limits
	base           string
	maxBodyBytes   int64
	requestTimeout time.Duration
	shuttingDown   atomic.Bool
	schema         schemaChecks
	engine         *gin.Engine
	routed         []route
	docs           map[string]*docs.File // the reference page, by path
	allowed        map[string]string     // the Allow field of each path
	operations     map[operation]*telemetry.Operation

	// Header fields, made once: of every answer, of those to an origin beside
	// them, and the Vary of those that come in two codings. They are shared, so
	// their values must not change.
	everyAnswer  http.Header
	answerTo     map[string]http.Header
	varyEncoding []string
}

// New returns a Server. The error is a mistake in the description or its pages,
// which are built in, or a trusted proxy that is none.
func New(options Options) (*Server, error) {
	if options.Now == nil {
		options.Now = time.Now
	}
	s := &Server{
		db:             options.DB,
		queries:        db.New(options.DB),
		writes:         db.New(options.DB.Writing()),
		planned:        db.New(plannedByValues{options.DB}),
		verifier:       options.Verifier,
		log:            options.Log,
		metrics:        options.Metrics,
		tracer:         options.Tracer,
		base:           options.BaseURL,
		maxBodyBytes:   options.MaxBodyBytes,
		requestTimeout: options.RequestTimeout,
		enforceSunset:  options.EnforceSunset,
		now:            options.Now,
		compressor:     newCompressor(),
		limits:         newLimits(options),
	}
	s.pets = newPetReader(s.queries)
	s.orders = newOrderPlacer(s.writes)
	s.pages = newPageMaker()
	s.counts = newCounter()
	if s.metrics == nil {
		s.metrics = telemetry.NewMetrics()
	}
	s.cursorKey.read = func(ctx context.Context) ([]byte, error) { return s.queries.SigningKeyGet(ctx, "cursor") }
	s.schema.ask, s.schema.now = s.db.SchemaIsCurrent, s.now
	s.routed = s.routes()
	var err error
	if s.docs, err = docsFiles(); err != nil {
		return nil, err
	}
	s.allowed = allowedByPath(s.routed, s.docs)
	s.everyAnswer, s.answerTo = corsFields(options.CORSOrigins)
	s.varyEncoding = []string{strings.Join(append(s.everyAnswer["Vary"], "Accept-Encoding"), ", ")}
	s.everyAnswer.Set("API-Version", Version)
	s.everyAnswer.Set("X-Content-Type-Options", "nosniff")

	description, err := describe(options.BaseURL)
	if err != nil {
		return nil, err
	}
	s.openAPIJSON = newDocument(jsonContentType, description.json, s.varyEncoding)
	s.openAPIYAML = newDocument("application/yaml", description.yaml, s.varyEncoding) // RFC 9512
	if s.deprecated, err = deprecations(description.json, options.BaseURL); err != nil {
		return nil, err
	}
	s.engine = s.newEngine()
	if err := s.engine.SetTrustedProxies(options.TrustedProxies); err != nil {
		return nil, fmt.Errorf("api: the trusted proxies: %w", err)
	}
	s.operations = operations(s.engine, s.metrics)
	return s, nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.engine.ServeHTTP(w, r) }

// ShutDown makes the server not ready from now on, so that load balancers send
// nothing new; requests are answered as before, each as the last of its connection.
func (s *Server) ShutDown() { s.shuttingDown.Store(true) }

// Routes lists the method and path pattern of every operation.
func (s *Server) Routes() []Route {
	all := make([]Route, len(s.routed))
	for i, r := range s.routed {
		all[i] = Route{Method: r.method, Path: r.path}
	}
	return all
}

// Route is the method and the path pattern of an operation; {name} stands for
// one segment.
type Route struct{ Method, Path string }
