// Package standby makes streaming standbys of private servers, for tests and for the programs of
// developers.
package standby

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
	"petstore/internal/tools/must"
)

// Of returns the Copy of [localpg.Options] that makes a new cluster a streaming standby of a running
// one. Its max_connections must be at least as high as on the primary. It is a base backup that
// follows its primary when it starts. Of does what pg_basebackup does, which the downloaded binaries
// lack
// (https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-LOWLEVEL-BASE-BACKUP).
//
// The primary keeps the WAL since the backup until the standby accepts connections.
func Of(primary *localpg.Cluster) func(context.Context, string) (end func(context.Context), err error) {
	return func(ctx context.Context, dir string) (func(context.Context), error) {
		conn, err := pgx.Connect(ctx, primary.URL("postgres"))
		if err != nil {
			return nil, err
		}
		if err := must.Attempt(func() { backUp(ctx, primary, conn, dir) }); err != nil {
			return nil, errors.Join(fmt.Errorf("copying the primary: %w", err), conn.Close(context.WithoutCancel(ctx)))
		}
		return func(ctx context.Context) { _ = conn.Close(ctx) }, nil // nobody needs it any more
	}
}

// Promote makes a standby the primary, and waits for it. pg_promote itself does not wait, because
// replay would wait for the end of a statement that waits for the end of replay.
func Promote(ctx context.Context, of *localpg.Cluster) error {
	const timeout = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return must.Attempt(func() {
		conn := must.Get(pgx.Connect(ctx, of.URL("postgres")))
		defer conn.Close(context.WithoutCancel(ctx))
		must.Get(conn.Exec(ctx, "SELECT pg_promote(false)"))
		must.Await(ctx, timeout, func() {
			var isStandby bool
			must.OK(conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&isStandby))
			must.Hold(!isStandby, "the server is still a standby")
		})
	})
}

func backUp(ctx context.Context, primary *localpg.Cluster, conn *pgx.Conn, dir string) {
	var label string
	slot := fmt.Sprintf("backup_%d", conn.PgConn().PID())
	must.Get(conn.Exec(ctx, "SELECT pg_create_physical_replication_slot($1, true, true), pg_backup_start($1, true)", slot))
	copyData(primary.Data(), dir)
	must.OK(conn.QueryRow(ctx, "SELECT labelfile FROM pg_backup_stop(false)").Scan(&label))
	settings := must.Get(os.OpenFile(filepath.Join(dir, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0))
	_, err := fmt.Fprintf(settings, "primary_conninfo = '%s'\n", strings.ReplaceAll(primary.URL("postgres"), "'", "''"))
	must.OK(errors.Join(err, settings.Close(),
		os.WriteFile(filepath.Join(dir, "backup_label"), []byte(label), 0o600),
		os.WriteFile(filepath.Join(dir, "standby.signal"), nil, 0o600)))
}

// Files that a base backup leaves out. The standby gets the WAL from its primary.
var (
	notCopied    = []string{"postmaster.pid", "postmaster.opts", "standby.signal", "backup_label"}
	copiedEmpty  = []string{"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"}
	copiedInside = []string{"pg_wal/archive_status"} // directories that the server does not make
)

// copyData copies the data of a running server, between pg_backup_start and
// pg_backup_stop. Files may change and vanish meanwhile.
func copyData(from, to string) {
	must.OK(filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		must.OK(err)
		name := must.Get(filepath.Rel(from, path))
		switch {
		case slices.Contains(copiedEmpty, filepath.Dir(name)) && !slices.Contains(copiedInside, name):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case entry.IsDir():
			must.OK(os.Mkdir(filepath.Join(to, name), 0o700))
		case !slices.Contains(notCopied, name):
			copyFile(path, filepath.Join(to, name))
		}
		return nil
	}))
}

// copyFile copies a file. It copies nothing if the file does not exist.
func copyFile(from, to string) {
	source, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	must.OK(err)
	defer source.Close()
	target := must.Get(os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600))
	_, err = io.Copy(target, source)
	must.OK(errors.Join(err, target.Close()))
}
