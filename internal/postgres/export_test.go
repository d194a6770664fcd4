package postgres

import (
	"context"
	"io/fs"
)

// OpenMigrationsOf is [OpenMigrations] with other migrations.
func OpenMigrationsOf(ctx context.Context, url string, files fs.FS) (*Migrations, error) {
	return openMigrations(ctx, url, files)
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

// IdleConns returns the number of idle connections to a replica.
func (r *Replicas) IdleConns(i int) int32 { return r.all[i].db.Pool().Stat().IdleConns() }
