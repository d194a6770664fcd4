package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"petstore/internal/sleep"
	"petstore/migrations"
)

// migrationConnectTimeout limits the wait for a server that accepts connections and
// sends nothing.
const migrationConnectTimeout = 10 * time.Second

// The time that one process waits for another's migration: ten minutes.
const (
	migrationLockInterval = 1 // seconds
	migrationLockAttempts = 600
)

// Migrations migrates the schema of one database. A session lock makes concurrent
// processes wait for one another.
type Migrations struct {
	// Progress is called before each migration of Up, with its name and the number of
	// migrations before it; nil: nobody needs it.
	Progress func(name string, done, total int)

	provider *goose.Provider
	pool     *pgxpool.Pool
	files    fs.FS
}

// Migration is one migration of the schema.
type Migration struct {
	Version int64  `json:"-"`
	Name    string `json:"name"` // of its file
	// AppliedAt is nil while the migration is pending.
	AppliedAt *time.Time `json:"appliedAt"`
	// Duration is the time that Up or Down took for it.
	Duration time.Duration `json:"-"`
}

// OpenMigrations opens its own connection to url, without the statement limits of
// the pool, because a migration may take longer. It returns an error if the connection
// leads through a pooler, which would leave the session lock on a connection of others.
func OpenMigrations(ctx context.Context, url string) (*Migrations, error) {
	return openMigrations(ctx, url, migrations.FS)
}

func openMigrations(ctx context.Context, url string, files fs.FS) (*Migrations, error) {
	config, err := pgxpool.ParseConfig(url) // unlike pgx, it removes pool_* parameters
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = "petstore migrate"
	if config.ConnConfig.ConnectTimeout <= 0 || config.ConnConfig.ConnectTimeout > migrationConnectTimeout {
		config.ConnConfig.ConnectTimeout = migrationConnectTimeout
	}
	wanted := migrationSettings(config.ConnConfig)
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		err := identify(ctx, conn.PgConn(), wanted)
		if err == nil && ThroughPooler(conn) {
			err = errMigrateDirectly
		}
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	m := &Migrations{pool: pool, files: files}
	if err := m.open(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return m, nil
}

// errPartOfRestore says what to do if goose_db_version has no row. Every migrated database has one, and
// restore.sh restores them last.
var errPartOfRestore = errors.New("the database has only a part of its backup; drop it, create it again, and repeat the restore (docs/backup.md)")

// errNotOwner says what to do if the role may not create the first table, or use the table of goose.
var errNotOwner = errors.New("the role may not migrate the schema; run `petstore migrate` as the owner of the database")

// errMigrateDirectly says what to do if migrations would run through a pooler.
var errMigrateDirectly = errors.New("migrations need a connection without a connection pooler; set PETSTORE_DIRECT_URL to a URL without one")

// open connects, and opens the provider of the migrations.
func (m *Migrations) open(ctx context.Context) error {
	if err := m.pool.Ping(ctx); err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(migrationLockInterval, migrationLockAttempts))
	if err != nil {
		return err
	}
	m.provider, err = goose.NewProvider(goose.DialectPostgres, stdlib.OpenDBFromPool(m.pool), m.files, goose.WithSessionLocker(locker))
	return err
}

// migrationSettings returns the settings of a connection for migrations, without those that
// its URL sets. The role may have the limits of serve ([RoleSettings]), and a migration may
// take longer. PostgreSQL notices within a second that the process has been killed, and ends its
// statement, which may hold locks.
//
// With the last one, a statement that changes several shards of a Citus cluster changes one
// after the other. In a transaction with foreign keys to reference tables, Citus requires
// it. PostgreSQL without Citus ignores the setting.
func migrationSettings(config *pgx.ConnConfig) settings {
	wanted := settings{
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"enable_seqscan":                      "on",
		"client_connection_check_interval":    "1s",
		"citus.multi_shard_modify_mode":       "sequential",
	}
	for name := range config.RuntimeParams {
		delete(wanted, name)
	}
	return wanted
}

// Close closes the connection. It waits for the server for at most a second.
func (m *Migrations) Close() {
	_ = m.provider.Close() // it keeps no connection
	sleep.AtMost(closeTimeout, m.pool.Close)
}

// Up applies every pending migration, each in its own transaction, and returns
// those applied. After an error, the migrations before it stay applied. In a distributed
// database, it distributes the tables that a migration has created before the next one. So
// the next can create their foreign keys, which need distributed tables. It also suits the
// functions that a migration has replaced to Citus.
func (m *Migrations) Up(ctx context.Context) (applied []Migration, err error) {
	distributed, err := m.isDistributed(ctx)
	if err != nil {
		return nil, err
	}
	pending, err := m.pending(ctx)
	if err == nil && len(pending) == len(m.provider.ListSources()) {
		err = m.checkOwner(ctx) // goose tries for three seconds
	}
	if err != nil {
		return nil, err
	}
	for {
		if distributed {
			if err := m.Distribute(ctx, func(string, time.Duration) {}); err != nil {
				return applied, err
			}
		}
		if done := len(applied); done < len(pending) && m.Progress != nil {
			m.Progress(pending[done].Name, done, len(pending))
		}
		result, err := m.provider.UpByOne(ctx)
		switch {
		case errors.Is(err, goose.ErrNoNextVersion):
			return applied, nil
		case err != nil:
			return applied, wrapMigration(err)
		}
		applied = append(applied, fromResult(result))
	}
}

// checkOwner returns an error if the role may not create the first table.
func (m *Migrations) checkOwner(ctx context.Context) error {
	var allowed bool
	err := m.pool.QueryRow(ctx, "SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), true)").Scan(&allowed)
	if err == nil && !allowed {
		return errNotOwner
	}
	return wrapMigration(err)
}

// pending returns the migrations that are not applied.
func (m *Migrations) pending(ctx context.Context) ([]Migration, error) {
	all, err := m.Status(ctx)
	return slices.DeleteFunc(all, func(one Migration) bool { return one.AppliedAt != nil }), err
}

// Down reverts the latest migration and returns it, or nothing if there is none. It returns an
// error if a later release has applied the latest one.
func (m *Migrations) Down(ctx context.Context) ([]Migration, error) {
	later, err := m.Later(ctx)
	switch {
	case err != nil:
		return nil, err
	case later > 0:
		return nil, fmt.Errorf("the schema has the migration %d, but the last one of this program is %d; use the program of the later release", later, m.latest())
	}
	result, err := m.provider.Down(ctx)
	if errors.Is(err, goose.ErrNoNextVersion) {
		return nil, nil
	}
	if result == nil {
		return nil, wrapMigration(err)
	}
	reverted := []Migration{fromResult(result)}
	if err != nil {
		return reverted, wrapMigration(err)
	}
	// The functions that it has restored.
	if distributed, err := m.isDistributed(ctx); err != nil || !distributed {
		return reverted, err
	}
	return reverted, m.Distribute(ctx, func(string, time.Duration) {})
}

// Status returns all migrations of this program, by version.
func (m *Migrations) Status(ctx context.Context) ([]Migration, error) {
	// goose stores the time in the time zone of its session, which is the same in this one.
	applied, err := readApplied(ctx, m.pool, "version_id, tstamp::timestamptz", pgx.RowToStructByPos[appliedAt])
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, source := range m.provider.ListSources() {
		one := Migration{Version: source.Version, Name: source.Path}
		if i := slices.IndexFunc(applied, func(a appliedAt) bool { return a.Version == source.Version }); i >= 0 {
			one.AppliedAt = new(applied[i].At.UTC())
		}
		all = append(all, one)
	}
	return all, nil
}

// Version returns the version of the schema, 0 for an empty database.
func (m *Migrations) Version(ctx context.Context) (int64, error) {
	applied, err := m.applied(ctx)
	return slices.Max(append(applied, 0)), err
}

// Later returns the version of the schema if a later release has migrated it, or else 0.
func (m *Migrations) Later(ctx context.Context) (int64, error) {
	version, err := m.Version(ctx)
	if version <= m.latest() {
		version = 0
	}
	return version, err
}

// latest returns the version of the last migration of this program.
func (m *Migrations) latest() int64 {
	sources := m.provider.ListSources()
	return sources[len(sources)-1].Version
}

// applied returns the versions of the migrations that are applied. It neither creates the table of
// goose nor waits for a migration in progress, unlike the methods of the provider.
func (m *Migrations) applied(ctx context.Context) ([]int64, error) {
	return readApplied(ctx, m.pool, "version_id", pgx.RowTo[int64])
}

// appliedAt is when a migration was applied.
type appliedAt struct {
	Version int64
	At      time.Time
}

// readApplied reads columns of the table of goose. The role of serve may read only the versions.
func readApplied[Row any](ctx context.Context, pool *pgxpool.Pool, columns string, scan pgx.RowToFunc[Row]) ([]Row, error) {
	rows, _ := pool.Query(ctx, "SELECT "+columns+" FROM goose_db_version WHERE is_applied")
	all, err := pgx.CollectRows(rows, scan)
	if sqlState(err) == undefinedTable {
		return nil, nil
	}
	if err == nil && len(all) == 0 {
		return nil, errPartOfRestore
	}
	return all, wrapMigration(err)
}

func fromResult(result *goose.MigrationResult) Migration {
	return Migration{Version: result.Source.Version, Name: result.Source.Path, Duration: result.Duration}
}

func wrapMigration(err error) error {
	switch {
	case err == nil:
		return nil
	case sqlState(err) == insufficientPrivilege && strings.Contains(err.Error(), "goose_db_version"):
		return errNotOwner
	}
	return fmt.Errorf("postgres: migrating: %w", err)
}
