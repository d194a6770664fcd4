package api_test

import (
	"bytes"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
)

// TestReady: a server that is ready says so, also to a client with an invalid key.
func TestReady(t *testing.T) {
	t.Parallel()
	p := start(t).as("x")
	for target, want := range map[string]object{
		"/livez":  {"status": "ok"},
		"/readyz": {"status": "ok", "checks": object{"database": "ok", "schema": "ok", "partitions": "ok", "shutdown": "ok"}},
	} {
		resp := p.get(target).want(200)
		need.Same(t, want, decode[object](resp), "%s", target)
		resp.wantHeader("Cache-Control", "no-store")
	}
}

// wantNotReady fails the test unless /readyz returns 503 with these checks and a
// message that contains this text.
func (p *petstore) wantNotReady(message string, checks map[string]string) {
	p.t.Helper()
	resp := p.as("").get("/readyz").wantError(503, "unavailable")
	got := resp.error()
	need.Same(p.t, checks, got.Checks, "checks")
	need.Contains(p.t, "the message", got.Message, message)
	if resp.header.Get("Retry-After") == "" {
		p.t.Error("Retry-After is missing")
	}
	for _, internal := range []string{"SQLSTATE", "dial", "127.0.0.1", "goose", "pool"} {
		if bytes.Contains(resp.body, []byte(internal)) {
			p.t.Errorf("/readyz tells internals: %s", resp.body)
		}
	}
	p.as("").get("/livez").want(200)
}

func TestNotReadyWithoutDatabase(t *testing.T) {
	t.Parallel()
	nobody := need.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	address := nobody.Addr().String()
	nobody.Close()
	away := pgtest.Open(t, "postgres://petstore@"+address+"/petstore?sslmode=disable", 4)
	clock := &stoppedClock{}
	p := startAlone(t).with(func(o *api.Options) { o.Now = clock.now })
	gone := map[string]string{"database": "unavailable", "schema": "unknown", "partitions": "unknown", "shutdown": "ok"}

	rejected := p.with(func(o *api.Options) { o.DB, o.Verifier = away, auth.NewVerifier(db.New(away), db.New(away.Writing())) })
	rejected.wantNotReady("database", gone)
	rejected.get("/pets").wantError(503, "unavailable")

	p.get("/readyz").want(200)
	p.pool.Close()
	clock.move(time.Second)
	p.wantNotReady("database", gone)
}

// TestNotReadyUntilSchemaFits: the server is not ready while its schema lacks migrations, and
// after a migration that its release does not survive. With a newer schema it is ready.
func TestNotReadyUntilSchemaFits(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	clock := &stoppedClock{}
	metrics := telemetry.NewMetrics()
	p := startOn(t, database).with(func(o *api.Options) { o.Now, o.Metrics = clock.now, metrics })
	if text := exposed(t, metrics); strings.Contains(text, "petstore_ready") {
		t.Error("the metrics have petstore_ready before the first probe")
	}
	p.get("/readyz").want(200)
	lock := pgtest.Begin(t, database.Pool)
	pgtest.Exec(t, lock, "LOCK TABLE goose_db_version")
	clock.move(time.Second)
	leave := p.leaving(1, "GET", "/readyz", "", "X-Request-Id", "left")
	need.OK(t, p.awaitWaiting(1))
	leave() // which says nothing about the database
	p.wantLogged("left", logLine{Level: "INFO", Status: 499})
	pgtest.Rollback(t, lock)
	need.Contains(t, "the page of metrics", exposed(t, metrics), "petstore_ready 1\n")
	migrations, err := postgres.OpenMigrations(t.Context(), database.OwnerURL)
	need.OK(t, err)
	defer migrations.Close()
	behind := map[string]string{"database": "ok", "schema": "behind", "partitions": "unknown", "shutdown": "ok"}
	_, err = migrations.Down(t.Context())
	need.OK(t, err)
	clock.move(time.Second)
	p.wantNotReady("petstore migrate up", behind)
	need.Contains(t, "the page of metrics", exposed(t, metrics), "petstore_ready 0\n")
	need.Contains(t, "the log", p.log.String(), `"error":"The database schema is behind.`)
	_, err = migrations.Up(t.Context())
	need.OK(t, err)
	clock.move(time.Second)
	p.get("/readyz").want(200)
	exec := func(sql string) {
		t.Helper()
		pgtest.Exec(t, database.Pool, sql)
		clock.move(time.Second)
	}
	exec("INSERT INTO goose_db_version (version_id, is_applied) SELECT max(version_id) + 1, true FROM goose_db_version")
	p.get("/readyz").want(200)
	exec("DO $$ BEGIN EXECUTE format('COMMENT ON TABLE goose_db_version IS %L', 'supports programs from ' || (SELECT max(version_id) FROM goose_db_version)); END $$")
	p.wantNotReady("Start the release that has migrated it", map[string]string{"database": "ok", "schema": "ahead", "partitions": "unknown", "shutdown": "ok"})
	p.get("/pets").want(200) // only the balancer sends no more requests

	empty := pgtest.Open(t, pgtest.NewEmpty(t).URL, 2)
	p.with(func(o *api.Options) { o.DB = empty }).wantNotReady("petstore migrate up", behind)
}

// TestOlderSchema: while the schema is behind, a statement that it does not know makes the
// server unavailable. No older schema makes an operation fail with 500.
func TestOlderSchema(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	p := startOn(t, database)
	p.oneOfEach()
	migrations := need.Value(postgres.OpenMigrations(t.Context(), database.OwnerURL))(t)
	defer migrations.Close()
	clock := &stoppedClock{}
	unavailable := 0
	for {
		reverted := need.Value(migrations.Down(t.Context()))(t)
		if len(reverted) == 0 {
			break
		}
		clock.move(time.Minute)
		behind := p.with(func(o *api.Options) {
			o.Now = clock.now
			o.Verifier = auth.NewVerifier(db.New(o.DB), db.New(o.DB.Writing()))
		})
		for _, o := range operations() {
			switch resp := behind.ask(o); resp.status {
			case http.StatusInternalServerError:
				t.Errorf("without %s, %s %s: %s", reverted[0].Name, o.method, o.target, resp.body)
			case http.StatusServiceUnavailable:
				unavailable++
			}
		}
	}
	if unavailable == 0 {
		t.Error("every operation works with every schema")
	}
}

// TestMissingPrivileges: while the role lacks a privilege, the server is not ready, and a statement that
// needs it makes the server unavailable.
func TestMissingPrivileges(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	migrations := need.Value(postgres.OpenMigrations(t.Context(), database.OwnerURL))(t)
	defer migrations.Close()
	role, url := database.NewRole(t)
	need.OK(t, migrations.GrantServing(t.Context(), role))
	pgtest.Exec(t, database.Pool, "REVOKE ALL ON messages FROM "+role)
	clock, pool := &stoppedClock{}, pgtest.Open(t, url, 4)
	p := startOn(t, database).with(func(o *api.Options) { o.Now, o.DB = clock.now, pool })
	p.wantNotReady("lacks privileges", map[string]string{"database": "ok", "schema": "denied", "partitions": "unknown", "shutdown": "ok"})
	p.get("/messages").wantError(503, "unavailable")
	p.get("/pets").want(200)
	need.OK(t, migrations.GrantServing(t.Context(), role))
	clock.move(time.Second)
	p.get("/readyz").want(200)
	p.get("/messages").want(200)
}

// dropPartitions drops all partitions of events.
func (p *petstore) dropPartitions() {
	p.t.Helper()
	p.mustBeAlone()
	p.exec("DO $$ DECLARE part regclass; BEGIN FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'events'::regclass LOOP EXECUTE 'DROP TABLE ' || part; END LOOP; END $$")
}

// TestMissingPartitions: writes and the readiness check create the partitions of events that
// are missing. While another transaction prevents it, both return 503. So does the check if it
// cannot create them in time.
func TestMissingPartitions(t *testing.T) {
	t.Parallel()
	clock := &stoppedClock{}
	p := startAlone(t).with(func(o *api.Options) { o.Now = clock.now })
	checks := map[string]string{"database": "ok", "schema": "ok", "partitions": "missing", "shutdown": "ok"}
	pet := p.newPet("Rex", 10)
	made := decode[sandbox](p.post("/sandboxes", object{}).want(201))
	ready := func() { // a check of a busy machine may not have the time to create them all
		t.Helper()
		need.Within(t, 30*time.Second, "the server is ready", func() bool {
			clock.move(time.Second)
			return p.get("/readyz").status == 200
		})
	}
	for _, write := range []func(){
		func() { p.newOrder(pet, 1) },
		func() { p.newCategory("Birds") },
		func() { p.post("/sandboxes", object{}).want(201) },
		func() { p.do("POST", "/sandboxes/"+made.ID+"/reset", nil).want(204) },
		func() { p.as(made.Key.Secret).newCategory("Dragons") },
		ready,
	} {
		p.dropPartitions()
		clock.move(time.Second)
		write()
	}

	p.dropPartitions()
	clock.move(time.Second)
	lock := pgtest.Begin(t, p.db)
	pgtest.Exec(t, lock, "LOCK TABLE events IN SHARE UPDATE EXCLUSIVE MODE")
	p.post("/store/orders", object{"petId": pet}).wantError(503, "unavailable")
	p.do("POST", "/sandboxes/"+made.ID+"/reset", nil).wantError(503, "unavailable")
	p.wantNotReady("partition", checks)
	pgtest.Rollback(t, lock)
	p.newOrder(pet, 1)
	ready()

	p.dropPartitions()
	clock.move(time.Second)
	p.exec("CREATE OR REPLACE FUNCTION maintain_events() RETURNS int LANGUAGE sql AS $$ SELECT 0 FROM pg_sleep(60) $$")
	p.wantNotReady("partition", checks) // it does not say that the database does not respond
}

// TestShutDown: during shutdown the server is not ready, but still handles requests.
func TestShutDown(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.server.ShutDown()
	p.wantNotReady("shutting down", map[string]string{"database": "unknown", "schema": "unknown", "partitions": "unknown", "shutdown": "in progress"})
	p.get("/pets").want(200)
	p.post("/messages", object{"message": "x"}).want(202)
	if !p.get("/livez").want(200).closes {
		t.Error("the connection stays open for another request")
	}
}

// openCounting opens a pool, and counts its statements that contain a text.
func openCounting(t *testing.T, databaseURL, text string) (pool *postgres.DB, count *atomic.Int64) {
	t.Helper()
	count = &atomic.Int64{}
	return pgtest.Open(t, databaseURL, 16, pgtest.Statements(func(sql string, _ []any) {
		if strings.Contains(sql, text) {
			count.Add(1)
		}
	})), count
}

// TestReadinessQueriesOncePerSecond covers probes in sequence, and concurrent probes of a slow database.
func TestReadinessQueriesOncePerSecond(t *testing.T) {
	t.Parallel()
	clock := &stoppedClock{}
	database := pgtest.New(t)
	pool, reads := openCounting(t, database.URL, "goose_db_version")
	p := startOn(t, database).with(func(o *api.Options) { o.DB, o.Now = pool, clock.now }).as("")
	wantReads := func(want int64) {
		t.Helper()
		need.Same(t, want, reads.Load(), "queries that the database got")
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

	lock := pgtest.Begin(t, database.Pool)
	pgtest.Exec(t, lock, "LOCK TABLE goose_db_version")
	clock.move(time.Hour)
	probes := make([]func() *response, 8)
	for i := range probes {
		probes[i] = p.begin("GET", "/readyz", nil)
	}
	for again := time.NewTicker(time.Millisecond); reads.Load() < 3; <-again.C {
	}
	pgtest.Rollback(t, lock)
	for _, receive := range probes {
		receive().want(http.StatusOK)
	}
	wantReads(3)

	clock.move(time.Hour)
	p.server.ShutDown()
	p.get("/readyz").want(http.StatusServiceUnavailable)
	wantReads(3)
}
