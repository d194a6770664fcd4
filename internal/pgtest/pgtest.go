// Package pgtest gives every test a PostgreSQL database of its own. Only tests
// import it.
//
// The first test finds a server: the one that PETSTORE_TEST_DATABASE_URL names, a
// container if a Docker engine responds, the machine's own binaries, or downloaded
// ones. All packages and all runs of a user share the running server. It stops
// itself and deletes its data when it had no client for a minute, or for the time
// in PETSTORE_TEST_IDLE.
package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/url"
	"os"
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
	database, name := create(t, s, cloneOf(s.template))
	database.DirectURL = s.servingURL(s.databaseURL(name))
	database.URL = database.DirectURL
	if s.replica != nil {
		database.ReplicaURL = s.servingURL(s.replica.databaseURL(name))
		replicas.Store(database.URL, database.ReplicaURL)
	}
	if engine, _ := CurrentEngine(); engine == PgBouncer { // findServer has returned its error
		dir, err := pgBouncer()
		if err != nil {
			t.Fatalf("pgtest: %v", err)
		}
		database.URL = throughPgBouncer(dir, database.DirectURL)
	}
	return database
}

// NewEmpty returns a database without any table; all its URLs are the owner's.
func NewEmpty(t testing.TB) *Database {
	t.Helper()
	s, options := must(t, find), ""
	if s.cluster != nil {
		s, options = must(t, emptied), cloneOf(s.emptyTemplate())
	}
	database, _ := create(t, s, options)
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
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return s
}

// create creates a database for the test, and returns its name too.
func create(t testing.TB, s *server, options string) (_ *Database, name string) {
	t.Helper()
	name = databaseName(s.prefix, t.Name())
	err := s.exec(t.Context(), "CREATE DATABASE "+quote(name)+" "+options)
	if err == nil && s.cluster != nil {
		err = s.setDefaults(t.Context(), name)
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	address := s.databaseURL(name).String()
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = maxPoolConns
	if s.cluster != nil {
		maps.Copy(config.ConnConfig.RuntimeParams, ownerParameters)
	}
	database := &Database{URL: address, DirectURL: address, OwnerURL: address}
	if s.replica != nil {
		if err := s.replica.await(t.Context()); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
		database.ReplicaURL = s.replica.databaseURL(name).String()
		config.ConnConfig.Tracer = replayTracer{s.replica}
	}
	// not the test's context, which ends before its cleanup
	if database.Pool, err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		database.Pool.Close()
		s.leave(t, name, address)
	})
	return database, name
}

// leave drops the database of a test that passed from a foreign server. A server
// that pgtest has started deletes all its data at once, which is faster.
func (s *server) leave(t testing.TB, name, address string) {
	t.Helper()
	switch {
	case t.Failed() && s.foreign:
		t.Logf("pgtest: the database of this test, until the next run: %s", address)
	case t.Failed():
		t.Logf("pgtest: the database of this test, until the server is idle: %s", address)
	case s.foreign:
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	}
}

// exec runs statements on a connection of its own, each on all nodes of a cluster.
func (s *server) exec(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.url.String())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return s.everywhere(ctx, conn, statements...)
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
