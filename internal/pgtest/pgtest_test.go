package pgtest_test

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
	"petstore/migrations"
)

const (
	// failEnv makes TestDatabasesAreSeparate fail at its end.
	failEnv = "PGTEST_TEST_FAILS"
	// noMigrationsEnv makes every template fail.
	noMigrationsEnv = "PGTEST_TEST_NO_MIGRATIONS"
	// noEngine makes a run start a private cluster.
	noEngine = "DOCKER_HOST=unix:///nowhere.sock"
)

func TestMain(m *testing.M) {
	if os.Getenv(noMigrationsEnv) != "" {
		migrations.FS = embed.FS{}
	}
	os.Exit(pgtest.Run(m.Run))
}

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	one, other, empty := pgtest.New(t), pgtest.New(t), pgtest.NewEmpty(t)
	t.Logf("url=%s", one.OwnerURL)
	need.Value(one.Pool.Exec(t.Context(), "CREATE TABLE mine (id int)"))(t)
	const tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename = 'mine', tablename"
	others := pgtest.List[string](t, other.Pool, tables)
	checkReplica(t, one)
	if !slices.Contains(others, "pets") {
		t.Errorf("the tables of a migrated database are %v", others)
	}
	need.Same(t, append(others, "mine"), pgtest.List[string](t, one.Pool, tables), "the tables of one database")
	if got := pgtest.List[string](t, empty.Pool, tables); len(got) != 0 {
		t.Errorf("an empty database has %v", got)
	}
	shared, err := pgtest.Shared()
	again, againErr := pgtest.Shared()
	if err != nil || againErr != nil || shared != again || shared.OwnerURL == one.OwnerURL {
		t.Fatalf("the shared database is %+v and then %+v, %v", shared, again, err)
	}
	need.Same(t, others, pgtest.List[string](t, shared.Pool, tables), "the tables of the shared database")
	// without it, the server could stop, or another process drop these databases
	if locks := pgtest.List[string](t, one.Pool, "SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted"); len(locks) == 0 {
		t.Error("this process does not hold the lock of the server's users")
	}
	if os.Getenv(failEnv) != "" {
		t.Errorf("%s is set", failEnv)
	}
}

// checkReplica checks that the serving role reads on the standby what the owner has just
// written. Only the engine [pgtest.Replica] has one.
func checkReplica(t *testing.T, database *pgtest.Database) {
	t.Helper()
	if pgtest.Is(pgtest.Replica) != (database.ReplicaURL != "") {
		t.Fatalf("the URL of the standby is %q, on the engine replica: %t", database.ReplicaURL, pgtest.Is(pgtest.Replica))
	}
	if !pgtest.Is(pgtest.Replica) {
		return
	}
	replica := need.Value(pgxpool.New(t.Context(), database.ReplicaURL))(t)
	defer replica.Close()
	const who = "SELECT unnest(ARRAY[pg_is_in_recovery()::text, session_user])"
	if got := pgtest.List[string](t, replica, who); got[0] != "true" || !strings.HasSuffix(got[1], "_serving") {
		t.Errorf("pg_is_in_recovery() and the user of the standby are %v", got)
	}
	for i := range 20 {
		name := fmt.Sprintf("account %d", i)
		need.Value(database.Pool.Exec(t.Context(), "INSERT INTO accounts (name) VALUES ($1)", name))(t)
		if found := pgtest.List[string](t, replica, "SELECT name FROM accounts WHERE name = $1", name); len(found) != 1 {
			t.Errorf("%s is missing on the standby", name)
		}
	}
}

// TestReplicaEngine runs a test on a server with a standby. Both end when they are idle.
func TestReplicaEngine(t *testing.T) {
	t.Parallel()
	user := newUser(t, "PETSTORE_TEST_IDLE=500ms", "PETSTORE_TEST_ENGINE=replica", noEngine)
	if result := user.mustRun(); !strings.Contains(result.output, "with a streaming standby") {
		t.Errorf("no line about the standby in:\n%s", result.output)
	}
	user.waitForEnd()
	if result := user.run("PETSTORE_TEST_DATABASE_URL=postgres://localhost"); result.passed || !strings.Contains(result.output, "unset PETSTORE_TEST_DATABASE_URL") {
		t.Errorf("with a foreign server:\n%s", result.output)
	}
}

func TestMigrationsHash(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, files := range []fstest.MapFS{
		{"1.sql": {Data: []byte("a")}},
		{"1.sql": {Data: []byte("b")}},
		{"2.sql": {Data: []byte("a")}},
		{"1.sql": {Data: []byte("a")}, "2.sql": {}},
	} {
		hash := pgtest.MigrationsHash(files)
		if seen[hash] {
			t.Errorf("the hash of %v is %q again", files, hash)
		}
		seen[hash] = true
	}
}

// TestServerDoesNotOwn checks that a server under test is another role than the test,
// on the same database.
func TestServerDoesNotOwn(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	server := need.Value(pgxpool.New(t.Context(), database.URL))(t)
	defer server.Close()
	const who = "SELECT unnest(ARRAY[current_database(), session_user])::text"
	serving, owner := pgtest.List[string](t, server, who), pgtest.List[string](t, database.Pool, who)
	if serving[0] != owner[0] || serving[1] == owner[1] || !strings.HasSuffix(serving[1], "_serving") {
		t.Errorf("the server has the database and role %v, the test has %v", serving, owner)
	}
	if _, err := server.Exec(t.Context(), "CREATE TABLE mine (id int)"); err == nil {
		t.Error("the server can make a table")
	}
}

// TestServerStopsAfterFailure checks that a server stops when it is idle, also after a run that
// fails before it has a template. A run with a wrong time to be idle starts none.
func TestServerStopsAfterFailure(t *testing.T) {
	t.Parallel()
	user := newUser(t, "PETSTORE_TEST_IDLE=200ms", noEngine)
	if result := user.run("PETSTORE_TEST_IDLE=soon"); result.passed || len(user.files("*")) > 0 {
		t.Fatalf("with a wrong time to be idle:\n%s", result.output)
	}
	if result := user.run(noMigrationsEnv + "=1"); result.passed || !strings.Contains(result.output, "(private cluster)") {
		t.Fatalf("without migrations:\n%s", result.output)
	}
	user.waitForEnd()
	user.mustFind()
	user.waitForEnd()
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	t.Logf("url=%s", database.OwnerURL)
	if pgtest.List[string](t, database.Pool, "SELECT 'works'")[0] != "works" {
		t.Error("the database does not work")
	}
}

// TestRunsShareOneServer runs two processes at once, a later one, one after the server was killed,
// and one whose migrations fail.
func TestRunsShareOneServer(t *testing.T) {
	t.Parallel()
	user := newUser(t, "PETSTORE_TEST_IDLE=20s", noEngine)
	other := make(chan result)
	go func() { other <- user.run() }()
	first, second := user.run(), <-other
	if !first.passed || !second.passed || serverOf(t, first.url) != serverOf(t, second.url) {
		t.Fatalf("two processes:\n%s\n%s", first.output, second.output)
	}
	if lines := first.output + second.output; strings.Count(lines, "(private cluster)") != 1 {
		t.Errorf("want one line about the server in:\n%s", lines)
	}
	postgres := connect(t, first.url, "postgres")
	template := pgtest.List[string](t, postgres, "SELECT datname::text FROM pg_database WHERE datistemplate AND datname LIKE 'petstore%'")
	if len(template) != 1 {
		t.Fatalf("the templates are %v, want one", template)
	}
	const old = "0123456789abcdef" // hash of other migrations
	need.Value(postgres.Exec(t.Context(), "CREATE DATABASE "+template[0][:len(template[0])-len(old)]+old+" IS_TEMPLATE true"))(t)
	need.Within(t, 20*time.Second, "the first runs have left the server", func() bool {
		return len(pgtest.List[string](t, postgres, "SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'")) == 0
	})
	next := user.run()
	if !next.passed || exists(t, first.url) || !exists(t, next.url) {
		t.Fatalf("the next run:\n%s", next.output)
	}
	left := pgtest.List[string](t, postgres, "SELECT datname::text FROM pg_database WHERE datname LIKE 'petstore%' ORDER BY datistemplate DESC")
	if len(left) != 5 || left[0] != template[0] {
		t.Errorf("after the next run there are %v, want the template and four databases of that run", left)
	}

	// kill -9, of the server alone: its directory keeps a stale postmaster.pid
	_, _ = postgres.Exec(t.Context(), "COPY (SELECT) TO PROGRAM 'kill -KILL $(head -n 1 postmaster.pid)'")
	last := user.mustFind()
	if exists(t, next.url) || !exists(t, last.url) {
		t.Errorf("after a kill -9 of the server:\n%s", last.output)
	}
	user.failMigrations(connect(t, last.url, "postgres"))
}

// failMigrations checks that migrations that cannot be applied fail only the tests that need
// them. They end neither the server nor the work of others on it.
func (u *user) failMigrations(postgres *pgxpool.Pool) {
	u.t.Helper()
	other := need.Value(postgres.Acquire(u.t.Context()))(u.t)
	defer other.Release()
	if result := u.run(noMigrationsEnv + "=1"); result.passed || !strings.Contains(result.output, "no migration") {
		u.t.Errorf("without migrations:\n%s", result.output)
	}
	if result := u.runTest("TestEmpty", noMigrationsEnv+"=1"); !result.passed {
		u.t.Errorf("a test that needs no migrations:\n%s", result.output)
	}
	if err := other.Ping(u.t.Context()); err != nil {
		u.t.Errorf("the connection of another process: %v", err)
	}
}

func TestForeignServer(t *testing.T) {
	t.Parallel()
	server := pgtest.NewEmpty(t)
	user := newUser(t, "PETSTORE_TEST_DATABASE_URL="+server.URL)
	passed := user.run()
	if !passed.passed || serverOf(t, passed.url) != serverOf(t, server.URL) || !strings.Contains(passed.output, "of PETSTORE_TEST_DATABASE_URL") {
		t.Fatalf("not passed on that server:\n%s", passed.output)
	}
	if exists(t, passed.url) {
		t.Error("the database of a test that passed still exists")
	}
	failed := user.run(failEnv + "=1")
	if failed.passed || !strings.Contains(failed.output, "until the next run: "+failed.url) || !exists(t, failed.url) {
		t.Errorf("a failed test does not keep its database:\n%s", failed.output)
	}
	need.Within(t, 20*time.Second, "the next run drops it", func() bool { return user.run().passed && !exists(t, failed.url) })

	prefix := regexp.MustCompile("petstore_test_[0-9a-f]{8}_").FindString(failed.url)
	left := pgtest.List[string](t, server.Pool, "SELECT datname::text FROM pg_database WHERE starts_with(datname, $1)", prefix)
	if len(left) != 1 {
		t.Errorf("the runs leave %v, want the template", left)
	}
	for _, name := range left {
		for _, statement := range []string{"ALTER DATABASE " + name + " IS_TEMPLATE false", "DROP DATABASE " + name, "DROP ROLE " + prefix + "serving"} {
			if _, err := server.Pool.Exec(t.Context(), statement); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	result := newUser(t, "PETSTORE_PG_BIN=/nowhere", noEngine).run()
	if result.passed || strings.Contains(result.output, "SKIP") {
		t.Fatalf("without a server:\n%s", result.output)
	}
	for _, want := range []string{"/nowhere/initdb: no such file", "unix:///nowhere.sock", "start Docker", "PETSTORE_TEST_DATABASE_URL"} {
		if !strings.Contains(result.output, want) {
			t.Errorf("%q is missing in:\n%s", want, result.output)
		}
	}
	const relative = "unix://docker.sock" // also the usual socket without XDG_RUNTIME_DIR
	if result := newUser(t, "PETSTORE_PG_BIN=/nowhere", "DOCKER_HOST="+relative).run(); result.passed || strings.Contains(result.output, relative) {
		t.Errorf("with a relative socket:\n%s", result.output)
	}
}

// TestWithoutRights runs as nobody if the tests run as root, with a Docker engine that accepts
// connections and never responds.
func TestWithoutRights(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(pgtest.Dir(t), "mute.sock")
	listener := need.Value(new(net.ListenConfig).Listen(t.Context(), "unix", socket))(t)
	t.Cleanup(func() { listener.Close() })
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			accepted <- conn // open until the test ends
		}
	}()
	user := newUser(t, "DOCKER_HOST=unix://"+socket)
	if os.Geteuid() == 0 {
		const nobody = 65534
		need.OK(t, errors.Join(os.Chown(user.cache, nobody, nobody), os.Chown(socket, nobody, nobody)))
		user.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	if result := user.mustFind(); !strings.Contains(result.output, "(private cluster)") {
		t.Errorf("another server:\n%s", result.output)
	}
	if len(accepted) == 0 {
		t.Error("nothing has connected to the engine")
	}
}

// user runs tests with a cache directory of its own.
type user struct {
	t       *testing.T
	program string
	cache   string
	env     []string
	attr    *syscall.SysProcAttr
}

// newUser returns a user whose server is stopped when the test ends.
func newUser(t *testing.T, env ...string) *user {
	t.Helper()
	u := &user{t: t, program: filepath.Join(pgtest.Dir(t), "tests"), cache: pgtest.Dir(t), env: env}
	program := need.Value(os.Executable())(t)
	// in a place where every user can run it
	if output, err := exec.CommandContext(t.Context(), "cp", program, u.program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	t.Cleanup(func() {
		for _, file := range u.files("postmaster.pid") {
			pid := 0
			content, _ := os.ReadFile(file) // gone if the server has ended
			if _, err := fmt.Sscan(string(content), &pid); err == nil {
				_ = syscall.Kill(pid, syscall.SIGQUIT)
			}
		}
		u.waitForEnd()
	})
	return u
}

// files returns the files with this name in the data of the user's servers.
func (u *user) files(name string) []string {
	files, err := filepath.Glob(filepath.Join(u.cache, "petstore", "test-*", "*", "data", name))
	if err != nil {
		u.t.Error(err)
	}
	return files
}

func (u *user) waitForEnd() {
	u.t.Helper()
	need.Within(u.t, 20*time.Second, "the server has ended and deleted its data", func() bool { return len(u.files("*")) == 0 })
}

// result is the result of one process of tests.
type result struct {
	output string
	passed bool
	url    string // of one of its databases
}

// mustRun runs a process with a test that needs migrations, which passes.
func (u *user) mustRun() result {
	u.t.Helper()
	return u.must(u.run())
}

// mustFind runs a process with a test that needs only a server, which passes. Migrations take
// half of the time of a run.
func (u *user) mustFind() result {
	u.t.Helper()
	return u.must(u.runTest("TestEmpty"))
}

// must fails the test unless a process has passed.
func (u *user) must(r result) result {
	u.t.Helper()
	if !r.passed {
		u.t.Fatalf("not passed:\n%s", r.output)
	}
	return r
}

// run runs a process with a test that needs migrations.
func (u *user) run(env ...string) result { return u.runTest("TestDatabasesAreSeparate", env...) }

// runTest runs a process with one test.
func (u *user) runTest(test string, env ...string) result {
	cmd := exec.CommandContext(context.Background(), u.program, "-test.run=^"+test+"$", "-test.v")
	cmd.Dir = "/"
	// without the server and the engine that are named for this test
	cmd.Env = append(os.Environ(), "PETSTORE_TEST_DATABASE_URL=", "PETSTORE_TEST_ENGINE=", "HOME="+u.cache, "XDG_CACHE_HOME="+u.cache, "TMPDIR="+u.cache)
	cmd.Env = append(append(cmd.Env, u.env...), env...)
	cmd.SysProcAttr = u.attr
	output, err := cmd.CombinedOutput() // does not return while a server has it open
	r := result{output: string(output), passed: err == nil && strings.Contains(string(output), "--- PASS: "+test)}
	if _, url, ok := strings.Cut(r.output, "url="); ok {
		r.url = strings.Fields(url)[0]
	}
	return r
}

// connect opens a pool on another database of the URL's server.
func connect(t *testing.T, address, database string) *pgxpool.Pool {
	t.Helper()
	parsed := need.Value(url.Parse(address))(t)
	parsed.Path = "/" + database
	pool := need.Value(pgxpool.New(t.Context(), parsed.String()))(t)
	t.Cleanup(pool.Close)
	return pool
}

// serverOf returns a URL without its database.
func serverOf(t *testing.T, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil || address == "" {
		t.Fatalf("no URL: %q, %v", address, err)
	}
	parsed.Path = ""
	return parsed.String()
}

// exists reports whether the database of the URL exists.
func exists(t *testing.T, url string) bool {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		conn.Close(t.Context())
	}
	return err == nil
}
