package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/localpg"
	"petstore/internal/pgtest/standby"
)

const (
	// replayTimeout is the maximum time for the standby to replay a statement.
	replayTimeout = 20 * time.Second
	// completeAfter is the number of polls after which the primary writes a commit. The WAL
	// writer flushes whole pages, so the position may be within a record of a transaction in
	// progress. The standby replays that record when a commit has flushed the rest.
	completeAfter = 25
	// syncConns is the number of connections to each server that compare positions.
	syncConns = 4
)

// Settings of the primary. A standby receives only WAL that the primary has written, so
// a commit must write it at once. fsync stays off. Every clone of the template forces a
// checkpoint, which would remove WAL that the standby has not received.
var primarySettings = map[string]string{
	"max_connections":    maxConnections,
	"autovacuum":         "off",
	"synchronous_commit": "on",
	"wal_writer_delay":   "10ms",
	"wal_keep_size":      "512MB",
}

// Settings of the standby. With the feedback, the primary keeps the row versions that
// queries on the standby need.
var standbySettings = map[string]string{
	"max_connections":      maxConnections,
	"hot_standby_feedback": "on",
}

// startPair starts a server and its streaming standby from binaries. It returns the two
// URLs on a line each, and a description.
func startPair(ctx context.Context, dir string) (addresses, description string, err error) {
	binaries, err := localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), os.Stderr)
	if err != nil {
		return "", "", err
	}
	dir, err = serverData(dir)
	if err != nil {
		return "", "", err
	}
	primary, err := localpg.Start(ctx, localpg.Options{
		Binaries: binaries, Dir: filepath.Join(dir, "pg"), Detached: true, Settings: primarySettings,
	})
	if err != nil {
		return "", "", err
	}
	second, err := localpg.Start(ctx, localpg.Options{
		Binaries: binaries, Dir: filepath.Join(dir, "standby"), Detached: true, Settings: standbySettings, Copy: standby.Of(primary),
	})
	if err != nil {
		return "", "", errors.Join(err, primary.Stop(ctx))
	}
	return primary.URL("postgres") + "\n" + second.URL("postgres"), binaries.String() + " with a streaming standby (private cluster)", nil
}

// connectReplica prepares the comparison of the positions of both servers.
func (s *server) connectReplica(address string) error {
	replica, err := url.Parse(address)
	if err != nil {
		return err
	}
	s.replica = &replicaServer{url: replica}
	for pool, address := range map[**pgxpool.Pool]string{&s.replica.primary: s.url.String(), &s.replica.standby: address} {
		config, err := pgxpool.ParseConfig(address)
		if err != nil {
			return err
		}
		config.MaxConns = syncConns
		// not with a context that ends with the search for the server
		if *pool, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
			return err
		}
	}
	return nil
}

// replicaServer is the standby of a server, with connections to both.
type replicaServer struct {
	url              *url.URL
	primary, standby *pgxpool.Pool

	mu       sync.Mutex
	replayed string // a position that the standby has replayed, as pg_lsn
}

// await returns when the standby has replayed everything that is committed now. Then a
// server under test reads on the standby what a test has written on the primary.
func (r *replicaServer) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, replayTimeout, fmt.Errorf("the standby is more than %s behind", replayTimeout))
	defer cancel()
	r.mu.Lock()
	replayed := r.replayed
	r.mu.Unlock()
	var position string
	var done bool
	err := r.primary.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text, coalesce(pg_current_wal_flush_lsn() <= nullif($1, '')::pg_lsn, false)", replayed).
		Scan(&position, &done)
	if err == nil && !done {
		err = awaitReplay(ctx, r.primary, r.standby, position)
	}
	if err != nil {
		return fmt.Errorf("waiting for the standby: %w", err)
	}
	r.mu.Lock()
	r.replayed = position
	r.mu.Unlock()
	return nil
}

// awaitReplay waits until a standby has replayed a position of its primary.
func awaitReplay(ctx context.Context, primary *pgxpool.Pool, standby querier, position string) error {
	polls := 0
	return await(ctx, func() (done bool, err error) {
		if polls++; polls == completeAfter {
			_, err = primary.Exec(ctx, "SELECT pg_logical_emit_message(true, 'pgtest', '')")
		}
		if err == nil {
			err = standby.QueryRow(ctx, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position).Scan(&done)
		}
		return done, err
	})
}

// replicas has the ReplicaURL of each database by its URL.
var replicas sync.Map

// ReplicaOf returns the ReplicaURL of the database whose URL this is, or "" if it has none.
func ReplicaOf(databaseURL string) string {
	replica, _ := replicas.Load(databaseURL)
	address, _ := replica.(string)
	return address
}

// databaseURL returns the URL of a database on the standby.
func (r *replicaServer) databaseURL(name string) *url.URL {
	address := *r.url
	address.Path = "/" + name
	return &address
}

// replayTracer waits for the standby after each statement outside of a transaction. It is
// for the pool of a test, which writes past the server and gets no consistency token.
type replayTracer struct{ replica *replicaServer }

// TraceQueryStart does nothing.
func (r replayTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd waits for the standby.
func (r replayTracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryEndData) {
	r.wait(ctx, conn)
}

// TraceBatchStart does nothing.
func (r replayTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery does nothing.
func (r replayTracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd waits for the standby.
func (r replayTracer) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchEndData) {
	r.wait(ctx, conn)
}

// TraceCopyFromStart does nothing.
func (r replayTracer) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	return ctx
}

// TraceCopyFromEnd waits for the standby.
func (r replayTracer) TraceCopyFromEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceCopyFromEndData) {
	r.wait(ctx, conn)
}

func (r replayTracer) wait(ctx context.Context, conn *pgx.Conn) {
	const idle = 'I'
	if conn.IsClosed() || conn.PgConn().TxStatus() != idle {
		return
	}
	if err := r.replica.await(context.WithoutCancel(ctx)); err != nil {
		say(err.Error()) // the reads of the test will show it
	}
}
