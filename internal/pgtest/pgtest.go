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
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"maps"
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
}

// New returns a database with all migrations applied and the privileges of
// [postgres.Migrations.GrantServing] granted to the serving role. A test that fails
// logs the owner's URL.
func New(t testing.TB) *Database {
	t.Helper()
	s := must(t, migrated)
	database, name, err := newMigrated(t.Context(), s, t.Name())
	check(t, err)
	s.leaveWith(t, name, database)
	return database
}

// Shared returns the database that all tests of this process share, with the same tables and
// privileges as one of [New]. It is for tests that need no more than an account of their own.
// TestMain calls [LeaveShared] after the tests.
var Shared = sync.OnceValues(func() (*Database, error) {
	s, err := migrated()
	if err != nil {
		return nil, err
	}
	database, name, err := newMigrated(context.Background(), s, "shared") // it outlives the first test
	if err == nil {
		leaveShared = func(failed bool) error { return s.leave(name, database, failed, say) }
	}
	return database, err
})

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

var leaveShared = func(bool) error { return nil }

// LeaveShared ends the use of the database of [Shared]. If tests have failed, it says the URL
// of the owner.
func LeaveShared(failed bool) error { return leaveShared(failed) }

// newMigrated creates a database for [New] or [Shared].
func newMigrated(ctx context.Context, s *server, of string) (_ *Database, name string, err error) {
	database, name, err := create(ctx, s, of, cloneOf(s.template))
	if err != nil {
		return nil, "", err
	}
	database.DirectURL = s.servingURL(s.databaseURL(name))
	database.URL = database.DirectURL
	if s.replica != nil {
		database.ReplicaURL = s.servingURL(s.replica.databaseURL(name))
		replicas.Store(database.URL, database.ReplicaURL)
	}
	if engine, _ := CurrentEngine(); engine == PgBouncer { // findServer has returned its error
		dir, err := pgBouncer()
		if err != nil {
			return nil, "", err
		}
		database.URL = throughPgBouncer(dir, database.DirectURL)
	}
	return database, name, nil
}

// NewEmpty returns a database without any table; all its URLs are the owner's.
func NewEmpty(t testing.TB) *Database {
	t.Helper()
	s, options := must(t, find), ""
	if s.cluster != nil {
		s, options = must(t, emptied), cloneOf(s.emptyTemplate())
	}
	database, name, err := create(t.Context(), s, t.Name(), options)
	check(t, err)
	s.leaveWith(t, name, database)
	return database
}

// cloneOf returns the options of CREATE DATABASE for a clone. Copying files is faster than
// the default, which is meant for large templates.
func cloneOf(template string) string { return "TEMPLATE " + quote(template) + " STRATEGY file_copy" }

// find finds the server once in this process.
var find = sync.OnceValues(func() (*server, error) { return findServer(context.Background()) })

// migrated finds the server and makes its template, once in this process. A test with
// [NewEmpty] needs no template, so it can find out why a migration fails.
var migrated = sync.OnceValues(func() (*server, error) { return withTemplate(find, (*server).makeTemplate) })

// emptied finds the cluster and makes the template of [NewEmpty], once in this process.
var emptied = sync.OnceValues(func() (*server, error) { return withTemplate(find, (*server).makeEmpty) })

// leaseMutex allows one function at a time to use the lease.
var leaseMutex sync.Mutex

func withTemplate(find func() (*server, error), makeIt func(*server, context.Context) error) (*server, error) {
	s, err := find()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), templateTimeout)
	defer cancel()
	leaseMutex.Lock()
	defer leaseMutex.Unlock()
	return s, s.locked(ctx, func() error { return makeIt(s, ctx) })
}

func must(t testing.TB, find func() (*server, error)) *server {
	t.Helper()
	s, err := find()
	check(t, err)
	return s
}

// check fails the test unless err is nil.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// create creates a database whose name contains of.
func create(ctx context.Context, s *server, of, options string) (_ *Database, name string, err error) {
	name = databaseName(s.prefix, of)
	if err = s.exec(ctx, "CREATE DATABASE "+quote(name)+" "+options); err == nil && s.cluster != nil {
		err = s.setDefaults(ctx, name)
	}
	if err != nil {
		return nil, "", err
	}
	address := s.databaseURL(name).String()
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, "", err
	}
	config.MaxConns = maxPoolConns
	if s.cluster != nil {
		maps.Copy(config.ConnConfig.RuntimeParams, ownerParameters)
	}
	database := &Database{URL: address, DirectURL: address, OwnerURL: address}
	if s.replica != nil {
		if err := s.replica.await(ctx); err != nil {
			return nil, "", err
		}
		database.ReplicaURL = s.replica.databaseURL(name).String()
		config.ConnConfig.Tracer = replayTracer{s.replica}
	}
	// not the test's context, which ends before its cleanup
	database.Pool, err = pgxpool.NewWithConfig(context.Background(), config)
	return database, name, err
}

// leave closes the pool of a database. If its tests passed, it drops the database from a
// foreign server, and from memory. A server that pgtest has started on a disk deletes all its
// data at once, which is faster. If they failed, it says where the database is.
func (s *server) leave(name string, database *Database, failed bool, say func(string)) error {
	database.Pool.Close()
	switch {
	case failed && s.foreign:
		say("the database of the failed tests, until the next run: " + database.OwnerURL)
	case failed:
		say("the database of the failed tests, until the server is idle: " + database.OwnerURL)
	case s.foreign || s.inMemory:
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		return s.drop(ctx, name)
	}
	return nil
}

// leaveWith leaves the database when its test ends.
func (s *server) leaveWith(t testing.TB, name string, database *Database) {
	t.Helper()
	t.Cleanup(func() {
		if err := s.leave(name, database, t.Failed(), func(line string) { t.Log("pgtest: " + line) }); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
}

// exec runs statements outside of the lease, each on all nodes of a cluster.
func (s *server) exec(ctx context.Context, statements ...string) error {
	return s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return s.everywhere(ctx, conn.Conn(), statements...) })
}

// drop drops a database.
func (s *server) drop(ctx context.Context, name string) error {
	statements := []string{"DROP DATABASE " + quote(name) + " WITH (FORCE)"}
	if s.cluster != nil {
		statements = append(endSessions(name), statements...)
	}
	return s.exec(ctx, statements...)
}

// databaseURL returns the URL of another database of the server.
func (s *server) databaseURL(name string) *url.URL {
	address := *s.url
	address.Path = "/" + name
	return &address
}

// servingRole is the role of the servers under test. Only those who can be the owner
// of the databases can compute its password, which is the same in every process.
func (s *server) servingRole() string     { return s.prefix + "serving" }
func (s *server) servingPassword() string { return digest("serving " + s.url.String()) }

// servingURL returns the URL of a database for the serving role. The address is that
// for the owner.
func (s *server) servingURL(address *url.URL) string {
	query := address.Query()
	query.Del("user")
	query.Del("password")
	address.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // libpq does not decode a plus
	address.User = url.UserPassword(s.servingRole(), s.servingPassword())
	return address.String()
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
