package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/localpg"
)

const (
	// maxConnections is for all the tests of a run together.
	maxConnections = "400"
	endTimeout     = time.Minute
	connectTimeout = 10 * time.Second

	// keptComment marks the database of a failed test.
	keptComment = "kept: its test failed"

	// dependentObjects is the SQLSTATE for a role that has privileges somewhere.
	dependentObjects = "2BP01"
)

// startPrivate runs a cluster from the machine's own binaries, or fetched ones.
func startPrivate(ctx context.Context, r run, lines io.Writer) (keptServer, error) {
	binaries, err := localpg.Find(ctx, localpg.FindOptions{Bin: os.Getenv("PETSTORE_PG_BIN"), Progress: lines})
	if err != nil {
		return keptServer{}, err
	}
	// never the one of a keeper that was killed, it may be damaged
	dir, err := os.MkdirTemp(r.Dir, "db-")
	if err == nil {
		err = os.Chmod(dir, 0o711) // for the server's user
	}
	if err != nil {
		return keptServer{}, err
	}
	cluster, err := localpg.Start(ctx, localpg.Options{
		Binaries:   binaries,
		Dir:        dir,
		Disposable: true,
		Settings:   map[string]string{"max_connections": maxConnections},
	})
	if err != nil {
		return keptServer{}, err
	}
	return keptServer{
		server: server{
			URL:         cluster.URL("postgres"),
			Description: binaries.String() + " (private cluster)",
			Prefix:      r.prefix(),
		},
		ended: cluster.Done(),
		stop: sync.OnceFunc(func() {
			ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
			defer cancel()
			if err := cluster.Stop(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}),
	}, nil
}

// useForeign uses a server that somebody else runs.
func useForeign(ctx context.Context, r run, address string) (keptServer, error) {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		return keptServer{}, errors.New("must be a URL that begins with postgres://")
	}
	found := server{URL: address, Foreign: true, Prefix: r.prefix()}
	version, err := found.version(ctx)
	if err != nil {
		return keptServer{}, err
	}
	found.Description = fmt.Sprintf("PostgreSQL %s at %s (PETSTORE_TEST_DATABASE_URL)", version, parsed.Redacted())
	return keptServer{
		server: found,
		stop: sync.OnceFunc(func() {
			ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
			defer cancel()
			if err := found.dropAll(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}),
	}, nil
}

// version asks the server, which is the proof that it answers.
func (s server) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var version string
	err = conn.QueryRow(ctx, "SHOW server_version").Scan(&version)
	version, _, _ = strings.Cut(version, " ") // without the distribution's name
	return version, err
}

// dropAll drops what the run has left on the server: the template, and the
// databases of tests that were killed. Those of failed tests stay, and with them
// the role that may read and write them.
func (s server) dropAll(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `SELECT datname, datistemplate FROM pg_database
		WHERE starts_with(datname, $1) AND shobj_description(oid, 'pg_database') IS DISTINCT FROM $2`,
		s.Prefix, keptComment)
	if err != nil {
		return err
	}
	type database struct {
		Name     string
		Template bool
	}
	databases, err := pgx.CollectRows(rows, pgx.RowToStructByPos[database])
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range databases {
		if d.Template {
			_, err := conn.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s IS_TEMPLATE false", quote(d.Name)))
			errs = append(errs, err)
		}
		_, err := conn.Exec(ctx, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", quote(d.Name)))
		errs = append(errs, err)
	}
	_, err = conn.Exec(ctx, "DROP ROLE IF EXISTS "+quote(s.servingRole()))
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != dependentObjects {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
