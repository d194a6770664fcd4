// Package pgtest gives tests a PostgreSQL database: one of its own, or one that the tests of
// a process share. Only tests import it.
//
// The first test finds a server: the one that PETSTORE_TEST_DATABASE_URL names, a
// container if a Docker engine responds, the machine's own binaries, or downloaded
// ones. All packages and all runs of a user share the running server. It stops
// itself and deletes its data when it had no client for a minute, or for the time
// in PETSTORE_TEST_IDLE. Linux has the data of a private cluster in memory if there is room.
package pgtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/sleep"
	"petstore/internal/tools/must"
	"petstore/internal/tools/need"
)

const (
	// maxPoolConns is small because tests are parallel, each with its pool.
	maxPoolConns = 8
	// templateTimeout includes the wait for another process that makes the template.
	templateTimeout = 3 * time.Minute
	// dropTimeout bounds the end of a test, whose own context is over by then.
	dropTimeout = 30 * time.Second
	// maxNameLength is the maximum length of a PostgreSQL identifier in bytes.
	maxNameLength = 63
)

// Database is the database of one test. A server under test connects with URL, as a
// role that owns nothing, so that tests notice a missing privilege. The test itself
// is the owner.
type Database struct {
	URL       string // libpq URL of the serving role, with a password
	DirectURL string // like URL, but without a connection pooler
	OwnerURL  string // libpq URL of the owner, without a connection pooler
	// ReplicaURL is the libpq URL of the same database on a standby, for the serving
	// role. It is empty except on the engine [Replica]. A statement of Pool returns when
	// the standby has replayed it.
	ReplicaURL string
	Pool       *pgxpool.Pool // of the owner; closed when the test ends

	server *server
	name   string
}

// New returns a database with all migrations applied and the privileges of
// [postgres.Migrations.GrantServing] granted to the serving role. A test that fails
// logs the owner's URL.
func New(t testing.TB) *Database {
	t.Helper()
	return give(t, func() *Database { return newMigrated(t.Context(), t.Name()) })
}

// NewEmpty returns a database without any table; all its URLs are the owner's.
func NewEmpty(t testing.TB) *Database {
	t.Helper()
	return give(t, func() *Database {
		s, options := find(), ""
		if s.cluster != nil {
			s, options = emptied(), cloneOf(s.emptyTemplate())
		}
		return s.create(t.Context(), t.Name(), options)
	})
}

// give returns a database until the test ends.
func give(t testing.TB, create func() *Database) (d *Database) {
	t.Helper()
	need.OK(t, must.Attempt(func() { d = create() }))
	t.Cleanup(func() {
		if err := d.leave(t.Failed(), func(line string) { t.Log("pgtest: " + line) }); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return d
}

// Shared returns the database that all tests of this process share, with the same tables and
// privileges as one of [New]. It is for tests that need no more than an account of their own.
// TestMain calls [Run], or [LeaveShared] after the tests.
var Shared = sync.OnceValues(func() (d *Database, err error) {
	err = must.Attempt(func() { d = newMigrated(context.Background(), "shared") }) // it outlives the first test
	if err == nil {
		leaveShared = func(failed bool) error { return d.leave(failed, say) }
	}
	return d, err
})

var leaveShared = func(bool) error { return nil }

// LeaveShared ends the use of the database of [Shared]. If tests have failed, it says the URL
// of the owner.
func LeaveShared(failed bool) error { return leaveShared(failed) }

// Run runs the tests of a package as TestMain should, with [Widen] and then [LeaveShared]. It returns the
// exit code.
func Run(run func() (code int)) (code int) {
	Widen()
	code = run()
	if err := LeaveShared(code != 0); err != nil {
		say(err.Error())
		return 1
	}
	return code
}

// Widen lets four tests for each CPU run at a time, because tests with a database wait most of
// the time: for other processes, or for time to pass. TestMain calls it. The flag -parallel of the
// command line comes first. The heap may also grow to five times the live objects, which are
// few. The garbage collector took a tenth of the CPU time.
func Widen() {
	debug.SetGCPercent(400)
	if err := flag.Set("test.parallel", fmt.Sprint(parallelTests())); err != nil {
		panic(err) // go test has this flag
	}
}

// parallelTests is the number of tests that run at a time.
func parallelTests() int32 { return int32(4 * runtime.GOMAXPROCS(0)) } //nolint:gosec // a few

// newMigrated creates a database for [New] or [Shared].
func newMigrated(ctx context.Context, of string) *Database {
	s := migrated()
	d := s.create(ctx, of, cloneOf(s.template))
	d.DirectURL = s.servingURL(s.url, d.name)
	d.URL = d.DirectURL
	if s.replica != nil {
		d.ReplicaURL = s.servingURL(s.replica.url, d.name)
		replicas.Store(d.URL, d.ReplicaURL)
	}
	if Is(PgBouncer) {
		d.URL = throughPgBouncer(pgBouncer(), d.DirectURL)
	}
	return d
}

// cloneOf returns the options of CREATE DATABASE for a clone. Copying files is faster than
// the default, which is meant for large templates.
func cloneOf(template string) string { return "TEMPLATE " + quote(template) + " STRATEGY file_copy" }

// Each of these runs once in this process. A test with [NewEmpty] needs no migrated template, so it
// can find out why a migration fails.
var (
	find     = sync.OnceValue(findServer)
	migrated = sync.OnceValue(func() *server { return withTemplate((*server).makeMigrated) })
	emptied  = sync.OnceValue(func() *server { return withTemplate((*server).makeEmpty) }) // on a cluster
)

// leaseMutex allows one function at a time to use the lease.
var leaseMutex sync.Mutex

func withTemplate(makeIt func(*server, context.Context)) *server {
	s := find()
	ctx, cancel := context.WithTimeout(context.Background(), templateTimeout)
	defer cancel()
	leaseMutex.Lock()
	defer leaseMutex.Unlock()
	s.locked(ctx, func() { makeIt(s, ctx) })
	return s
}

// create creates a database whose name contains of.
func (s *server) create(ctx context.Context, of, options string) *Database {
	name := databaseName(s.prefix, of)
	s.exec(ctx, "CREATE DATABASE "+quote(name)+" "+options)
	var tracer pgx.QueryTracer
	var parameters map[string]string
	if s.cluster != nil {
		s.setDefaults(ctx, name)
		parameters = ownerParameters
	}
	address := withDatabase(s.url, name).String()
	d := &Database{URL: address, DirectURL: address, OwnerURL: address, server: s, name: name}
	if s.replica != nil {
		must.OK(s.replica.await(ctx))
		d.ReplicaURL = withDatabase(s.replica.url, name).String()
		tracer = replayTracer{Statements(func(string, []any) {}), s.replica}
	}
	d.Pool = openPool(address, maxPoolConns, tracer, parameters)
	return d
}

// leave closes the pool of a database. If its tests passed, it drops the database from a
// foreign server, and from memory. A server that pgtest has started on a disk deletes all its
// data at once, which is faster. If they failed, it says where the database is.
func (d *Database) leave(failed bool, say func(string)) error {
	d.Pool.Close()
	switch s := d.server; {
	case failed && s.foreign:
		say("the database of the failed tests, until the next run: " + d.OwnerURL)
	case failed:
		say("the database of the failed tests, until the server is idle: " + d.OwnerURL)
	case s.foreign || s.inMemory:
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		statements := []string{"DROP DATABASE " + quote(d.name) + " WITH (FORCE)"}
		if s.cluster != nil {
			statements = append(endSessions(d.name), statements...)
		}
		return must.Attempt(func() { s.exec(ctx, statements...) })
	}
	return nil
}

// exec runs statements outside of the lease, each on all nodes of a cluster.
func (s *server) exec(ctx context.Context, statements ...string) {
	conn := must.Get(s.pool.Acquire(ctx))
	defer conn.Release()
	s.everywhere(ctx, conn.Conn(), statements...)
}

// withDatabase returns the URL of another database of a server.
func withDatabase(address *url.URL, name string) *url.URL {
	other := *address
	other.Path = "/" + name
	return &other
}

// withRole returns a URL for another role.
func withRole(address *url.URL, role, password string) string {
	other, query := *address, address.Query()
	query.Del("user")
	query.Del("password")
	other.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // libpq does not decode a plus
	other.User = url.UserPassword(role, password)
	return other.String()
}

// servingRole is the role of the servers under test. Only those who can be the owner
// of the databases can compute its password, which is the same in every process.
func (s *server) servingRole() string     { return s.prefix + "serving" }
func (s *server) servingPassword() string { return digest("serving " + s.url.String()) }

// servingURL returns the URL of a database of the server, or of its standby, for the serving role.
func (s *server) servingURL(address *url.URL, name string) string {
	return withRole(withDatabase(address, name), s.servingRole(), s.servingPassword())
}

// NewRole creates a role that can log in, with more options of CREATE ROLE. The test drops it at its end.
// It returns its name and the URL of the database for the role.
func (d *Database) NewRole(t testing.TB, options ...string) (role, roleURL string) {
	t.Helper()
	address := need.Value(url.Parse(d.OwnerURL))(t)
	role, password := databaseName("petstore_test_", "role"), rand.Text()
	Exec(t, d.Pool, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s' %s", role, password, strings.Join(options, " ")))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		if _, err := d.Pool.Exec(ctx, "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	return role, withRole(address, role, password)
}

// databaseName returns a unique name that contains the name of the test.
func databaseName(prefix, test string) string {
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(test))
	unique := "_" + strings.ToLower(rand.Text()[:8])
	return prefix + readable[:min(len(readable), maxNameLength-len(prefix)-len(unique))] + unique
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// say writes a line for the person who runs the tests, not into the log of one test.
func say(line string) { fmt.Fprintln(os.Stderr, "pgtest: "+line) }

// Engine is the kind of database of a test run. PETSTORE_TEST_ENGINE names it; the
// default is [Postgres].
type Engine string

// The engines. make engines runs the tests on all of them.
const (
	Postgres  Engine = "postgres"  // one server
	PgBouncer Engine = "pgbouncer" // one server behind a PgBouncer in transaction mode
	Replica   Engine = "replica"   // a server with a streaming standby
	Citus     Engine = "citus"     // a Citus cluster, whose coordinator PETSTORE_TEST_DATABASE_URL names
)

var engines = []Engine{Postgres, PgBouncer, Replica, Citus}

// Is reports whether the tests run on an engine.
func Is(engine Engine) bool { return current() == engine }

func current() Engine { return cmp.Or(Engine(os.Getenv("PETSTORE_TEST_ENGINE")), Postgres) }

// Not skips a test that an engine cannot pass by its nature.
func Not(t testing.TB, engine Engine, reason string) {
	t.Helper()
	if Is(engine) {
		t.Skipf("not on the engine %s: %s", engine, reason)
	}
}

// pollInterval is the pause between two looks at the state of a server, which take more CPU time
// than most of what tests wait for.
const pollInterval = 2 * time.Millisecond

// querier is a connection, a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// AwaitLockWaiters waits until n sessions of a database wait for a lock.
func AwaitLockWaiters(ctx context.Context, db querier, n int) error {
	return await(ctx, func() (bool, error) {
		waiters, err := LockWaiters(ctx, db)
		return waiters >= n, err
	})
}

// await waits until a function returns true or an error.
func await(ctx context.Context, done func() (bool, error)) error {
	for {
		if is, err := done(); is || err != nil {
			return err
		}
		if !sleep.For(ctx, pollInterval) {
			return context.Cause(ctx)
		}
	}
}

// LockWaiters counts the sessions of a database that wait for a lock, on all nodes.
func LockWaiters(ctx context.Context, db querier) (waiters int, err error) {
	const here = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	everywhere := here
	if Is(Citus) {
		everywhere = "SELECT (" + here + ") + (SELECT sum(result::int) FROM run_command_on_workers($$" + here + "$$))"
	}
	err = db.QueryRow(ctx, everywhere).Scan(&waiters)
	return waiters, err
}
