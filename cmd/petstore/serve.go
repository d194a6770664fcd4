package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/postgres"
	"petstore/internal/ratelimit"
	"petstore/internal/telemetry"
)

// The limits of a connection. Those of a request begin when its header is read.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 12 * time.Second // begins anew when a body is there
	idleTimeout       = 2 * time.Minute

	// headerSlop is what net/http reads beyond its MaxHeaderBytes. On a connection that
	// was kept alive, it does not count what it had read before the request began, which
	// is as much again at most.
	headerSlop = 4 << 10

	// maxRequestTimeout leaves writeTimeout enough to say that the time is over.
	maxRequestTimeout = writeTimeout - 2*time.Second

	// maxInFlight bounds the requests in progress, of which an account has a quarter:
	// as many as a pool of connections can be expected to work off before its
	// waiters give up.
	maxInFlight = 1024

	// drainDelay is how long connections are taken after readiness has begun to fail,
	// and then how long those that were taken last have for their one request.
	drainDelay = 200 * time.Millisecond

	// The heap of a server that keeps next to nothing is a few megabytes, which
	// Go by default collects a hundred times a second under load. Five times as
	// much took a fifth off the processor time of a list and a tenth off that of a
	// read.
	gcPercent = 400
	// memoryLimit is the heap, in bytes, from which Go collects as often as it must.
	memoryLimit = 192 << 20

	startupInterval = 250 * time.Millisecond

	// slowStatement is how long a statement takes that is logged.
	slowStatement = 500 * time.Millisecond

	// Three steps follow the last request: the times of last use are written, the
	// connections of the database are closed, and the last spans are sent. Each may
	// take closingTimeout, or a sixth of a grace that is short. The grace includes them.
	closingSteps   = 3
	closingTimeout = time.Second
)

// closingTime returns how long each step after the last request may take.
func (c config) closingTime() time.Duration {
	return min(closingTimeout, c.ShutdownGrace/(2*closingSteps))
}

func (p *program) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Answer requests until SIGTERM",
		Long: `Serve answers requests on PETSTORE_ADDR until SIGTERM or SIGINT; then readiness
fails, running requests finish, and the program ends with 0. It never migrates:
while the schema is behind, it is not ready.`,
		Example: "  DATABASE_URL=postgres://petstore@localhost/petstore petstore serve",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.loadConfig(true)
			if err != nil {
				return err
			}
			public, err := listen(cmd.Context(), c.Addr, "PETSTORE_ADDR")
			if err != nil {
				return err
			}
			admin, err := listenAdmin(cmd.Context(), c)
			if err != nil {
				return errors.Join(err, public.Close())
			}
			return serve(cmd.Context(), c, p.logger(c), public, admin)
		},
	}
}

// serve answers requests on the public address, and operators on the admin
// address, which may be nil, until the context ends; then it finishes the requests
// under way. It closes both.
func serve(ctx context.Context, c config, log *slog.Logger, public *listener, admin net.Listener) error {
	defer public.Close()
	if c.GOGC == "" {
		debug.SetGCPercent(gcPercent)
	}
	if c.GOMEMLIMIT == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	metrics := telemetry.NewMetrics()
	metrics.SetVersion(version())
	defer startAdmin(admin, c.adminHosts(), metrics, log)()
	tracer, stopTracer, err := startTracer(ctx, c, log)
	if err != nil {
		return err
	}
	defer stopTracer()
	database, err := openDatabase(ctx, c, log, &telemetry.Statements{Log: log, Slow: slowStatement, Tracer: tracer})
	if err != nil {
		return err
	}
	defer database.Close()
	metrics.WatchPool(database.Pool())
	metrics.WatchWrites(database.CanceledWrites)

	verifier := auth.NewVerifier(db.New(database), db.New(database.Writing()))
	metrics.WatchKeys(verifier.Lookups)
	handler, err := api.New(api.Options{
		DB:             database,
		Verifier:       verifier,
		Log:            log,
		Metrics:        metrics,
		Tracer:         tracer,
		BaseURL:        c.BaseURL,
		MaxBodyBytes:   c.MaxBodyBytes,
		RequestTimeout: c.RequestTimeout,
		CORSOrigins:    c.CORSOrigins,
		EnforceSunset:  c.EnforceSunset,
		KeyLimit:       ratelimit.Limit{PerMinute: c.RateLimit, Burst: c.RateBurst},
		FailureLimit:   ratelimit.Limit{PerMinute: c.AuthFailureLimit, Burst: c.AuthFailureLimit},
		TrustedProxies: c.TrustedProxies,
		MaxInFlight:    maxInFlight,
	})
	if err != nil {
		return err
	}
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	revocations := &postgres.Listener{
		DB:        database,
		Channel:   auth.Channel,
		Connected: verifier.Forget,
		Heard:     func(string) { verifier.Forget() },
		Alive:     verifier.Trust,
		Log:       log,
	}
	var running sync.WaitGroup
	running.Go(func() { _ = revocations.Run(background) }) // ends by being cancelled
	running.Go(func() { handler.SweepIdempotencyKeys(background) })
	running.Go(func() { verifier.RecordUses(background, log) })
	defer func() {
		stopBackground()
		within(c.closingTime(), running.Wait)
	}()

	limited := limitConnections(public, c.MaxConnections)
	metrics.WatchConnections(limited.counts)
	warnOfDescriptors(c, log)
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    c.MaxHeaderBytes - headerSlop,
		ConnState:         limited.track,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),

		DisableGeneralOptionsHandler: true, // ours answers OPTIONS *
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(limited) }()
	log.Info("listening", "address", public.Addr().String(), "admin_address", addressOf(admin), "version", version())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}

	log.Info("shutting down", "grace", c.ShutdownGrace.String())
	if err := shutDown(ctx, c.ShutdownGrace-closingSteps*c.closingTime(), handler, server, public); err != nil {
		return err
	}
	log.Info("shut down")
	return nil
}

// shutDown has a server finish its requests. The error says that they took longer
// than the limit and have been cut off.
func shutDown(ctx context.Context, limit time.Duration, handler *api.Server, server *http.Server, public *listener) error {
	// Not SetKeepAlivesEnabled, which closes the connections that seem idle, also
	// those on which a request is on its way. The handler ends each with its next
	// answer. Shutdown cuts off requests that are read but have no handler yet, so it
	// comes when there can be none.
	handler.ShutDown()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	pause(limited, drainDelay)
	_ = public.drain() // fails where it is closed already
	pause(limited, drainDelay)
	if err := server.Shutdown(limited); err != nil {
		_ = server.Close() // there is nobody left to tell
		return fmt.Errorf("requests were still running after %s and have been cut off; raise PETSTORE_SHUTDOWN_GRACE to give them more time", limit)
	}
	return nil
}

// within waits for an action, but no longer than a limit. The action goes on.
func within(limit time.Duration, action func()) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	go func() {
		action()
		cancel()
	}()
	<-ctx.Done()
}

// pause waits that long, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// startTracer makes the tracer of requests, nil unless the configuration asks for
// one. The function returned sends the spans that are left.
func startTracer(ctx context.Context, c config, log *slog.Logger) (tracer *telemetry.Tracer, stop func(), err error) {
	if !c.Tracing.on() {
		return nil, func() {}, nil
	}
	tracer, err = telemetry.NewTracer(ctx, version(), log)
	if err != nil {
		return nil, nil, err
	}
	return tracer, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.closingTime())
		defer cancel()
		if err := tracer.ShutDown(ctx); err != nil {
			log.Warn("the last spans could not be sent", "error", err)
		}
	}, nil
}

// openDatabase connects to the database. While the server cannot be reached or
// is starting up, it waits as long as PETSTORE_STARTUP_WAIT says.
func openDatabase(ctx context.Context, c config, log *slog.Logger, tracer pgx.QueryTracer) (*postgres.DB, error) {
	database, err := postgres.Open(ctx, c.DatabaseURL, c.DBMaxConns, tracer)
	if err != nil {
		return nil, err
	}
	if err := waitForDatabase(ctx, database, c.StartupWait, log); err != nil {
		database.Close()
		return nil, err
	}
	current, err := database.SchemaIsCurrent(ctx)
	if err != nil {
		database.Close()
		return nil, fmt.Errorf("reading the version of the schema: %w", err)
	}
	if !current {
		log.Warn("the database schema is behind; run `petstore migrate up`")
	}
	return database, nil
}

func waitForDatabase(ctx context.Context, database *postgres.DB, wait time.Duration, log *slog.Logger) error {
	deadline := time.Now().Add(wait)
	for announced := false; ; {
		err := database.Ping(ctx)
		switch {
		case err == nil:
			return nil
		case !postgres.StartingUp(err):
			return err
		case !time.Now().Before(deadline):
			return fmt.Errorf("%w (waited %s, see PETSTORE_STARTUP_WAIT)", plain(err), wait)
		}
		if !announced {
			log.Info("waiting for the database", "at_most", wait.String(), "error", plain(err))
			announced = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(startupInterval):
		}
	}
}
