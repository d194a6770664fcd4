package postgres_test

import (
	"testing"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// TestInspectCountsOthers: a role without pg_read_all_stats counts the sessions of other roles too.
func TestInspectCountsOthers(t *testing.T) {
	t.Parallel()
	const others = 5
	database := pgtest.New(t)
	for range others {
		conn := need.Value(database.Pool.Acquire(t.Context()))(t)
		t.Cleanup(conn.Release)
	}
	_, url := database.NewRole(t)
	pool := open(t, url, 1)
	if pgtest.Read[bool](t, pool, "SELECT pg_has_role('pg_read_all_stats', 'USAGE')") {
		t.Fatal("the role reads all statistics")
	}
	server, err := pool.Inspect(t.Context())
	if err != nil || server.Connections < others+1 || server.Connections > server.MaxConnections {
		t.Errorf("%d of %d connections, want at least %d, %v", server.Connections, server.MaxConnections, others+1, err)
	}
}
