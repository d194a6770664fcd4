package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"

	"petstore/internal/postgres"
	"petstore/migrations"
)

// template returns the name of a migrated database to clone. The first process
// that wants it creates it, and the others wait for that one.
func (s *server) template(ctx context.Context) (string, error) {
	name, err := s.templateName()
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // unlocks too
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return "", err
	}
	var finished bool
	err = conn.QueryRow(ctx, "SELECT datistemplate FROM pg_database WHERE datname = $1", name).Scan(&finished)
	switch {
	case err == nil && finished:
		return name, nil
	case err == nil: // its creator was killed
		if _, err := conn.Exec(ctx, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", quote(name))); err != nil {
			return "", err
		}
	case !errors.Is(err, pgx.ErrNoRows):
		return "", err
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+quote(name)); err != nil {
		return "", err
	}
	if err := s.ensureServingRole(ctx, conn); err != nil {
		return "", err
	}
	if err := migrate(ctx, s.databaseURL(name), s.servingRole()); err != nil {
		return "", err
	}
	// a connection to a template would keep it from being cloned
	_, err = conn.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s IS_TEMPLATE true ALLOW_CONNECTIONS false", quote(name)))
	return name, err
}

func migrate(ctx context.Context, url, servingRole string) error {
	migrations, err := postgres.OpenMigrations(ctx, url)
	if err != nil {
		return err
	}
	if _, err = migrations.Up(ctx); err == nil {
		err = migrations.GrantServing(ctx, servingRole)
	}
	return errors.Join(err, migrations.Close())
}

// ensureServingRole creates the role if it does not exist.
func (s *server) ensureServingRole(ctx context.Context, conn *pgx.Conn) error {
	var exists bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", s.servingRole()).Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", quote(s.servingRole()), s.servingPassword()))
	return err
}

// templateName changes with every change of the migrations.
func (s *server) templateName() (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(migrations.FS, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(migrations.FS, path)
		fmt.Fprintf(hash, "%s %d\n%s", path, len(content), content)
		return err
	})
	return s.prefix() + "template_" + hex.EncodeToString(hash.Sum(nil))[:16], err
}
