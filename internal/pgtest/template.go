package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"petstore/internal/postgres"
	"petstore/internal/tools/must"
)

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
	must.OK(errors.Join(must.Attempt(func() {
		must.Get(m.Up(ctx))
		if distribute {
			distributeTables(ctx, address)
		}
		must.OK(m.GrantServing(ctx, role))
	}), m.Close()))
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
