package pgtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/localpg"
	"petstore/migrations"
)

const (
	connectTimeout = 10 * time.Second
	// findTimeout is longer than all ways to a server take together.
	findTimeout = 8 * time.Minute
	// autovacuum is off on our servers, because its workers would visit the databases of all
	// tests, a few at each moment.

	// maxConnections suffices for all concurrent tests of two runs of `go test
	// ./...`.
	maxConnections = "800"

	// Advisory locks in the database of the server's URL. Every process that uses
	// the server shares inUseLock until it ends.
	inUseLock = 0x70677465737431 // "pgtest1"
	setUpLock = 0x70677465737432

	noServer = `there is no PostgreSQL to test on. One of these helps:
- start Docker (%w)
- install a server (%w)
- set PETSTORE_TEST_DATABASE_URL to a postgres:// URL whose user may create databases and roles`
)

// server is a running server. Several processes may use it.
type server struct {
	url      *url.URL       // of the database from which to create others
	lease    *pgx.Conn      // keeps the server running until this process ends
	pool     *pgxpool.Pool  // creates and drops databases, because a new connection takes 7 ms of CPU time
	foreign  bool           // named by PETSTORE_TEST_DATABASE_URL: it outlives all runs
	inMemory bool           // its data are in memory
	prefix   string         // of the name of everything that tests create on the server
	template string         // name of the migrated database to clone
	replica  *replicaServer // its standby; nil except on the engine [Replica]
	cluster  *cluster       // nil except on the engine [Citus]
}

// findServer takes the first way to a server that works, see the package comment.
// The first process starts the server; the others wait for it and use it too.
func findServer(ctx context.Context) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	engine, err := CurrentEngine()
	if err != nil {
		return nil, err
	}
	switch address := os.Getenv("PETSTORE_TEST_DATABASE_URL"); {
	case address != "" && engine == Replica:
		return nil, errors.New("PETSTORE_TEST_ENGINE=replica starts its own servers; unset PETSTORE_TEST_DATABASE_URL")
	case address != "":
		return useForeign(ctx, address, engine)
	case engine == Citus:
		return nil, errors.New("PETSTORE_TEST_ENGINE=citus needs PETSTORE_TEST_DATABASE_URL, the URL of a superuser of the coordinator")
	}
	dir, err := serverDir()
	if err != nil {
		return nil, err
	}
	idle, err := idleTime()
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	running := filepath.Join(dir, "url")
	if s, err := reuse(ctx, running); s != nil || err != nil {
		if s != nil {
			s.inMemory = isInMemory(dir)
		}
		return s, err
	}
	// without the file, the next process replaces a server that does not stop itself yet
	if err := os.RemoveAll(running); err != nil {
		return nil, err
	}
	address, description, err := startServer(ctx, dir, engine)
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, address)
	if err == nil {
		err = stopWhenIdle(ctx, s.url.String(), "backend_type = 'client backend' AND pid <> pg_backend_pid()", idle)
	}
	if err == nil && s.replica != nil {
		err = stopWhenIdle(ctx, s.replica.url.String(), "backend_type = 'walreceiver'", idle)
	}
	if err == nil {
		err = os.WriteFile(running, []byte(address), 0o600)
	}
	if err != nil {
		return nil, err
	}
	say(description)
	s.inMemory = isInMemory(dir)
	return s, s.setUp(ctx)
}

// useForeign uses the server of PETSTORE_TEST_DATABASE_URL.
func useForeign(ctx context.Context, address string, engine Engine) (*server, error) {
	s, err := open(ctx, address)
	if err == nil && engine == Citus {
		s.cluster, err = s.findCluster(ctx)
	}
	if err == nil {
		err = s.setUp(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("PETSTORE_TEST_DATABASE_URL: %w", err)
	}
	s.foreign = true
	say(fmt.Sprintf("PostgreSQL %s of PETSTORE_TEST_DATABASE_URL", s.lease.PgConn().ParameterStatus("server_version")))
	return s, nil
}

// reuse connects to the server that an earlier process started, whose URL is in the
// file. It returns nil if there is none, or if it has ended or is about to.
func reuse(ctx context.Context, running string) (*server, error) {
	address, err := os.ReadFile(running)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := open(ctx, string(address))
	ended := err != nil && hasEnded(err)
	if err == nil {
		err = s.setUp(ctx)
		ended = err != nil && s.lease.IsClosed() && ctx.Err() == nil // by the server
	}
	if err != nil && !ended {
		return nil, err
	}
	if ended {
		return nil, nil
	}
	return s, nil
}

// serverDir creates and returns the directory in which the processes of this user
// that want the same server find it.
func serverDir() (string, error) {
	cache, err := localpg.CacheDir()
	if err != nil {
		return "", err
	}
	hostname, _ := os.Hostname() // other hosts and users may have the same Docker engine
	wanted := fmt.Sprintf("%q %q %q %q %q %q", hostname, cache, os.Getenv("PETSTORE_TEST_ENGINE"), os.Getenv("DOCKER_HOST"), os.Getenv("PETSTORE_TEST_POSTGRES_IMAGE"), os.Getenv("PETSTORE_PG_BIN"))
	dir := filepath.Join(cache, "test-"+digest(wanted)[:8])
	if err := os.MkdirAll(dir, localpg.DirMode()); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, localpg.DirMode()) // whatever the umask
}

func digest(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// lockFile locks a file until it is closed.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	return file, err
}

// hasEnded reports whether an error of [open] means that the server has ended or is
// about to.
func hasEnded(err error) bool {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(pgErr.Code, "57P") // it starts, shuts down or has crashed
	}
	return !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, syscall.EAGAIN)
}

// startServer starts a server, in a container or else from binaries, and returns its
// URL and description. The data of the cluster does not outlive its server, so neither
// a crash nor a new version of PostgreSQL needs any care.
//
// On the engine [Replica], address has the URL of the standby in a second line.
func startServer(ctx context.Context, dir string, engine Engine) (address, description string, err error) {
	if engine == Replica {
		return startPair(ctx, dir)
	}
	address, description, containerErr := startContainer(ctx, dir)
	if containerErr == nil {
		return address, description, nil
	}
	binaries, err := localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), os.Stderr)
	if err != nil {
		return "", "", fmt.Errorf(noServer, containerErr, err)
	}
	data, err := serverData(dir)
	if err != nil {
		return "", "", err
	}
	cluster, err := localpg.Start(ctx, localpg.Options{
		Binaries: binaries,
		Dir:      filepath.Join(data, "pg"),
		Detached: true,
		Settings: map[string]string{"max_connections": maxConnections, "autovacuum": "off"},
	})
	if err != nil {
		return "", "", fmt.Errorf(noServer, containerErr, err)
	}
	return cluster.URL("postgres"), binaries.String() + " (private cluster)", nil
}

// open opens the lease and the pool. startServer has returned the address.
func open(ctx context.Context, address string) (_ *server, err error) {
	address, standby, hasStandby := strings.Cut(address, "\n")
	s := &server{prefix: "petstore_test_" + digest(address)[:8] + "_"}
	if s.url, err = url.Parse(address); err != nil || s.url.Scheme != "postgres" && s.url.Scheme != "postgresql" {
		return nil, errors.New("the server must be a URL that begins with postgres://")
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	config.MaxConns = parallelTests()
	if s.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), config); err != nil {
		return nil, err
	}
	if s.lease, err = pgx.Connect(ctx, address); err == nil && hasStandby {
		err = s.connectReplica(standby)
	}
	return s, err
}

// setUp takes the lock of the processes that use the server. A process that finds no
// other one first drops the databases that earlier ones left. After an error, the lease
// lasts until this process ends.
func (s *server) setUp(ctx context.Context) error {
	hash, err := migrationsHash(migrations.FS)
	if err != nil {
		return err
	}
	s.template = s.prefix + "template_" + hash
	return s.locked(ctx, func() error {
		var alone bool
		err := s.lease.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", inUseLock).Scan(&alone)
		if err == nil && alone {
			err = s.dropLeftovers(ctx)
		}
		if err != nil {
			return err
		}
		// unlocking a lock that is not held is only a warning
		return s.run(ctx, fmt.Sprintf("SELECT pg_advisory_lock_shared(%d), pg_advisory_unlock(%[1]d)", inUseLock))
	})
}

// locked calls f while no other process sets up the server.
func (s *server) locked(ctx context.Context, f func() error) error {
	if err := s.run(ctx, fmt.Sprintf("SELECT pg_advisory_lock(%d)", setUpLock)); err != nil {
		return err
	}
	return errors.Join(f(), s.run(ctx, fmt.Sprintf("SELECT pg_advisory_unlock(%d)", setUpLock)))
}

// run runs statements on the lease, up to the first that fails.
func (s *server) run(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := s.lease.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// everywhere runs statements on a connection, each on all nodes of a cluster, up to the
// first that fails.
func (s *server) everywhere(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, sql := range statements {
		_, err := conn.Exec(ctx, sql)
		if err == nil && s.cluster != nil {
			err = s.cluster.onWorkers(ctx, conn, sql)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// emptyTemplate is the name of the template of [NewEmpty] on a cluster.
func (s *server) emptyTemplate() string { return s.prefix + "template_empty" }

// dropLeftovers drops the databases of earlier tests, and templates with other
// migrations than ours.
func (s *server) dropLeftovers(ctx context.Context) error {
	rows, err := s.lease.Query(ctx, "SELECT datname::text FROM pg_database WHERE starts_with(datname, $1) AND datname NOT IN ($2, $3)", s.prefix, s.template, s.emptyTemplate())
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range names {
		err = errors.Join(err, s.run(ctx, "ALTER DATABASE "+quote(name)+" IS_TEMPLATE false"), s.everywhere(ctx, s.lease, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)"))
	}
	return err
}

// idleTime returns the time without a client after which a server stops itself.
func idleTime() (time.Duration, error) {
	value := os.Getenv("PETSTORE_TEST_IDLE")
	if value == "" {
		return time.Minute, nil
	}
	idle, err := time.ParseDuration(value)
	if err != nil || idle <= 0 {
		return 0, fmt.Errorf("PETSTORE_TEST_IDLE is %q, but must be a duration such as 1m", value)
	}
	return idle, nil
}

// stopWhenIdle has the server of a URL stop itself when no row of pg_stat_activity met
// the condition for that time. One of its own sessions waits for that, even after its
// client has ended. No process of a test run is sure to be the last one.
func stopWhenIdle(ctx context.Context, address, inUse string, idle time.Duration) error {
	conn, err := pgconn.Connect(ctx, address)
	if err != nil {
		return err
	}
	sql := fmt.Sprintf(`DO $$
DECLARE
	seconds constant float8 := %g;
	last_use timestamptz := clock_timestamp();
BEGIN
	LOOP
		PERFORM pg_sleep(seconds / 10);
		IF EXISTS (SELECT FROM pg_stat_activity WHERE %s) THEN
			last_use := clock_timestamp();
		END IF;
		-- a process that comes now waits for this lock, until the server ends
		EXIT WHEN clock_timestamp() > last_use + seconds * interval '1 s' AND pg_try_advisory_lock(%d);
		COMMIT; -- the next pg_stat_activity is a new one
	END LOOP;
	EXECUTE format('COPY (SELECT) TO PROGRAM %%L',
		'cat >/dev/null; kill -INT ' || split_part(pg_read_file('postmaster.pid'), E'\n', 1));
END $$`, idle.Seconds(), inUse, inUseLock)
	result := conn.Exec(context.WithoutCancel(ctx), sql) // sends it
	go func() { _ = result.Close() }()                   // returns when the server ends
	return nil
}
