package localpg

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

	"github.com/jackc/pgx/v5"
)

// copyPrimary makes the cluster a standby of another one: a base backup that follows its
// primary when it starts. It does what pg_basebackup does, which the downloaded binaries
// lack
// (https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-LOWLEVEL-BASE-BACKUP).
//
// The primary keeps the WAL since the backup while the returned connection is open.
func (c *Cluster) copyPrimary(ctx context.Context, primary *Cluster) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, primary.URL("postgres"))
	if err != nil {
		return nil, err
	}
	if err := c.backUp(ctx, primary, conn); err != nil {
		return nil, errors.Join(fmt.Errorf("copying the primary: %w", err), conn.Close(context.WithoutCancel(ctx)))
	}
	return conn, nil
}

func (c *Cluster) backUp(ctx context.Context, primary *Cluster, conn *pgx.Conn) error {
	unfinished := c.data() + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	var label string
	slot := fmt.Sprintf("backup_%d", conn.PgConn().PID())
	if _, err := conn.Exec(ctx, "SELECT pg_create_physical_replication_slot($1, true, true), pg_backup_start($1, true)", slot); err != nil {
		return err
	}
	if err := copyData(primary.data(), unfinished); err != nil {
		return err
	}
	if err := conn.QueryRow(ctx, "SELECT labelfile FROM pg_backup_stop(false)").Scan(&label); err != nil {
		return err
	}
	settings, err := os.OpenFile(filepath.Join(unfinished, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(settings, "primary_conninfo = '%s'\n", strings.ReplaceAll(primary.URL("postgres"), "'", "''"))
	if err := errors.Join(err, settings.Close(),
		os.WriteFile(filepath.Join(unfinished, "backup_label"), []byte(label), 0o600),
		os.WriteFile(filepath.Join(unfinished, "standby.signal"), nil, 0o600),
		c.own(unfinished)); err != nil {
		return err
	}
	return os.Rename(unfinished, c.data())
}

// endBackup ends a backup. A server that accepts connections has the WAL of its backup.
func (c *Cluster) endBackup(ctx context.Context) {
	if c.backup != nil {
		_ = c.backup.Close(ctx) // nobody needs it any more
		c.backup = nil
	}
}

// own gives a directory and everything in it to the server's user.
func (c *Cluster) own(dir string) error {
	if c.user == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(c.user.Uid), int(c.user.Gid))
	})
}

// Files that a base backup leaves out. The standby gets the WAL from its primary.
var (
	notCopied    = []string{"postmaster.pid", "postmaster.opts", "standby.signal", "backup_label"}
	copiedEmpty  = []string{"pg_wal", "pg_replslot", "pg_dynshmem", "pg_notify", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"}
	copiedInside = []string{"pg_wal/archive_status"} // directories that the server does not make
)

// copyData copies the data of a running server, between pg_backup_start and
// pg_backup_stop. Files may change and vanish meanwhile.
func copyData(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case slices.Contains(copiedEmpty, filepath.Dir(name)) && !slices.Contains(copiedInside, name):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return os.Mkdir(filepath.Join(to, name), 0o700)
		case slices.Contains(notCopied, name):
			return nil
		default:
			return copyFile(path, filepath.Join(to, name))
		}
	})
}

// copyFile copies a file. It copies nothing if the file does not exist.
func copyFile(from, to string) error {
	source, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
