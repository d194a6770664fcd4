package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

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
	return digest(all.String())[:16], err
}

// makeTemplate makes the template if it does not exist, and the serving role. A
// database of its name that is not finished is of a process that was killed.
func (s *server) makeTemplate(ctx context.Context) error {
	name, exists := quote(s.template), false
	err := s.lease.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)", s.template).Scan(&exists)
	if err != nil || exists {
		return err
	}
	if err := s.run(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)", "CREATE DATABASE "+name,
		fmt.Sprintf(`DO $$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '%[1]s') THEN
		CREATE ROLE %[1]s LOGIN PASSWORD '%[2]s';
	END IF;
END $$`, s.servingRole(), s.servingPassword())); err != nil {
		return err
	}
	m, err := postgres.OpenMigrations(ctx, s.databaseURL(s.template).String())
	if err != nil {
		return err
	}
	if _, err = m.Up(ctx); err == nil {
		err = m.GrantServing(ctx, s.servingRole())
	}
	if err := errors.Join(err, m.Close()); err != nil {
		return err
	}
	// a connection to a template would keep it from being cloned
	return s.run(ctx, "ALTER DATABASE "+name+" IS_TEMPLATE true ALLOW_CONNECTIONS false")
}
