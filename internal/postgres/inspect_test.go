package postgres_test

import (
	"testing"

	"petstore/internal/pgtest"
)

// TestInspectCountsOthers: a role without pg_read_all_stats counts the sessions of other roles too.
func TestInspectCountsOthers(t *testing.T) {
	t.Parallel()
	const others = 5
	database := pgtest.New(t)
	for range others {
		conn, err := database.Pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Release)
	}
	_, url := database.NewRole(t)
	pool := open(t, url, 1)
	var reads bool
	if err := pool.QueryRow(t.Context(), "SELECT pg_has_role('pg_read_all_stats', 'USAGE')").Scan(&reads); err != nil || reads {
		t.Fatalf("the role reads all statistics: %t, %v", reads, err)
	}
	server, err := pool.Inspect(t.Context())
	if err != nil || server.Connections < others+1 || server.Connections > server.MaxConnections {
		t.Errorf("%d of %d connections, want at least %d, %v", server.Connections, server.MaxConnections, others+1, err)
	}
}
