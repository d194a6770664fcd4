package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/gate"
	"petstore/internal/listener"
	"petstore/internal/postgres"
	"petstore/internal/ratelimit"
	"petstore/internal/sleep"
	"petstore/internal/telemetry"
	"petstore/internal/upkeep"
)

// Timeouts of a connection. Those of a request start when its header has been read.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	idleTimeout       = 2 * time.Minute

	// maxRequestTimeout leaves time to send the timeout error. The time to write restarts when
	// the body has been read.
	maxRequestTimeout = listener.WriteTimeout - 2*time.Second

	// drainDelay is how long the server accepts connections after readiness starts
	// to fail, and then how long the last connections have to send their request.
	drainDelay = 200 * time.Millisecond

	// The heap of this server is a few megabytes, which Go by default collects
	// about 100 times a second under load. GOGC 400 saves 20% of the CPU time of a
	// list and 10% for a read.
	gcPercent = 400
	// memoryLimit is the memory in bytes from which Go collects garbage more often.
	memoryLimit = 192 << 20

	startupInterval = 250 * time.Millisecond

	// slowStatement is the minimum duration of a logged statement.
	slowStatement = 500 * time.Millisecond

	// Shutdown has three steps after the last request: write the last-used times,
	// close the database connections, and export the remaining spans. Each may take
	// closingTimeout, or a sixth of a short grace period. The grace period includes
	// them.
	closingSteps   = 3
	closingTimeout = time.Second
)

// closingTime returns the maximum duration of each step after the last request.
func (c config) closingTime() time.Duration {
	return min(closingTimeout, c.ShutdownGrace/(2*closingSteps))
}

// requestGrace returns the time that requests in flight have at the shutdown.
func (c config) requestGrace() time.Duration { return c.ShutdownGrace - closingSteps*c.closingTime() }

func (p *program) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Serve requests until SIGTERM",
		Long: `Serve serves requests on PETSTORE_ADDR until SIGTERM or SIGINT. Then readiness
fails, running requests finish, and the program exits with 0. It never migrates:
while the schema does not fit, the server is not ready.`,
		Example: "  DATABASE_URL=postgres://petstore@localhost/petstore petstore serve",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			outliveReaders()
			c, err := p.loadServerConfig(true)
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
			log, flush := p.logger(c)
			defer flush()
			return unlessStopped(cmd.Context(), serve(cmd.Context(), c, log, public, admin))
		},
	}
}

// unlessStopped returns nil if a signal has ended the start of a server, or else the error.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// serve serves the API on the public address and the metrics on the admin address,
// which may be nil, until ctx ends. It then finishes the requests in progress. It
// closes both listeners.
func serve(ctx context.Context, c config, log *slog.Logger, public *listener.Listener, admin net.Listener) error {
	defer public.Close()
	tuneRuntime(c)
	cert, err := openCertificate(c)
	if err != nil {
		return err
	}
	metrics := newMetrics()
	defer startAdmin(admin, c.adminHosts(), metrics, log)()
	tracer, stopTracer, err := startTracer(ctx, c, log)
	if err != nil {
		return err
	}
	defer stopTracer()
	database, replicas, err := openStores(ctx, c, log, &telemetry.Statements{Log: log, Slow: slowStatement, Tracer: tracer})
	if err != nil {
		return err
	}
	defer sleep.AtMost(c.closingTime(), func() { replicas.Close(); database.Close() })
	verifier := auth.NewVerifier(db.New(database), db.New(database.Writing()))
	watchDatabase(metrics, database, replicas, verifier)
	options := apiOptions(c)
	options.DB, options.Replicas, options.Verifier = database, replicas, verifier
	options.Log, options.Metrics, options.Tracer, options.Known = log, metrics, tracer, listener.Keep
	handler, deliver, err := newHandler(ctx, c, options)
	if err != nil {
		return err
	}
	_ = database.MaintainEvents(ctx) // before the server is ready; upkeep logs the error
	defer deliver(ctx)()
	stop := startBackground(ctx, c.closingTime(),
		func(ctx context.Context) { upkeep.Run(ctx, database, log, upkeep.Tasks(database, c.vault)) },
		func(ctx context.Context) { _ = revocations(database, c.DirectURL, verifier, log).Run(ctx) }, // ends when canceled
		replicas.Run,
		func(ctx context.Context) { database.FollowNodes(ctx, log) },
		func(ctx context.Context) { verifier.RecordUses(postgres.ForAllAccounts(ctx), log) },
		handler.Record,
	)
	defer stop()

	limited := listener.Limit(public, c.MaxConnections)
	watchListener(metrics, limited, cert)
	server := newHTTPServer(c, handler)
	failed := make(chan error, 1)
	defer startBackground(ctx, c.closingTime(), func(ctx context.Context) { cert.follow(ctx, log) })()
	go func() { failed <- limited.Serve(server, cert.config(), log) }()
	log.Info("listening", "address", public.Addr().String(), "tls", cert != nil, "admin_address", addressOf(admin), "version", version())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}

	log.Info("shutting down", "grace", c.ShutdownGrace.String())
	if err := shutDown(ctx, c.requestGrace(), handler, server, public); err != nil {
		return err
	}
	log.Info("shut down")
	return nil
}

// watchListener exports the connections and, with HTTPS, the end of the certificate.
func watchListener(metrics *telemetry.Metrics, limited *listener.Limited, cert *certificate) {
	metrics.WatchConnections(limited.Counts)
	if cert != nil {
		metrics.WatchCertificate(cert.end)
	}
}

// openStores opens the database and its replicas.
func openStores(ctx context.Context, c config, log *slog.Logger, statements *telemetry.Statements) (database *postgres.DB, replicas *postgres.Replicas, err error) {
	database, fit, err := openDatabase(ctx, c, log, statements)
	if err != nil {
		return nil, nil, err
	}
	if problem := fit.Problem(); problem != "" {
		log.Warn("the server is not ready", "reason", problem)
	}
	if replicas, err = openReplicas(ctx, c, database, log, statements); err != nil {
		database.Close()
		return nil, nil, err
	}
	return database, replicas, nil
}

// listen listens on the address that a variable sets.
func listen(ctx context.Context, addr, variable string) (*listener.Listener, error) {
	l, err := listener.Listen(ctx, addr)
	if err == nil {
		return l, nil
	}
	why := whyNoResponse(err, 0)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		why = "another program listens there"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why = "this machine does not have that address"
	}
	return nil, fmt.Errorf("cannot listen on %s: %s; set %s to another address", addr, why, variable)
}

// newMetrics returns metrics with the version of the program.
func newMetrics() *telemetry.Metrics {
	metrics := telemetry.NewMetrics()
	metrics.SetVersion(version())
	return metrics
}

// newHandler returns the handler of the API, and a function that delivers webhooks until its
// context ends or stop is called. Without PETSTORE_WORKER, that does nothing.
func newHandler(ctx context.Context, c config, options api.Options) (handler *api.Server, deliver func(context.Context) (stop func()), err error) {
	if !c.Worker {
		handler, err = api.New(options)
		return handler, func(context.Context) func() { return func() {} }, err
	}
	// The API and the worker tell each other about new events.
	workers := options
	workers.Announce = func(accountID int64) { handler.Announce(accountID) }
	worker, err := openWorker(ctx, c, workers)
	if err != nil {
		return nil, nil, err
	}
	options.Announce, options.Deliver = worker.Wake, worker.Deliver
	if handler, err = api.New(options); err != nil {
		worker.close()
	}
	return handler, worker.start, err
}

// tuneRuntime sets the defaults of the Go runtime for serve.
func tuneRuntime(c config) {
	if c.GOGC == "" {
		debug.SetGCPercent(gcPercent)
	}
	if c.GOMEMLIMIT == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}

// apiOptions returns the options of the API that the configuration sets.
func apiOptions(c config) api.Options {
	return api.Options{Options: gate.Options{
		BaseURL:        c.BaseURL,
		MaxBodyBytes:   c.MaxBodyBytes,
		RequestTimeout: c.RequestTimeout,
		EnforceSunset:  c.EnforceSunset,
		KeyLimit:       c.keyLimit(),
		AccountLimit:   c.accountLimit(),
		FailureLimit:   ratelimit.Limit{PerMinute: c.AuthFailureLimit, Burst: c.AuthFailureLimit},
		TrustedProxies: c.TrustedProxies,
		MaxConnections: c.MaxConnections,
	}, Egress: c.guard(), Vault: c.vault}
}

// revocations returns the listener that makes the verifier forget keys that change, and
// all keys after a connect. It connects to the URL, or to the database if the URL is empty.
func revocations(database *postgres.DB, url string, verifier *auth.Verifier, log *slog.Logger) *postgres.Listener {
	return &postgres.Listener{
		DB:        database,
		URL:       url,
		Channel:   auth.Channel,
		Connected: verifier.Forget,
		Heard:     verifier.Heard,
		Alive:     verifier.Trust,
		Log:       log,
	}
}

// startBackground starts tasks that end when their context does, but not when ctx does.
// The function that it returns stops them and waits up to the limit.
func startBackground(ctx context.Context, limit time.Duration, tasks ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, task := range tasks {
		running.Go(func() { task(ctx) })
	}
	return func() {
		cancel()
		sleep.AtMost(limit, running.Wait)
	}
}

// newHTTPServer returns a server with timeouts.
func newHTTPServer(c config, handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    c.MaxHeaderBytes,

		DisableGeneralOptionsHandler: true, // the API handles OPTIONS *
	}
}

// shutDown waits for the requests of a server. It returns an error if they took
// longer than the limit and were cut off.
func shutDown(ctx context.Context, limit time.Duration, handler *api.Server, server *http.Server, public *listener.Listener) error {
	// SetKeepAlivesEnabled would also close seemingly idle connections with a
	// request on the way. Instead the handler closes each connection with its next
	// response. Shutdown cuts off requests that are read but not handled yet, so it
	// comes last, when there are none.
	handler.ShutDown()
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	sleep.For(limited, drainDelay)
	_ = public.Drain() // fails if it is already closed
	sleep.For(limited, drainDelay)
	if err := server.Shutdown(limited); err != nil {
		_ = server.Close() // the error cannot be reported
		return fmt.Errorf("requests were still running after %s and have been cut off; raise PETSTORE_SHUTDOWN_GRACE to give them more time", limit)
	}
	return nil
}

// startTracer returns the tracer, or nil if tracing is off. The returned function
// exports the remaining spans.
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

// openDatabase connects to the database, and returns whether the schema fits. It checks the session, so
// serve does not start behind a connection pooler that drops settings.
func openDatabase(ctx context.Context, c config, log *slog.Logger, tracer pgx.QueryTracer) (*postgres.DB, postgres.SchemaFit, error) {
	database, err := postgres.OpenAs(ctx, cmp.Or(c.application, "petstore"), c.DatabaseURL, c.DBMaxConns, tracer)
	if err != nil {
		return nil, "", err
	}
	fit, err := waitForDatabase(ctx, database, c, log)
	if err != nil {
		database.Close()
		return nil, "", err
	}
	return database, fit, nil
}

// waitForDatabase checks the database. It waits at most PETSTORE_STARTUP_WAIT while the server is
// unreachable, starting or full, or its schema is locked.
func waitForDatabase(ctx context.Context, database *postgres.DB, c config, log *slog.Logger) (postgres.SchemaFit, error) {
	deadline := time.Now().Add(c.StartupWait)
	for announced := false; ; {
		var fit postgres.SchemaFit
		err := database.Ping(ctx) // does not wait long, so that the log says early that serve waits
		if err == nil {
			fit, err = checkDatabase(ctx, database)
		}
		err = c.named(err)
		switch {
		case err == nil:
			return fit, nil
		case ctx.Err() != nil:
			return "", ctx.Err()
		case !postgres.StartingUp(err) && !postgres.IsLockTimeout(err):
			return "", err
		case !time.Now().Before(deadline):
			return "", fmt.Errorf("%w (waited %s, see PETSTORE_STARTUP_WAIT)", plain(err), c.StartupWait)
		}
		if !announced {
			log.Info("waiting for the database", "at_most", c.StartupWait.String(), "error", plain(err))
			announced = true
		}
		sleep.For(ctx, startupInterval)
	}
}

// checkDatabase checks the session of connections, and reads whether the schema fits.
func checkDatabase(ctx context.Context, database *postgres.DB) (postgres.SchemaFit, error) {
	if err := database.CheckSession(ctx); err != nil {
		return "", err
	}
	return database.SchemaFit(ctx)
}
