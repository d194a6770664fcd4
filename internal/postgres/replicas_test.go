package postgres_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
)

// replicated is a pool of the primary of a pair, with replicas.
type replicated struct {
	*pgtest.Pair

	t        *testing.T
	primary  *postgres.DB
	replicas *postgres.Replicas
}

// openReplicas opens replicas at these URLs and waits until they are in rotation. By
// default, that is the standby.
func openReplicas(t *testing.T, pair *pgtest.Pair, maxLag time.Duration, urls ...string) *replicated {
	t.Helper()
	if len(urls) == 0 {
		urls = []string{pair.Standby.URL}
	}
	r := &replicated{Pair: pair, t: t, primary: open(t, pair.URL, 8)}
	var err error
	r.replicas, err = postgres.OpenReplicas(t.Context(), r.primary, urls, postgres.ReplicaOptions{MaxConns: 4, MaxLag: maxLag, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.replicas.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		r.replicas.Close()
	})
	if _, err := pair.Pool.Exec(t.Context(), "INSERT INTO accounts (id, name) VALUES (1, '0')"); err != nil {
		t.Fatal(err)
	}
	r.awaitRotation(true)
	return r
}

// awaitRotation waits until the first replica is in rotation, or not.
func (r *replicated) awaitRotation(in bool) {
	r.t.Helper()
	eventually(r.t, "the rotation changes", func() bool { return r.replicas.Status(0).InRotation == in })
}

// write changes the name of the account 1, and returns the position after it.
func (r *replicated) write(name string) postgres.Position {
	r.t.Helper()
	_, position, err := postgres.TransactAt(r.t.Context(), r.primary, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		_, err := tx.Exec(ctx, "UPDATE accounts SET name = $1 WHERE id = 1", name)
		return struct{}{}, err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if position == (postgres.Position{}) {
		r.t.Error("the commit has no position")
	}
	return position
}

// read reads the name of the account 1, and who served it.
func (r *replicated) read(after *postgres.Position) (name string, byReplica bool) {
	r.t.Helper()
	err := r.replicas.Read(r.t.Context(), after, func(ctx context.Context) error {
		return postgres.Reads{DB: r.primary}.QueryRow(ctx, "SELECT name, pg_is_in_recovery() FROM accounts WHERE id = $1", 1).Scan(&name, &byReplica)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return name, byReplica
}

// want fails the test unless a read returns a name.
func (r *replicated) want(after *postgres.Position, name string, byReplica bool) {
	r.t.Helper()
	if got, replica := r.read(after); got != name || replica != byReplica {
		r.t.Errorf("the read returns %q, by a replica: %t; want %q, %t", got, replica, name, byReplica)
	}
}

// awaitReplica waits until a replica serves a read, and compares what it returns.
func (r *replicated) awaitReplica(after *postgres.Position, name string) {
	r.t.Helper()
	eventually(r.t, "a replica serves the read", func() bool {
		got, replica := r.read(after)
		if after != nil && got != name {
			r.t.Fatalf("the read returns %q, want %q", got, name)
		}
		return replica && got == name
	})
}

// TestReplicaServesPosition: a replica serves a read only if it includes its position.
func TestReplicaServesPosition(t *testing.T) {
	t.Parallel()
	r := openReplicas(t, pgtest.NewPair(t), time.Hour)
	first := r.write("1")
	r.awaitReplica(&first, "1")
	r.awaitReplica(nil, "1")

	r.Standby.Pause()
	second := r.write("2")
	r.want(&second, "2", false)
	r.want(&first, "1", true)
	r.want(nil, "1", true)
	other := first
	other.Timeline++
	r.want(&other, "2", false)
	r.want(&postgres.Position{}, "2", false)

	r.Standby.Resume()
	r.awaitReplica(&second, "2")
	for reason, atLeast := range map[postgres.ReadReason]uint64{postgres.ReadFresh: 5, postgres.ReadBehind: 1, postgres.ReadTimeline: 2} {
		if got := r.replicas.Reads(reason); got < atLeast {
			t.Errorf("%d reads for the reason %s", got, reason)
		}
	}
}
