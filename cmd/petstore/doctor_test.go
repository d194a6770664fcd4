package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/selfsigned"
	"petstore/internal/tools/need"
)

// examine runs doctor --json and returns the findings by check.
func examine(t *testing.T, dir string, environ []string) (map[string]finding, error) {
	t.Helper()
	stdout, _, err := executeIn(t, dir, environ, "", "doctor", "--json")
	var all []finding
	if parseErr := json.Unmarshal([]byte(stdout), &all); parseErr != nil {
		t.Fatalf("doctor --json prints %q: %v, %v", stdout, parseErr, err)
	}
	byCheck := map[string]finding{}
	for _, one := range all {
		byCheck[one.Check] = one
	}
	return byCheck, err
}

// anotherWebhook adds an enabled webhook to a new account. Its secret is not sealed.
const anotherWebhook = `
	WITH account AS (INSERT INTO accounts (name) VALUES ('webhooks') RETURNING id),
	     state AS (INSERT INTO account_state (account_id) SELECT id FROM account)
	INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence)
	SELECT id, 'wh_0123456789abcdef0123456789abcdef', 'https://hook.example', '{*}', decode('00' || repeat('ab', 32), 'hex'), 0 FROM account;`

// aSecretKey is a key for secrets of webhooks.
const aSecretKey = "PETSTORE_SECRET_KEY=YSBrZXkgb2YgYSB2YXVsdCBpbiB0ZXN0cywgMzIgQi4="

// sealedWebhook adds a webhook whose secret is sealed with a key that nobody has.
const sealedWebhook = anotherWebhook + `UPDATE webhooks SET secret = decode('01' || repeat('ab', 64), 'hex');`

// TestDoctor breaks one thing after another and wants its line, and no other wrong line.
func TestDoctor(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "the cases break a database without shards")
	pgtest.Not(t, pgtest.PgBouncer, "the cases bring their own pooler")
	certFile, keyFile := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	need.OK(t, selfsigned.Make(certFile, keyFile, time.Now().Add(certificateAlarm-time.Hour-selfsigned.Validity)))
	unchanged := pgtest.New(t)
	_, stranger := unchanged.NewRole(t)
	for _, test := range []struct {
		check, want string
		variables   []string
		sql         string                    // as the owner
		environ     func(*testing.T) []string // more variables, such as of another database
	}{
		{check: "variables", want: "PETSTORE_RATE_LIMT (did you mean PETSTORE_RATE_LIMIT?)", variables: []string{"PETSTORE_RATE_LIMT=60"}},
		{check: "certificate", want: "renew it", variables: []string{"PETSTORE_TLS_CERT_FILE=" + certFile, "PETSTORE_TLS_KEY_FILE=" + keyFile}},
		{check: "certificate", want: "cannot be read: no such file", variables: []string{"PETSTORE_TLS_CERT_FILE=" + certFile, "PETSTORE_TLS_KEY_FILE=/nowhere"}},
		{check: "database", want: "connection refused", variables: []string{"DATABASE_URL=postgres://localhost:1/petstore"}},
		{check: "database", want: "accepts no writes; name the primary", sql: "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$"},
		{check: "connections", want: "raise max_connections", variables: []string{"PETSTORE_DB_MAX_CONNS=9999"}},
		{check: "connections", want: "0 of 22 are in use; one more process needs up to 23; raise the CONNECTION LIMIT of the role,", environ: func(t *testing.T) []string {
			t.Helper()
			d, role, url := served(t)
			pgtest.Exec(t, d.Pool, "ALTER ROLE "+role+" CONNECTION LIMIT 22")
			return []string{"DATABASE_URL=" + url, "PETSTORE_DB_MAX_CONNS=12"}
		}},
		{check: "connections", want: "raise the CONNECTION LIMIT of the database,", sql: "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 20', current_database()); END $$"},
		{check: "schema", want: "petstore migrate up", sql: "DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)"},
		{check: "schema", want: "petstore migrate up", variables: []string{"DATABASE_URL=" + pgtest.NewEmpty(t).URL}},
		{check: "schema", want: "run `petstore migrate up` as the owner with PETSTORE_SERVING_ROLE set to this role", variables: []string{"DATABASE_URL=" + stranger}},
		{check: "schema", want: "run `petstore migrate up` as the owner with PETSTORE_SERVING_ROLE set to this role", sql: "REVOKE USAGE ON SCHEMA public FROM PUBLIC; " + revokeFrom("USAGE ON SCHEMA public")},
		{check: "schema", want: "start the release that has migrated it", sql: "COMMENT ON TABLE goose_db_version IS 'supports programs from 99999'"},
		{check: "role", want: "can change the schema", variables: []string{"DATABASE_URL=" + unchanged.OwnerURL}},
		{check: "role", want: "lacks 1 privileges, such as DELETE ON pets", sql: revokeFrom("DELETE ON pets")},
		{check: "role", want: "such as INSERT (name) ON pets", sql: revokeFrom("INSERT (name) ON pets")},
		{check: "role", want: "such as USAGE ON SEQUENCE pets_id_seq;", sql: revokeFrom("USAGE ON SEQUENCE pets_id_seq")},
		{check: "role", want: "such as EXECUTE ON FUNCTION maintain_events();", sql: revokeFrom("EXECUTE ON FUNCTION maintain_events()")},
		{check: "partitions", want: "run SELECT maintain_events() as the owner", sql: "DO $$ BEGIN EXECUTE (SELECT string_agg(format('DROP TABLE %s', partition_name), ';') FROM event_partitions() WHERE bounds @> now() + interval '7 days'); END $$"},
		{check: "partitions", want: "events of more than 38 days are kept; end the sessions", sql: "CREATE TABLE events_20260105 PARTITION OF events FOR VALUES FROM ('2026-01-05 00:00:00+00') TO ('2026-01-12 00:00:00+00')"},
		{check: "replicas", want: "it is not a standby", variables: []string{"PETSTORE_REPLICA_URLS=" + unchanged.URL}},
		{check: "replicas", want: "it does not respond: cannot connect to PostgreSQL at localhost:1: connection refused; check that it runs there, or correct PETSTORE_REPLICA_URLS;", variables: []string{"PETSTORE_REPLICA_URLS=postgres://localhost:1/petstore"}},
		{check: "secret key", want: "PETSTORE_SECRET_KEY is not set", sql: anotherWebhook, variables: []string{"PETSTORE_WORKER=false"}},
		{check: "secret key", want: "that do not open: 1; the first: the secret of wh_0123456789abcdef0123456789abcdef is sealed with a key that is not in PETSTORE_SECRET_KEY; add that key", sql: sealedWebhook, variables: []string{aSecretKey, "PETSTORE_WORKER=false"}},
		{check: "secret key", want: "is sealed with a key that is not in PETSTORE_SECRET_KEY", sql: sealedWebhook, variables: []string{"PETSTORE_WORKER=false"}},
		{
			check: "webhooks", want: "reaches no host of webhooks: https://hook.example (the URL must have a host name that resolves to a public address); allow connections",
			sql: anotherWebhook, variables: []string{aSecretKey},
		},
		{check: "pooler", want: "DATABASE_URL leads through a connection pooler", environ: throughPooler(func(*pgtest.Pooler, string) string { return "" })},
		{check: "pooler", want: "PETSTORE_DIRECT_URL: the connection leads through a connection pooler", environ: throughPooler(func(p *pgtest.Pooler, _ string) string { return p.URL })},
		{check: "pooler", want: "connection refused; check that it runs there, or correct PETSTORE_DIRECT_URL", variables: []string{"PETSTORE_DIRECT_URL=postgres://localhost:1/x"}},
		{check: "pooler", want: "PETSTORE_DIRECT_URL: the connection leads to another server or database", variables: []string{"PETSTORE_DIRECT_URL=" + need.Value(pgtest.Shared())(t).URL}},
		{check: "pooler", want: "; correct the user in PETSTORE_DIRECT_URL", variables: []string{"PETSTORE_DIRECT_URL=" + unchanged.OwnerURL}},
		{check: "settings", want: "lacks settings that a connection pooler or Citus does not pass on", environ: func(t *testing.T) []string {
			t.Helper()
			_, _, url := served(t)
			return []string{"DATABASE_URL=" + pgtest.StartPooler(t, url).URL + "&default_query_exec_mode=exec", "PETSTORE_DIRECT_URL=" + url}
		}},
	} {
		t.Run(test.check+" "+test.want, func(t *testing.T) {
			t.Parallel()
			database := unchanged
			if test.sql != "" {
				database = pgtest.New(t)
				pgtest.Exec(t, database.Pool, test.sql)
			}
			environ := append([]string{"DATABASE_URL=" + database.URL}, test.variables...)
			if test.environ != nil {
				environ = append(environ, test.environ(t)...)
			}
			found, err := examine(t, t.TempDir(), environ)
			if err == nil || !strings.Contains(err.Error(), "1 of ") {
				t.Errorf("the error is %v", err)
			}
			for check, one := range found {
				switch {
				case check == test.check && (one.OK || !strings.Contains(one.Message, test.want)):
					t.Errorf("got %+v, want %q", one, test.want)
				case check != test.check && !one.OK:
					t.Errorf("also wrong: %+v", one)
				}
			}
		})
	}
}

// revokeFrom is the SQL that revokes a privilege from the serving role.
func revokeFrom(privilege string) string {
	return "DO $$ BEGIN EXECUTE (SELECT format('REVOKE " + privilege + " FROM %I', grantee) FROM information_schema.role_table_grants WHERE table_name = 'pets' AND privilege_type = 'DELETE' AND grantee <> current_user); END $$"
}

// served returns a database and a role of its own, which has the privileges of a server.
func served(t *testing.T) (d *pgtest.Database, role, roleURL string) {
	t.Helper()
	d = pgtest.New(t)
	role, roleURL = d.NewRole(t)
	must(t, []string{"DATABASE_URL=" + d.OwnerURL, "PETSTORE_SERVING_ROLE=" + role}, "migrate", "up")
	return d, role, roleURL
}

// throughPooler leads to a pooler, with the settings of the role and a direct URL, or none.
func throughPooler(direct func(p *pgtest.Pooler, roleURL string) string) func(*testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		d, role, url := served(t)
		for _, sql := range postgres.RoleSettings(role) {
			pgtest.Exec(t, d.Pool, sql)
		}
		p := pgtest.StartPooler(t, url)
		return []string{"DATABASE_URL=" + p.URL + "&default_query_exec_mode=exec", "PETSTORE_DIRECT_URL=" + direct(p, url)}
	}
}

// TestDoctorFindsNothing: all is well in a new database, and in the one of dev.
func TestDoctorFindsNothing(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	out := must(t, []string{"DATABASE_URL=" + database.URL, "PETSTORE_DIRECT_URL=" + database.DirectURL}, "doctor")
	if strings.Contains(out, "WRONG") || strings.Count(out, "\nok     ") < 8 {
		t.Errorf("doctor prints:\n%s", out)
	}
	if pgtest.Is(pgtest.PgBouncer) && !strings.Contains(out, "transaction mode") {
		t.Errorf("behind PgBouncer, doctor prints:\n%s", out)
	}
	if !pgtest.Is(pgtest.PgBouncer) && !pgtest.Is(pgtest.Citus) {
		environ := throughPooler(func(_ *pgtest.Pooler, url string) string { return url })(t)
		wantText(t, environ, "transaction mode; PETSTORE_DIRECT_URL leads around it", "doctor")
	}
	dir := pgtest.Dir(t)
	p := begin(t, dir, []string{"DATABASE_URL=" + pgtest.New(t).OwnerURL, "PETSTORE_ADDR=127.0.0.1:0"}, "dev")
	p.expect("listening")
	found, err := examine(t, dir, nil)
	if err != nil || !found["disk"].OK || !strings.Contains(found["role"].Message, "has the privileges") {
		t.Errorf("beside dev: %v, %+v", err, found)
	}
	wantSentence(t, nil, []string{"doctor"}, false, "DATABASE_URL must be set to the URL of a PostgreSQL database, such as postgres://user:password@host:5432/petstore, because petstore dev runs in no folder from here upwards")
}

// TestDoctorWithoutStandby: doctor says that commits wait for a synchronous standby.
func TestDoctorWithoutStandby(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.NewCluster(t) // the setting affects all databases of a cluster
	pgtest.Exec(t, database.Pool, "ALTER SYSTEM SET synchronous_standby_names = 'away'")
	pgtest.Exec(t, database.Pool, "SELECT pg_reload_conf()")
	serving := need.Value(pgx.Connect(t.Context(), database.URL))(t)
	var commits sync.WaitGroup
	commits.Go(func() { // commits until a commit waits
		var err error
		for i := 0; err == nil; i++ {
			_, err = serving.Exec(t.Context(), "INSERT INTO accounts (name) VALUES ($1)", fmt.Sprint(i))
		}
	})
	need.Within(t, patience, "doctor finds the commit that waits", func() bool {
		found, _ := examine(t, t.TempDir(), []string{"DATABASE_URL=" + database.URL})
		return strings.Contains(found["standby"].Message, "1 commits wait for a synchronous standby")
	})
	pgtest.Exec(t, database.Pool, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	commits.Wait()
}

// TestDoctorReachesWebhooks: doctor connects to the hosts of webhooks and sends no request. It
// names a host that does not respond, and is content with the others. It does not count the webhook of an
// account that is being deleted.
func TestDoctorReachesWebhooks(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	connected := make(chan bool, 10)
	receiver := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	receiver.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connected <- true
		}
	}
	receiver.Start()
	t.Cleanup(receiver.Close)
	closed := "http://127.0.0.1:" + pgtest.FreePort(t)
	database := pgtest.New(t)
	for i, url := range []string{receiver.URL + "/one", receiver.URL + "/two", closed + "/three?secret=hunter2"} {
		id := fmt.Sprintf("wh_%032d", i)
		sql := strings.NewReplacer("'webhooks'", "'"+id+"'", "wh_0123456789abcdef0123456789abcdef", id, "https://hook.example", url,
			"account_state (account_id) SELECT id", "account_state (account_id, closed) SELECT id, "+fmt.Sprint(i == 0)).Replace(anotherWebhook)
		pgtest.Exec(t, database.Pool, sql)
	}
	environ := []string{"DATABASE_URL=" + database.URL, "PETSTORE_DIRECT_URL=" + database.DirectURL, "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8", aSecretKey}
	found, err := examine(t, t.TempDir(), environ)
	message := found["webhooks"].Message
	if err != nil || !strings.Contains(message, "2 are enabled; this machine does not reach "+closed+" (dial tcp "+strings.TrimPrefix(closed, "http://")+": connect: connection refused): start them") || strings.Contains(message, receiver.URL) {
		t.Errorf("%v: %+v", err, found["webhooks"])
	}
	select {
	case <-connected:
	case <-time.After(patience):
		t.Error("doctor did not connect")
	}
	receiver.Close() // waits for requests
	if requests.Load() > 0 {
		t.Errorf("doctor sent %d requests", requests.Load())
	}
}

// TestDoctorLimits has the checks of things that a test cannot change: clocks, disks and networks.
func TestDoctorLimits(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-2 * time.Second, 2 * time.Second} {
		d := &diagnosis{server: postgres.Server{Skew: skew, Error: time.Millisecond}}
		if _, err := d.clock(t.Context()); err == nil || !strings.Contains(err.Error(), "differ by 2s; run NTP") {
			t.Errorf("a skew of %s: %v", skew, err)
		}
	}
	d := &diagnosis{server: postgres.Server{Skew: 2 * time.Second, Error: 3 * time.Second}}
	if _, err := d.clock(t.Context()); err != nil {
		t.Errorf("a skew within its error: %v", err)
	}
	if _, err := diskMessage(devDir, leastDisk-1); err == nil || !strings.Contains(err.Error(), "1023 MiB free; delete something") {
		t.Errorf("a full disk: %v", err)
	}
	for _, test := range []struct {
		used                     int
		worker, isPooled, isFull bool
	}{
		{used: 87},
		{used: 88, isFull: true},
		{used: 77, worker: true},
		{used: 78, worker: true, isFull: true},
		{used: 99, isPooled: true},
		{used: 100, isPooled: true, isFull: true},
		{used: 89, worker: true, isPooled: true},
		{used: 90, worker: true, isPooled: true, isFull: true},
	} {
		d := &diagnosis{c: config{DBMaxConns: 12, Worker: test.worker}, server: postgres.Server{Connections: test.used, MaxConnections: 100, IsPooled: test.isPooled}}
		if message, err := d.connections(t.Context()); (err != nil) != test.isFull {
			t.Errorf("%+v: %q, %v", test, message, err)
		}
	}
	for address, want := range map[string]bool{"203.0.113.1": true, "10.1.2.3": false, "127.0.0.1": false, "::1": false, "2001:db8::1": true, "fd00::1": false} {
		if got := isPublic(&net.TCPAddr{IP: net.ParseIP(address)}); got != want {
			t.Errorf("isPublic(%s) = %t", address, got)
		}
	}
}
