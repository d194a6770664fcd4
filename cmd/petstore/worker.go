package main

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"

	"petstore/internal/api"
	"petstore/internal/delivery"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
)

func (p *program) workerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "worker",
		Short: "Deliver webhooks until SIGTERM",
		Long: `Worker delivers events to webhooks until SIGTERM or SIGINT. It serves no
requests. Serve also delivers webhooks, unless PETSTORE_WORKER is false. Any number of
both may run at the same time.`,
		Example: "  DATABASE_URL=postgres://petstore@localhost/petstore petstore worker",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			outliveReaders()
			c, err := p.loadServerConfig(true)
			if err != nil {
				return err
			}
			admin, err := listenAdmin(cmd.Context(), c)
			if err != nil {
				return err
			}
			log, flush := p.logger(c)
			defer flush()
			return unlessStopped(cmd.Context(), work(cmd.Context(), c, log, admin))
		},
	}
}

// work delivers webhooks, and serves the metrics on the admin address, which may be nil,
// until ctx ends. It closes the listener.
func work(ctx context.Context, c config, log *slog.Logger, admin net.Listener) error {
	tuneRuntime(c)
	metrics := newMetrics()
	defer startAdmin(admin, c.adminHosts(), metrics, log)()
	options := apiOptions(c)
	options.Log, options.Metrics = log, metrics
	worker, err := openWorker(ctx, c, options)
	if err != nil {
		return err
	}
	stop := worker.start(ctx)
	log.Info("delivering webhooks", "admin_address", addressOf(admin), "version", version())
	<-ctx.Done()
	stop()
	log.Info("shut down")
	return nil
}

// openedWorker is a worker with its own connection pool.
type openedWorker struct {
	*delivery.Worker

	pool  *postgres.DB
	grace time.Duration
}

func (w *openedWorker) close() { w.pool.Close() }

// start delivers until ctx ends or stop is called, and closes the connections. Stop waits
// until that is done, but not longer than the grace after the end of ctx.
func (w *openedWorker) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	expired, expire := context.WithCancel(context.Background())
	context.AfterFunc(ctx, func() { time.AfterFunc(w.grace, expire) })
	go func() {
		defer expire()
		w.Run(ctx)
		w.close()
	}()
	return func() {
		cancel()
		<-expired.Done()
	}
}

// openWorker returns a worker with the settings of an API. Its pool connects without a
// connection pooler if PETSTORE_DIRECT_URL says how, so that it leaves the connections of
// the pooler to requests.
// When it stops, requests in flight have as much time as those to the API.
func openWorker(ctx context.Context, c config, options api.Options) (*openedWorker, error) {
	direct := c.direct()
	direct.DBMaxConns, direct.application = delivery.Connections, "petstore worker"
	statements := &telemetry.Statements{Log: options.Log, Slow: slowStatement}
	pool, _, err := openDatabase(ctx, direct, options.Log, statements) // the worker itself says if the schema does not fit
	if err != nil {
		return nil, err
	}
	worker := delivery.New(delivery.Options{
		DB: pool, Client: options.Egress.Client(delivery.Timeout), Vault: options.Vault,
		Announce: options.Announce, Grace: c.requestGrace(), Metrics: options.Metrics, Log: options.Log,
	})
	return &openedWorker{worker, pool, c.requestGrace()}, nil
}
