package localpg_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
	"petstore/internal/pgtest"
	"petstore/internal/pgtest/standby"
)

// TestStandby: a standby is read-only, follows its primary also after a restart, and can
// be promoted.
func TestStandby(t *testing.T) {
	t.Parallel()
	primary := start(t, options(t, pgtest.Dir(t)))
	query(t, primary.URL("postgres"), "CREATE TABLE pets AS SELECT 'Bello' AS name")
	options := options(t, pgtest.Dir(t))
	options.Copy = standby.Of(primary)
	copied := start(t, options)
	follows := func(name string) {
		t.Helper()
		query(t, primary.URL("postgres"), "UPDATE pets SET name = '"+name+"' RETURNING name")
		eventually(t, "the standby has "+name, func() bool {
			return query(t, copied.URL("postgres"), "SELECT name FROM pets") == name
		})
	}
	follows("Rex")
	if got := query(t, copied.URL("postgres"), "SELECT pg_is_in_recovery()::text"); got != "true" {
		t.Errorf("the standby is in recovery: %s", got)
	}
	if got := query(t, primary.URL("postgres"), "SELECT count(*)::text FROM pg_replication_slots"); got != "0" {
		t.Errorf("the primary has %s replication slots after the backup", got)
	}

	if err := copied.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	if copied, err = localpg.Start(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = copied.Stop(context.WithoutCancel(t.Context())) })
	follows("Luna")

	if got := query(t, copied.URL("postgres"), "SELECT pg_promote()::text"); got != "true" {
		t.Errorf("pg_promote returns %s", got)
	}
	conn, err := pgx.Connect(t.Context(), copied.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), "UPDATE pets SET name = 'Max'"); err != nil {
		t.Errorf("writing to the promoted standby: %v", err)
	}
}
