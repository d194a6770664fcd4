package main

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// TestServeBehindAPooler: serve says what the role lacks. With those settings it serves,
// and a revoked key stops within a second, with and without a direct URL.
func TestServeBehindAPooler(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its databases have the settings that the role must lack")
	database := pgtest.New(t)
	role, roleURL := database.NewRole(t)
	must(t, []string{"DATABASE_URL=" + database.OwnerURL, "PETSTORE_SERVING_ROLE=" + role}, "migrate", "up")
	pgtest.Exec(t, database.Pool, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database()); END $$")
	pooler := pgtest.StartPooler(t, roleURL)
	environ := []string{"DATABASE_URL=" + pooler.URL + "&default_query_exec_mode=exec", "PETSTORE_ADDR=127.0.0.1:0"}

	settings := postgres.RoleSettings(role)
	wantSentence(t, environ, []string{"serve"}, false, `the database role "`+role+`" lacks settings that a connection pooler or Citus does not pass on; run as its administrator: `+
		strings.Join(settings, "; ")+"; then make the pooler reconnect")
	for _, sql := range settings {
		pgtest.Exec(t, database.Pool, sql)
	}
	wantSentence(t, []string{"DATABASE_URL=" + pooler.URL, "PETSTORE_ADDR=127.0.0.1:0"}, []string{"serve"}, false,
		"the connection pooler does not keep prepared statements; add default_query_exec_mode=exec to DATABASE_URL, or set max_prepared_statements in PgBouncer 1.21 or later")

	for name, more := range map[string][]string{"without a direct URL": nil, "with one": {"PETSTORE_DIRECT_URL=" + roleURL}} {
		t.Run(name, func(t *testing.T) {
			environ := append(more, environ...)
			key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme"))
			p := begin(t, emptyDir, environ, "serve")
			base := p.address()
			const advice = "set PETSTORE_DIRECT_URL"
			switch { // the advice may come before the address
			case more != nil:
				p.awaitListener(database)
			case !strings.Contains(strings.Join(p.output, "\n"), advice):
				p.expect(advice)
			}
			wantStatus(t, base+"/pets", key, http.StatusOK)
			must(t, environ, "key", "revoke", key[:len("petstore_")+8])
			need.Within(t, time.Second, "a revoked key stops", func() bool { return status(t, base+"/pets", key) == http.StatusUnauthorized })
			p.exits(0, syscall.SIGTERM)
		})
	}
}

// awaitListener waits until the program listens for revoked keys.
func (p *process) awaitListener(database *pgtest.Database) {
	p.t.Helper()
	need.Within(p.t, patience, "the program listens", func() (listening bool) {
		return pgtest.Read[bool](p.t, database.Pool, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'petstore listen' AND (query LIKE 'LISTEN%' OR query LIKE '-- ping%'))`)
	})
}

// TestDirectURL: migrate and seed go past a pooler.
func TestDirectURL(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	pooler := pgtest.StartPooler(t, database.OwnerURL)
	environ := []string{"DATABASE_URL=" + pooler.URL}
	for _, args := range [][]string{{"migrate", "up"}, {"migrate", "status"}, {"migrate", "down", "--yes"}, {"migrate", "version"}} {
		wantSentence(t, environ, args, false, "migrations need a connection without a connection pooler; set PETSTORE_DIRECT_URL to a URL without one")
	}
	environ = append(environ, "PETSTORE_DIRECT_URL="+database.OwnerURL)
	must(t, environ, "migrate", "up")
	must(t, environ, "seed", "--account", "acme")
}

// TestRoleSettingsAreDocumented: the script and the page have the statements that a role
// needs behind a pooler.
func TestRoleSettingsAreDocumented(t *testing.T) {
	t.Parallel()
	want := strings.ReplaceAll(strings.Join(postgres.RoleSettings("petstore_serving"), ";\n")+";\n", `"`, "")
	for _, path := range []string{"deploy/postgres/serving-role.sql", "docs/deploying.md"} {
		text := readFile(t, filepath.Join("../..", path))
		got := regexp.MustCompile("(?m)^ALTER ROLE .*\n").FindAllString(text, -1)
		if strings.Join(got, "") != want {
			t.Errorf("%s has\n%swant\n%s", path, strings.Join(got, ""), want)
		}
	}
}
