package postgres

import (
	"context"
	"io/fs"

	"github.com/pressly/goose/v3"

	"petstore/migrations"
)

// SchemaFit says whether the schema of a database fits this program.
type SchemaFit string

// The values of a [SchemaFit].
const (
	// SchemaFits: the database has all migrations of this program. It may have those of the
	// next release, because a deployment migrates before it replaces the programs.
	SchemaFits SchemaFit = "ok"
	// SchemaBehind: the database lacks migrations of this program.
	SchemaBehind SchemaFit = "behind"
	// SchemaAhead: a migration has removed something that this program uses.
	SchemaAhead SchemaFit = "ahead"
	// SchemaDenied: the role lacks privileges that [Migrations.GrantServing] grants. [DB.SchemaFit]
	// notices only that it may not read the schema. [DB.MissingPrivileges] finds the others.
	SchemaDenied SchemaFit = "denied"
)

// Problem says what is wrong and what to do, for an operator; "" if the schema fits.
func (f SchemaFit) Problem() string {
	switch f {
	case SchemaBehind:
		return "the database schema is behind; run `petstore migrate up`"
	case SchemaAhead:
		return "the database schema no longer supports this release; start the release that has migrated it"
	case SchemaDenied:
		return "the role of DATABASE_URL lacks privileges on the tables; run `petstore migrate up` as the owner with PETSTORE_SERVING_ROLE set to this role"
	default:
		return ""
	}
}

// schemaVersions reads the version of the schema, and the oldest version whose programs it
// supports. The comment comes from a migration that removes something (see CONTRIBUTING.md).
const schemaVersions = `
	SELECT coalesce(max(version_id), 0),
	       coalesce(substring(obj_description('goose_db_version'::regclass, 'pg_class') FROM '^supports programs from ([0-9]{1,9})$')::bigint, 0)
	FROM goose_db_version
	WHERE is_applied`

// SchemaFit reports whether the schema of the database fits this program.
func (d *DB) SchemaFit(ctx context.Context) (SchemaFit, error) {
	var version, oldest int64
	err := d.QueryRow(ctx, schemaVersions).Scan(&version, &oldest)
	switch state := sqlState(err); {
	case state == undefinedTable:
		return d.missingSchema(ctx)
	case state == insufficientPrivilege:
		return SchemaDenied, nil
	case err != nil:
		return "", err
	case version < latestVersion:
		return SchemaBehind, nil
	case latestVersion < oldest:
		return SchemaAhead, nil
	}
	return SchemaFits, nil
}

// missingSchema reports why the role finds no table of the migrations: there is none, or the role may
// not use its schema.
func (d *DB) missingSchema(ctx context.Context) (SchemaFit, error) {
	var isHidden bool
	err := d.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'goose_db_version' AND NOT has_schema_privilege(relnamespace, 'USAGE'))").Scan(&isHidden)
	switch {
	case err != nil:
		return "", err
	case isHidden:
		return SchemaDenied, nil
	}
	return SchemaBehind, nil
}

// latestVersion is the version of the last embedded migration.
var latestVersion = func() int64 {
	files, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil || len(files) == 0 {
		panic("postgres: no migrations are embedded")
	}
	version, err := goose.NumericComponent(files[len(files)-1])
	if err != nil {
		panic("postgres: " + err.Error())
	}
	return version
}()

// SQLSTATE codes before and during the first migration, while the tables do not
// exist or the role cannot read them yet (see GrantServing).
const (
	undefinedTable        = "42P01"
	insufficientPrivilege = "42501"
)
