// Package pgtest gives every test a PostgreSQL database of its own. It is
// imported by tests alone.
//
// The first test of a `go test` run finds a server: the one that
// PETSTORE_TEST_DATABASE_URL names, a container where a Docker engine answers,
// the machine's own binaries, or fetched ones. All packages of the run share
// it, and it goes when the run is over.
package pgtest

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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
	// dropTimeout bounds the end of a test, whose own context is over by then.
	dropTimeout = 30 * time.Second
	// maxNameLength is what PostgreSQL keeps of an identifier.
	maxNameLength = 63
)

// Database is a database of one test. A server under test connects with URL, as
// the role that serves, so that a privilege that is missing is noticed; what the
// test does past the server is done by the owner.
type Database struct {
	URL      string        // libpq URL of the role that serves, with a password
	OwnerURL string        // libpq URL of the role that migrated
	Pool     *pgxpool.Pool // of the owner; closed when the test ends
}

// New returns a database with all migrations applied, and the role that serves
// granted what [postgres.Migrations.GrantServing] says. A test that fails logs
// the URL of the owner.
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

// find finds the server of the run, and migratedTemplate makes its template,
// once in this process.
var (
	find             = sync.OnceValues(func() (server, error) { return acquire(context.Background(), currentRun()) })
	migratedTemplate = sync.OnceValues(func() (string, error) {
		server, err := find()
		if err != nil {
			return "", err
		}
		return server.template(context.Background())
	})
)

func mustFind(t testing.TB) server {
	t.Helper()
	server, err := find()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return server
}

// create makes a database for the test.
func create(t testing.TB, server server, options string) *Database {
	t.Helper()
	name := databaseName(server.Prefix, t.Name())
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

// leave ends the use of a database. One on a server of our own is never
// dropped, which would take longer than the copy: it goes with its server.
func (s server) leave(ctx context.Context, t testing.TB, name, url string) error {
	t.Helper()
	switch {
	case t.Failed() && s.Foreign:
		t.Logf("pgtest: the database of this test is kept: %s", url)
		return s.exec(ctx, fmt.Sprintf("COMMENT ON DATABASE %s IS '%s'", quote(name), keptComment))
	case t.Failed():
		t.Logf("pgtest: the database of this test, until the run ends: %s", url)
		return nil
	case s.Foreign:
		return s.exec(ctx, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", quote(name)))
	default:
		return nil
	}
}

// databaseName tells which test a database belongs to.
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

// server is a running server as the processes of a run know it.
type server struct {
	URL         string // of the database to make others from
	Description string // for people
	Foreign     bool   // not ours to end: what we made on it must be dropped
	Prefix      string // begins the name of everything that the run makes
}

// exec runs a statement on a connection of its own.
func (s server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// databaseURL is the URL of another database of the server.
func (s server) databaseURL(name string) string {
	parsed, err := url.Parse(s.URL)
	if err != nil {
		panic(err) // the keeper has parsed it
	}
	parsed.Path = "/" + name
	return parsed.String()
}

// servingRole is the role that serves in all databases of the run.
func (s server) servingRole() string { return s.Prefix + "serving" }

// servingPassword is the same in every process of the run, and on a server that
// outlives it nobody else can know it who cannot be the owner.
func (s server) servingPassword() string {
	mac := hmac.New(sha256.New, []byte(s.URL))
	mac.Write([]byte(s.Prefix))
	return hex.EncodeToString(mac.Sum(nil))
}

// servingURL is the URL of a database for the role that serves.
func (s server) servingURL(owner string) string {
	parsed, err := url.Parse(owner)
	if err != nil {
		panic(err) // databaseURL made it
	}
	query := parsed.Query()
	query.Del("user")
	query.Del("password")
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // libpq takes a plus for a plus
	parsed.User = url.UserPassword(s.servingRole(), s.servingPassword())
	return parsed.String()
}

// ensureServingRole makes the role, or leaves the one that is there: its
// password does not change during a run.
func (s server) ensureServingRole(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", s.servingRole()).Scan(&there)
	if err != nil || there {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", quote(s.servingRole()), s.servingPassword()))
	return err
}

// say tells the person who runs the tests, and not the log of one test.
func say(line string) { fmt.Fprintln(os.Stderr, "pgtest: "+line) }
