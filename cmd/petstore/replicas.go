package main

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"petstore/internal/auth"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
)

// openReplicas opens the read replicas of the configuration. It returns nil if there are
// none. A replica need not run yet.
func openReplicas(ctx context.Context, c config, database *postgres.DB, log *slog.Logger, tracer pgx.QueryTracer) (*postgres.Replicas, error) {
	urls := c.replicaURLs()
	if len(urls) == 0 {
		return nil, nil //nolint:nilnil // documented
	}
	return postgres.OpenReplicas(ctx, database, urls, postgres.ReplicaOptions{
		MaxConns: c.DBMaxConns, MaxLag: c.ReplicaMaxLag, Log: log, Tracers: []pgx.QueryTracer{tracer},
	})
}

// watchDatabase exports the metrics of the database, of its replicas, which may be nil, and of the
// verifier of API keys.
func watchDatabase(metrics *telemetry.Metrics, database *postgres.DB, replicas *postgres.Replicas, verifier *auth.Verifier) {
	metrics.WatchKeys(verifier.Lookups)
	metrics.WatchPool(database.Pool())
	metrics.WatchWrites(database.CanceledWrites)
	if replicas == nil {
		return
	}
	for i, name := range replicas.Names() {
		metrics.WatchReplica(i, name, func() (lag float64, inRotation bool) {
			status := replicas.Status(i)
			return status.Lag, status.InRotation
		})
	}
	for _, reason := range postgres.ReadReasons() {
		metrics.WatchReads(reason == postgres.ReadFresh, string(reason), func() uint64 { return replicas.Reads(reason) })
	}
}
