package api_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/api"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
)

// schemaReads counts the statements that read the schema version.
type schemaReads struct{ count atomic.Int64 }

// TraceQueryStart implements pgx.QueryTracer.
func (r *schemaReads) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "goose_db_version") {
		r.count.Add(1)
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (r *schemaReads) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestReadinessQueriesOncePerSecond covers probes in sequence, and concurrent
// probes of a slow database.
func TestReadinessQueriesOncePerSecond(t *testing.T) {
	t.Parallel()
	var reads schemaReads
	clock := &stoppedClock{}
	database := pgtest.New(t)
	pool, err := postgres.Open(t.Context(), database.URL, 16, &reads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p := startOn(t, database).with(func(o *api.Options) { o.DB, o.Now = pool, clock.now }).as("")
	wantReads := func(want int64) {
		t.Helper()
		if got := reads.count.Load(); got != want {
			t.Errorf("the database got %d queries, want %d", got, want)
		}
	}

	for range 5 {
		p.get("/readyz").want(http.StatusOK)
	}
	wantReads(1)
	clock.move(time.Second - 1)
	p.get("/readyz").want(http.StatusOK)
	wantReads(1)
	clock.move(1)
	p.get("/readyz").want(http.StatusOK)
	wantReads(2)

	owner, err := pgx.Connect(t.Context(), database.OwnerURL)
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close(t.Context())
	lock, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "LOCK TABLE goose_db_version"); err != nil {
		t.Fatal(err)
	}
	clock.move(time.Hour)
	var probes sync.WaitGroup
	for range 8 {
		probes.Go(func() { p.get("/readyz").want(http.StatusOK) })
	}
	for again := time.NewTicker(time.Millisecond); reads.count.Load() < 3; <-again.C {
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	probes.Wait()
	wantReads(3)

	clock.move(time.Hour)
	p.server.ShutDown()
	p.get("/readyz").want(http.StatusServiceUnavailable)
	wantReads(3)
}
