package postgres

import (
	"context"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// OpenMigrationsOf is [OpenMigrations] with other migrations.
func OpenMigrationsOf(ctx context.Context, url string, files fs.FS) (*Migrations, error) {
	return openMigrations(ctx, url, files)
}

// Connect connects as a pool does, but looks host names up with a function.
func Connect(ctx context.Context, url string, lookUp pgconn.LookupFunc) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.LookupFunc = lookUp
	boundSession(config)
	return pgx.ConnectConfig(ctx, config)
}

// EndOfRecord is an SQL expression of the position lsn.
const EndOfRecord = endOfRecord

// SchemaVersions is the query of [DB.SchemaFit].
const SchemaVersions = schemaVersions

// FormerPrivileges are granted, although no query needs them.
var FormerPrivileges = formerPrivileges

// HashOf is the hash by which Citus distributes accounts.
func HashOf(id int64) int32 { return hashOf(id) }

// ErrNodeLost is the error of a statement on a lost node.
var ErrNodeLost = errNodeLost

// OutsideConfig returns the configuration of a connection outside the pool.
func (d *DB) OutsideConfig() *pgx.ConnConfig { return d.outsideConfig() }

// SetLastReset sets when the pool was reset.
func (d *DB) SetLastReset(at time.Time) { d.lastReset.Store(at.UnixNano()) }

// IdleConns returns the number of idle connections to a replica.
func (r *Replicas) IdleConns(i int) int32 { return r.all[i].db.Pool().Stat().IdleConns() }

// ReleaseOverdue acquires a connection, and releases it when its bound has ended but has not closed it
// yet. It returns the process of the connection.
func (d *DB) ReleaseOverdue(ctx context.Context) (process uint32, err error) {
	taken, err := d.acquire(ctx)
	if err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	taken.overdue = time.AfterFunc(0, func() { close(ended) })
	<-ended
	process = taken.Conn.Conn().PgConn().PID()
	taken.Release()
	return process, nil
}
