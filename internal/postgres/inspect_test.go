package postgres_test

import (
	"testing"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
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

// TestOverdueWebhooks: a webhook is overdue if its next event is old, whatever came after that. A
// lease from before the clock went back does not count. Nobody delivers for an account that is being deleted.
func TestOverdueWebhooks(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	addOldPartitions(t, database.Pool, 1) // with events 1 and 2 of account 1
	for _, sql := range []string{
		"INSERT INTO accounts (id, name) VALUES (1, 'webhooks'), (2, 'deleted')",
		"INSERT INTO account_state (account_id, last_sequence, last_event_at, closed) VALUES (1, 3, now(), false), (2, 3, now(), true)",
		"INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data) VALUES (1, 3, now(), 0, 'store.reset', '/account', '{}')",
		`INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, lease_until)
		SELECT account_id, 'wh_' || lpad(number::text, 32, '0'), 'https://hook.example', '{*}', '\x00', after, now() + lease::interval
		FROM account_state, (VALUES (1, 0, NULL), (2, 2, NULL), (3, 3, NULL), (4, 0, '1 hour')) AS made (number, after, lease)`,
	} {
		pgtest.Exec(t, database.Pool, sql)
	}
	want := postgres.WebhookState{Enabled: 4, Overdue: 2}
	if got, err := open(t, database.URL, 1).Webhooks(t.Context()); err != nil || got != want {
		t.Errorf("got %+v, want %+v, %v", got, want, err)
	}
}
