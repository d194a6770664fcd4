package pgtest

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	connectTimeout = 10 * time.Second

	// Advisory locks in the database of the server's URL. Every process that uses
	// the server shares inUseLock until it ends; idleLock belongs to the session
	// that stops the server.
	inUseLock    = 0x70677465737431 // "pgtest1"
	templateLock = 0x70677465737432
	idleLock     = 0x70677465737433
)

// server is a running server. Several processes may use it.
type server struct {
	URL         string // of the database from which to create others
	Description string // for people
	foreign     bool   // named by PETSTORE_TEST_DATABASE_URL: it outlives all runs
	lease       *pgx.Conn
}

// prefix begins the name of everything that tests create on the server.
func (s *server) prefix() string {
	hash := sha256.Sum256([]byte(s.URL))
	return "petstore_test_" + hex.EncodeToString(hash[:4]) + "_"
}

// use opens the connection that keeps the server running until this process ends.
// A process that finds no other one on the server drops the databases that earlier
// ones left.
func (s *server) use(ctx context.Context) error {
	connectCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(connectCtx, s.URL)
	if err != nil {
		return err
	}
	key := lockKey(inUseLock, s.prefix())
	var alone bool
	err = conn.QueryRow(connectCtx, "SELECT pg_try_advisory_lock($1)", key).Scan(&alone)
	if err == nil && alone {
		err = s.dropLeftovers(ctx, conn) // which takes long if a run with many databases was killed
	}
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT pg_advisory_lock_shared($1)", key)
	}
	if err == nil && alone {
		_, err = conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", key)
	}
	if err != nil {
		return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	}
	s.lease = conn
	return nil
}

// lockKey keeps users of different URLs of one server apart.
func lockKey(lock int64, prefix string) int64 {
	hash := sha256.Sum256([]byte(prefix))
	return lock ^ int64(hash[0])<<56
}

// dropLeftovers drops the databases of earlier tests, and templates with other
// migrations than ours.
func (s *server) dropLeftovers(ctx context.Context, conn *pgx.Conn) error {
	template, err := s.templateName()
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, "SELECT datname::text FROM pg_database WHERE starts_with(datname, $1) AND datname <> $2", s.prefix(), template)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		for _, statement := range []string{"ALTER DATABASE %s IS_TEMPLATE false", "DROP DATABASE %s WITH (FORCE)"} {
			if _, err := conn.Exec(ctx, fmt.Sprintf(statement, quote(name))); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopWhenIdle has the server stop itself when it had no client for a while. One
// of its own sessions waits for that, even after its client has ended, because no
// process of a test run is sure to be the last one. A second such session ends at
// once.
func (s *server) stopWhenIdle(ctx context.Context) error {
	idle := time.Minute
	if value := os.Getenv("PETSTORE_TEST_IDLE"); value != "" {
		var err error
		if idle, err = time.ParseDuration(value); err != nil || idle <= 0 {
			return fmt.Errorf("PETSTORE_TEST_IDLE is %q, but must be a duration such as 1m", value)
		}
	}
	config, err := pgconn.ParseConfig(s.URL)
	if err != nil {
		return err
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	sql := fmt.Sprintf(`DO $$
DECLARE
	seconds constant float8 := %g;
	last_use timestamptz := clock_timestamp();
BEGIN
	IF NOT pg_try_advisory_lock(%d) THEN
		RETURN;
	END IF;
	LOOP
		PERFORM pg_sleep(seconds / 10);
		IF EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()) THEN
			last_use := clock_timestamp();
		END IF;
		-- a process that comes now waits for this lock, until the server ends
		EXIT WHEN clock_timestamp() > last_use + seconds * interval '1 s' AND pg_try_advisory_lock(%d);
		COMMIT; -- the next pg_stat_activity is a new one
	END LOOP;
	EXECUTE format('COPY (SELECT) TO PROGRAM %%L',
		'cat >/dev/null; kill -INT ' || split_part(pg_read_file('postmaster.pid'), E'\n', 1));
END $$`, idle.Seconds(), idleLock, lockKey(inUseLock, s.prefix()))
	result := conn.Exec(context.WithoutCancel(ctx), sql) // sends it
	go func() {
		_ = result.Close() // returns when the server ends, or at once
		_ = conn.Close(context.WithoutCancel(ctx))
	}()
	return nil
}

// useForeign uses the server of PETSTORE_TEST_DATABASE_URL.
func useForeign(ctx context.Context, address string) (*server, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		return nil, errors.New("must be a URL that begins with postgres://")
	}
	found := &server{URL: address, foreign: true}
	if err := found.use(ctx); err != nil {
		return nil, err
	}
	found.Description = fmt.Sprintf("PostgreSQL %s at %s (PETSTORE_TEST_DATABASE_URL)", found.version(), parsed.Redacted())
	return found, nil
}

// version returns the version of a server in use, without the distribution's name.
func (s *server) version() string {
	version, _, _ := strings.Cut(s.lease.PgConn().ParameterStatus("server_version"), " ")
	return version
}

// exec runs a statement on a connection of its own.
func (s *server) exec(ctx context.Context, sql string) error {
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

// databaseURL returns the URL of another database of the server.
func (s *server) databaseURL(name string) string {
	parsed, err := url.Parse(s.URL)
	if err != nil {
		panic(err) // use has parsed it
	}
	parsed.Path = "/" + name
	return parsed.String()
}

// servingRole is the role of the servers under test.
func (s *server) servingRole() string { return s.prefix() + "serving" }

// servingPassword is the same in every process. Only those who can be the owner of
// the databases can compute it.
func (s *server) servingPassword() string {
	mac := hmac.New(sha256.New, []byte(s.URL))
	mac.Write([]byte(s.servingRole()))
	return hex.EncodeToString(mac.Sum(nil))
}

// servingURL returns the URL of a database for the serving role.
func (s *server) servingURL(owner string) string {
	parsed, err := url.Parse(owner)
	if err != nil {
		panic(err) // databaseURL made it
	}
	query := parsed.Query()
	query.Del("user")
	query.Del("password")
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // libpq does not decode a plus
	parsed.User = url.UserPassword(s.servingRole(), s.servingPassword())
	return parsed.String()
}
