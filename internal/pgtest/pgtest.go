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
	// dropTimeout bounds the end of a test, whose own context is over by then.
	dropTimeout = 30 * time.Second
	// maxNameLength is what PostgreSQL keeps of an identifier.
	maxNameLength = 63
)

// Database is the database of one test. A server under test connects with URL, as a
// role that owns nothing, so that tests notice a missing privilege. The test itself
// is the owner.
type Database struct {
	URL      string        // libpq URL of the serving role, with a password
	OwnerURL string        // libpq URL of the owner
	Pool     *pgxpool.Pool // of the owner; closed when the test ends
}

// New returns a database with all migrations applied and the privileges of
// [postgres.Migrations.GrantServing] granted to the serving role. A test that fails
// logs the owner's URL.
func New(t testing.TB) *Database {
	t.Helper()
	server := mustFind(t)
	template, err := migratedTemplate()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	// copying files is faster than the default, which is meant for large templates
	database := create(t, server, fmt.Sprintf("TEMPLATE %s STRATEGY file_copy", quote(template)))
	database.URL = server.servingURL(database.OwnerURL)
	return database
}

// NewEmpty returns a database without any table; both its URLs are the owner's.
func NewEmpty(t testing.TB) *Database {
	t.Helper()
	return create(t, mustFind(t), "")
}

// find finds the server, and migratedTemplate makes its template, once in this
// process.
var (
	find             = sync.OnceValues(func() (*server, error) { return findServer(context.Background()) })
	migratedTemplate = sync.OnceValues(func() (string, error) {
		server, err := find()
		if err != nil {
			return "", err
		}
		return server.template(context.Background())
	})
)

func mustFind(t testing.TB) *server {
	t.Helper()
	server, err := find()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return server
}

// create creates a database for the test.
func create(t testing.TB, server *server, options string) *Database {
	t.Helper()
	name := databaseName(server.prefix(), t.Name())
	if err := server.exec(t.Context(), fmt.Sprintf("CREATE DATABASE %s %s", quote(name), options)); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	address := server.databaseURL(name)
	database := &Database{URL: address, OwnerURL: address}
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = maxPoolConns
	// not the test's context, which ends before its cleanup
	database.Pool, err = pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		database.Pool.Close()
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		if err := server.leave(ctx, t, name, address); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return database
}

// leave drops the database of a test that passed from a foreign server. A server of
// ours deletes all its data at once, which is faster.
func (s *server) leave(ctx context.Context, t testing.TB, name, url string) error {
	t.Helper()
	switch {
	case t.Failed() && s.foreign:
		t.Logf("pgtest: the database of this test, until the next run: %s", url)
	case t.Failed():
		t.Logf("pgtest: the database of this test, until the server is idle: %s", url)
	case s.foreign:
		return s.exec(ctx, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", quote(name)))
	}
	return nil
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
