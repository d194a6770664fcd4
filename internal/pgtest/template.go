package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"petstore/internal/postgres"
)

// migrationsHash changes with every change of the migrations or of the privileges.
func migrationsHash(migrations fs.FS) (string, error) {
	files, err := fs.Glob(migrations, "*")
	var all strings.Builder
	for _, file := range files {
		content, readErr := fs.ReadFile(migrations, file)
		all.WriteString(file + " " + digest(string(content)) + "\n")
		err = errors.Join(err, readErr)
	}
	all.WriteString(postgres.ServingPrivileges())
	year, week := time.Now().UTC().ISOWeek() // the migrations create partitions for this week and a few more
	fmt.Fprint(&all, year, week)
	return digest(all.String())[:16], err
}

// makeTemplate makes the template if it does not exist, and the serving role. A
// database of its name that is not finished is of a process that was killed.
func (s *server) makeTemplate(ctx context.Context) error {
	if done, err := s.isTemplate(ctx, s.template); err != nil || done {
		return err
	}
	options := ""
	if s.cluster != nil {
		if err := s.makeEmpty(ctx); err != nil {
			return err
		}
		options = cloneOf(s.emptyTemplate())
	}
	name := quote(s.template)
	if err := s.everywhere(ctx, s.lease, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)", "CREATE DATABASE "+name+" "+options); err != nil {
		return err
	}
	if err := s.run(ctx, fmt.Sprintf(`DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '%[1]s') THEN
		CREATE ROLE %[1]s LOGIN PASSWORD '%[2]s';
	END IF;
END $$`, s.servingRole(), s.servingPassword())); err != nil {
		return err
	}
	if s.replica != nil {
		if err := s.run(ctx, "GRANT pg_read_all_stats TO "+s.servingRole()); err != nil {
			return err
		}
	}
	m, err := postgres.OpenMigrations(ctx, s.databaseURL(s.template).String())
	if err != nil {
		return err
	}
	if _, err = m.Up(ctx); err == nil && s.cluster != nil {
		err = s.cluster.distribute(ctx, s.databaseURL(s.template))
	}
	if err == nil {
		err = m.GrantServing(ctx, s.servingRole())
	}
	if err := errors.Join(err, m.Close()); err != nil {
		return err
	}
	return s.finish(ctx, s.template)
}

// isTemplate reports whether a template is finished.
func (s *server) isTemplate(ctx context.Context, name string) (is bool, err error) {
	err = s.lease.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)", name).Scan(&is)
	return is, err
}

// finish makes a database a template. A connection to it would keep it from being cloned.
func (s *server) finish(ctx context.Context, name string) error {
	if s.cluster != nil {
		if err := s.everywhere(ctx, s.lease, endSessions(name)...); err != nil {
			return err
		}
	}
	return s.run(ctx, "ALTER DATABASE "+quote(name)+" IS_TEMPLATE true ALLOW_CONNECTIONS false")
}
