package postgres_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// valueOf returns a setting of the pool's sessions.
func valueOf(t *testing.T, pool *postgres.DB, name string) (value string) {
	t.Helper()
	return pgtest.Read[string](t, pool, "SELECT current_setting($1)", name)
}

// repeatableRead gives a database another isolation level than the pool has. So a role without
// settings lacks all of them.
const repeatableRead = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database()); END $$"

// TestSettingsBehindAPooler: connections work although a pooler refuses startup
// parameters, and the check names exactly what the role lacks.
func TestSettingsBehindAPooler(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it needs the settings of the role without a pooler too, see TestSettingsOfCitus")
	database := pgtest.NewEmpty(t)
	role, roleURL := database.NewRole(t)
	pgtest.Exec(t, database.Pool, repeatableRead)
	if err := open(t, roleURL, 1).CheckSession(t.Context()); err != nil {
		t.Errorf("a direct connection: %v", err)
	}
	pooler := pgtest.StartPooler(t, roleURL)
	exec := []string{"default_query_exec_mode", "exec"}
	pool := open(t, pooler.URL, 2, exec...)
	ours := open(t, pooler.URL, 2, append(exec, "statement_timeout", "1234")...)
	wantMissing := func(pool *postgres.DB, want ...string) {
		t.Helper()
		var got []string
		if err := pool.CheckSession(t.Context()); err != nil {
			got = regexp.MustCompile(`ALTER ROLE [^;]+`).FindAllString(err.Error(), -1)
		}
		need.Same(t, want, got, "statements to run")
	}
	statement := func(name, value string) string {
		return fmt.Sprintf(`ALTER ROLE %q SET %s = '%s'`, role, name, value)
	}
	all := []string{
		statement("default_transaction_isolation", "read committed"), statement("enable_seqscan", "off"), statement("idle_in_transaction_session_timeout", "10s"), statement("jit", "off"),
		statement("lock_timeout", "2s"), statement("statement_timeout", "5s"),
	}
	wantMissing(pool, all...)
	wantMissing(ours, append(all[:5:5], statement("statement_timeout", "1234"))...)
	need.Same(t, all, postgres.RoleSettings(role), "the settings of a role")
	for _, sql := range all[:5] {
		pgtest.Exec(t, database.Pool, sql)
	}
	wantMissing(pool, all[5])
	pgtest.Exec(t, database.Pool, statement("statement_timeout", "5000ms"))
	wantMissing(pool)
	wantMissing(ours, statement("statement_timeout", "1234"))
	if got := valueOf(t, pool, "statement_timeout"); got != "5s" {
		t.Errorf("statement_timeout is %s", got)
	}
}

// TestSettingsOfCitus: on Citus the role needs the settings even without a pooler,
// because workers see no others.
func TestSettingsOfCitus(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	role, roleURL := database.NewRole(t)
	// The table of the distributed tables is enough to look like Citus. On Citus, pgtest
	// gives its databases the settings.
	name := pgx.Identifier{database.Pool.Config().ConnConfig.Database}.Sanitize()
	for _, sql := range []string{"CREATE TABLE pg_dist_partition ()", "ALTER DATABASE " + name + " RESET ALL", repeatableRead} {
		pgtest.Exec(t, database.Pool, sql)
	}
	err := open(t, roleURL, 1).CheckSession(t.Context())
	if err == nil || !strings.Contains(err.Error(), strings.Join(postgres.RoleSettings(role), "; ")) {
		t.Errorf("a role without settings: %v", err)
	}
	for _, sql := range postgres.RoleSettings(role) {
		pgtest.Exec(t, database.Pool, sql)
	}
	if err := open(t, roleURL, 1).CheckSession(t.Context()); err != nil {
		t.Errorf("a role with settings: %v", err)
	}
}

// TestPreparedStatementsBehindAPooler: the check rejects a pool that prepares statements
// which the pooler does not keep. The errors of their statements say the same.
func TestPreparedStatementsBehindAPooler(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	role, roleURL := database.NewRole(t)
	for _, sql := range postgres.RoleSettings(role) {
		pgtest.Exec(t, database.Pool, sql)
	}
	pooler := pgtest.StartPooler(t, roleURL)
	for mode, works := range map[string]bool{"": false, "cache_statement": false, "describe_exec": false, "cache_describe": true, "exec": true, "simple_protocol": true} {
		var parameters []string
		if mode != "" {
			parameters = []string{"default_query_exec_mode", mode}
		}
		err := open(t, pooler.URL, 1, parameters...).CheckSession(t.Context())
		if works != (err == nil) || err != nil && !strings.Contains(err.Error(), "add default_query_exec_mode=exec to DATABASE_URL") {
			t.Errorf("mode %q: %v", mode, err)
		}
		if err := open(t, roleURL, 1, parameters...).CheckSession(t.Context()); err != nil {
			t.Errorf("mode %q without a pooler: %v", mode, err)
		}
	}
	pool := open(t, pooler.URL, 1)
	need.OK(t, pool.Ping(t.Context()))
	_, lost := pool.Inspect(t.Context())
	for _, err := range []error{lost, &pgconn.PgError{Code: "42P05", Message: `prepared statement "stmtcache_1" already exists`}} { // of PgBouncer
		if got := postgres.Explain(err); !strings.Contains(got, "add default_query_exec_mode=exec to DATABASE_URL") {
			t.Errorf("explained as %q: %v", got, err)
		}
	}
}

// TestParameterRefused: a parameter that Petstore cannot set itself is an error that
// says what to do, and not a server that starts.
func TestParameterRefused(t *testing.T) {
	t.Parallel()
	pooler := pgtest.StartPooler(t, shared(t).OwnerURL)
	err := open(t, pooler.URL, 1, "search_path", "elsewhere").Ping(t.Context())
	if got := postgres.Explain(err); postgres.StartingUp(err) || !strings.Contains(got, "search_path; remove it from DATABASE_URL and set it for the role") {
		t.Errorf("explained as %q: %v", got, err)
	}
}

// TestListenerBehindAPooler: the listener does not trust a pooler. Past it, the listener
// is alive only while the pooler leads to the server that it listens to.
func TestListenerBehindAPooler(t *testing.T) {
	t.Parallel()
	url := shared(t).OwnerURL
	pooler := pgtest.StartPooler(t, url)
	pool := open(t, pooler.URL, 4, "default_query_exec_mode", "exec")
	need.OK(t, pool.Ping(t.Context()))
	deaf := listen(t, pool)
	need.Within(t, 30*time.Second, "the pooler is noticed", func() bool { return strings.Contains(deaf.log.String(), "PETSTORE_DIRECT_URL") })
	e := listenAt(t, pool, url)
	await(t, "connected", e.connected)
	await(t, "alive", e.alive)
	pgtest.Exec(t, pool, "SELECT pg_notify($1, 'hello')", channel(t))
	if got := await(t, "notification", e.received); got != "hello" {
		t.Errorf("received %q", got)
	}

	config := need.Value(pgx.ParseConfig(url))(t)
	pooler.LeadTo(t, anotherServer(t, config.Database))
	need.Within(t, 30*time.Second, "the other server is noticed", func() bool { return strings.Contains(e.log.String(), "another server") })
	for len(e.alive) > 0 {
		<-e.alive
	}
	need.Within(t, 30*time.Second, "it tries to listen again", func() bool { return strings.Contains(e.log.String(), "cannot listen") })
	if len(e.alive) > 0 {
		t.Error("it was alive on another server than the pooler's")
	}
	pooler.LeadTo(t, url)
	await(t, "alive on the pooler's server", e.alive)
	if len(deaf.connected)+len(deaf.alive) > 0 {
		t.Error("it listened through the pooler")
	}
	if logged := deaf.log.String(); strings.Count(logged, "\n") != 1 {
		t.Errorf("logged: %s", logged)
	}
}
