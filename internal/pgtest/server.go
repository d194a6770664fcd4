package pgtest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/localpg"
	"petstore/internal/pgtest/standby"
	"petstore/internal/postgres"
	"petstore/internal/tools/must"
	"petstore/migrations"
)

const (
	connectTimeout = 10 * time.Second
	// findTimeout is longer than all ways to a server take together.
	findTimeout = 8 * time.Minute

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

// serverSettings are the settings of our servers. Autovacuum is off, because its workers would
// visit the databases of all tests, a few at each moment.
var serverSettings = map[string]string{"max_connections": maxConnections, "autovacuum": "off"}

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
func findServer() *server {
	ctx, cancel := context.WithTimeout(context.Background(), findTimeout)
	defer cancel()
	address := os.Getenv("PETSTORE_TEST_DATABASE_URL")
	must.Hold(slices.Contains(engines, current()), "PETSTORE_TEST_ENGINE is %q, but must be one of %q", current(), engines)
	must.Hold(address == "" || !Is(Replica), "PETSTORE_TEST_ENGINE=replica starts its own servers; unset PETSTORE_TEST_DATABASE_URL")
	must.Hold(address != "" || !Is(Citus), "PETSTORE_TEST_ENGINE=citus needs PETSTORE_TEST_DATABASE_URL, the URL of a superuser of the coordinator")
	if address != "" {
		return useForeign(ctx, address)
	}
	dir, idle := serverDir(), idleTime()
	defer lockFile(filepath.Join(dir, "lock")).Close()
	running := filepath.Join(dir, "url")
	s := reuse(ctx, running)
	if s == nil {
		// without the file, the next process replaces a server that does not stop itself yet
		must.OK(os.RemoveAll(running))
		address, description := startServer(ctx, dir)
		s = open(ctx, address)
		stopWhenIdle(ctx, s.url, "backend_type = 'client backend' AND pid <> pg_backend_pid()", idle)
		if s.replica != nil {
			stopWhenIdle(ctx, s.replica.url, "backend_type = 'walreceiver'", idle)
		}
		must.OK(os.WriteFile(running, []byte(address), 0o600))
		say(description)
		s.setUp(ctx)
	}
	s.inMemory = isInMemory(dir)
	return s
}

// useForeign uses the server of PETSTORE_TEST_DATABASE_URL.
func useForeign(ctx context.Context, address string) (s *server) {
	must.Explain("PETSTORE_TEST_DATABASE_URL", func() {
		s = open(ctx, address)
		if Is(Citus) {
			s.cluster = s.findCluster(ctx)
		}
		s.setUp(ctx)
	})
	s.foreign = true
	say(fmt.Sprintf("PostgreSQL %s of PETSTORE_TEST_DATABASE_URL", s.lease.PgConn().ParameterStatus("server_version")))
	return s
}

// reuse connects to the server that an earlier process started, whose URL is in the
// file. It returns nil if there is none, or if it has ended or is about to.
func reuse(ctx context.Context, running string) (s *server) {
	address, err := os.ReadFile(running)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must.OK(err)
	err = must.Attempt(func() { s = open(ctx, string(address)) })
	ended := err != nil && hasEnded(err)
	if err == nil {
		err = must.Attempt(func() { s.setUp(ctx) })
		ended = err != nil && s.lease.IsClosed() && ctx.Err() == nil // by the server
	}
	if ended {
		return nil
	}
	must.OK(err)
	return s
}

// serverDir creates and returns the directory in which the processes of this user
// that want the same server find it.
func serverDir() string {
	cache := must.Get(localpg.CacheDir())
	hostname, _ := os.Hostname() // other hosts and users may have the same Docker engine
	wanted := fmt.Sprintf("%q %q %q %q %q %q", hostname, cache, os.Getenv("PETSTORE_TEST_ENGINE"), os.Getenv("DOCKER_HOST"), os.Getenv("PETSTORE_TEST_POSTGRES_IMAGE"), os.Getenv("PETSTORE_PG_BIN"))
	dir := filepath.Join(cache, "test-"+digest(wanted)[:8])
	must.OK(os.MkdirAll(dir, localpg.DirMode()))
	must.OK(os.Chmod(dir, localpg.DirMode())) // whatever the umask
	return dir
}

func digest(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// lockFile locks a file until it is closed.
func lockFile(path string) *os.File {
	file := must.Get(os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600))
	err := error(syscall.EINTR)
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	must.OK(err)
	return file
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
// On the engine [Replica], address has the URL of a streaming standby in a second line.
func startServer(ctx context.Context, dir string) (address, description string) {
	containerErr := errors.New("but not on the engine replica")
	if !Is(Replica) {
		address, description, containerErr = startContainer(ctx, dir)
	}
	if containerErr == nil {
		return address, description
	}
	binaries, err := localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), os.Stderr)
	must.Hold(err == nil, noServer, containerErr, err)
	data, settings := serverData(dir), maps.Clone(serverSettings)
	if Is(Replica) {
		maps.Copy(settings, replicaSettings)
	}
	options := localpg.Options{Binaries: binaries, Dir: filepath.Join(data, "pg"), Detached: true, Settings: settings}
	cluster, err := localpg.Start(ctx, options)
	must.Hold(err == nil, noServer, containerErr, err)
	if !Is(Replica) {
		return cluster.URL("postgres"), binaries.String() + " (private cluster)"
	}
	options.Dir, options.Copy = filepath.Join(data, "standby"), standby.Of(cluster)
	second, err := localpg.Start(ctx, options)
	if err != nil {
		must.OK(errors.Join(err, cluster.Stop(ctx)))
	}
	return cluster.URL("postgres") + "\n" + second.URL("postgres"), binaries.String() + " with a streaming standby (private cluster)"
}

// open opens the lease and the pool. startServer has returned the address.
func open(ctx context.Context, address string) *server {
	address, second, hasSecond := strings.Cut(address, "\n")
	parsed, err := url.Parse(address)
	must.Hold(err == nil && (parsed.Scheme == "postgres" || parsed.Scheme == "postgresql"), "the server must be a URL that begins with postgres://")
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	s := &server{url: parsed, prefix: "petstore_test_" + digest(address)[:8] + "_", pool: openPool(address, parallelTests(), nil, nil)}
	s.lease = must.Get(pgx.Connect(ctx, address))
	if hasSecond {
		s.replica = &replicaServer{url: must.Get(url.Parse(second)), primary: openPool(address, syncConns, nil, nil), standby: openPool(second, syncConns, nil, nil)}
	}
	return s
}

// openPool returns a pool that outlives the context of the function that needs it.
func openPool(address string, maxConns int32, tracer pgx.QueryTracer, parameters map[string]string) *pgxpool.Pool {
	config := must.Get(pgxpool.ParseConfig(address))
	config.MaxConns, config.ConnConfig.Tracer = maxConns, tracer
	maps.Copy(config.ConnConfig.RuntimeParams, parameters)
	return must.Get(pgxpool.NewWithConfig(context.Background(), config))
}

// setUp takes the lock of the processes that use the server. A process that finds no
// other one first drops the databases that earlier ones left. After an error, the lease
// lasts until this process ends.
func (s *server) setUp(ctx context.Context) {
	s.template = s.prefix + "template_" + migrationsHash(migrations.FS)
	s.locked(ctx, func() {
		var alone bool
		must.OK(s.lease.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", inUseLock).Scan(&alone))
		if alone {
			s.dropLeftovers(ctx)
		}
		// unlocking a lock that is not held is only a warning
		s.run(ctx, fmt.Sprintf("SELECT pg_advisory_lock_shared(%d), pg_advisory_unlock(%[1]d)", inUseLock))
	})
}

// locked calls a function while no other process sets up the server.
func (s *server) locked(ctx context.Context, do func()) {
	s.run(ctx, fmt.Sprintf("SELECT pg_advisory_lock(%d)", setUpLock))
	err := must.Attempt(do)
	must.OK(errors.Join(err, must.Attempt(func() { s.run(ctx, fmt.Sprintf("SELECT pg_advisory_unlock(%d)", setUpLock)) })))
}

// run runs a statement on the lease.
func (s *server) run(ctx context.Context, sql string) {
	_, err := s.lease.Exec(ctx, sql)
	must.Hold(err == nil, "%s: %w", sql, err)
}

// everywhere runs statements on a connection, each on all nodes of a cluster.
func (s *server) everywhere(ctx context.Context, conn *pgx.Conn, statements ...string) {
	for _, sql := range statements {
		_, err := conn.Exec(ctx, sql)
		must.Hold(err == nil, "%s: %w", sql, err)
		if s.cluster != nil {
			s.cluster.onWorkers(ctx, conn, sql)
		}
	}
}

// emptyTemplate is the name of the template of [NewEmpty] on a cluster.
func (s *server) emptyTemplate() string { return s.prefix + "template_empty" }

// dropLeftovers drops the databases of earlier tests, and templates with other
// migrations than ours.
func (s *server) dropLeftovers(ctx context.Context) {
	rows, _ := s.lease.Query(ctx, "SELECT datname::text FROM pg_database WHERE starts_with(datname, $1) AND datname NOT IN ($2, $3)", s.prefix, s.template, s.emptyTemplate())
	for _, name := range must.Get(pgx.CollectRows(rows, pgx.RowTo[string])) {
		s.run(ctx, "ALTER DATABASE "+quote(name)+" IS_TEMPLATE false")
		s.everywhere(ctx, s.lease, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)")
	}
}

// idleTime returns the time without a client after which a server stops itself.
func idleTime() time.Duration {
	value := cmp.Or(os.Getenv("PETSTORE_TEST_IDLE"), "1m")
	idle, err := time.ParseDuration(value)
	must.Hold(err == nil && idle > 0, "PETSTORE_TEST_IDLE is %q, but must be a duration such as 1m", value)
	return idle
}

// stopWhenIdle has the server of a URL stop itself when no row of pg_stat_activity met
// the condition for that time. One of its own sessions waits for that, even after its
// client has ended. No process of a test run is sure to be the last one.
func stopWhenIdle(ctx context.Context, address *url.URL, inUse string, idle time.Duration) {
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
	result := must.Get(pgconn.Connect(ctx, address.String())).Exec(context.WithoutCancel(ctx), sql) // sends it
	go func() { _ = result.Close() }()                                                              // returns when the server ends
}

// migrationsHash changes with every change of the migrations or of the privileges.
func migrationsHash(migrations fs.FS) string {
	var all strings.Builder
	for _, file := range must.Get(fs.Glob(migrations, "*")) {
		all.WriteString(file + " " + digest(string(must.Get(fs.ReadFile(migrations, file)))) + "\n")
	}
	all.WriteString(postgres.ServingPrivileges())
	year, week := time.Now().UTC().ISOWeek() // the migrations create partitions for this week and a few more
	fmt.Fprint(&all, year, week)
	return digest(all.String())[:16]
}

// makeMigrated makes the template of [New] if it does not exist, and the serving role.
func (s *server) makeMigrated(ctx context.Context) {
	options := ""
	if s.cluster != nil {
		s.makeEmpty(ctx)
		options = cloneOf(s.emptyTemplate())
	}
	s.makeTemplate(ctx, s.template, options, func(address *url.URL) {
		s.run(ctx, fmt.Sprintf(`DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '%[1]s') THEN
		CREATE ROLE %[1]s LOGIN PASSWORD '%[2]s';
	END IF;
END $$`, s.servingRole(), s.servingPassword()))
		if s.replica != nil {
			s.run(ctx, "GRANT pg_read_all_stats TO "+s.servingRole())
		}
		migrate(ctx, address, s.servingRole(), s.cluster != nil)
	})
}

// migrate applies all migrations to a database, and grants a role the privileges of a server. It
// may distribute the tables on a Citus cluster.
func migrate(ctx context.Context, address *url.URL, role string, distribute bool) {
	m := must.Get(postgres.OpenMigrations(ctx, address.String()))
	defer m.Close()
	must.Get(m.Up(ctx))
	if distribute {
		distributeTables(ctx, address)
	}
	must.OK(m.GrantServing(ctx, role))
}

// makeTemplate makes a template if it does not exist. A database of its name that is not
// finished is of a process that was killed.
func (s *server) makeTemplate(ctx context.Context, name, options string, fill func(*url.URL)) {
	var exists bool
	must.OK(s.lease.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)", name).Scan(&exists))
	if exists {
		return
	}
	s.everywhere(ctx, s.lease, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)", "CREATE DATABASE "+quote(name)+" "+options)
	fill(withDatabase(s.url, name))
	if s.cluster != nil {
		s.everywhere(ctx, s.lease, endSessions(name)...)
	}
	// a connection to a database would keep it from being cloned
	s.run(ctx, "ALTER DATABASE "+quote(name)+" IS_TEMPLATE true ALLOW_CONNECTIONS false")
}
