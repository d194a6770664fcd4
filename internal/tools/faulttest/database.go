package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
)

// durable are the settings that crash safety depends on. localpg turns them off by default
// to start faster.
var durable = map[string]string{"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}

// database is a PostgreSQL for one row, filled from the template. It can be killed, frozen
// and started again.
type database struct {
	*localpg.Cluster
	options localpg.Options
}

// startDatabase starts a copy of the template in dir, or in the folder of the row if dir is
// "".
func (f *fixture) startDatabase(ctx context.Context, dir string, settings map[string]string) (*database, error) {
	if dir == "" {
		dir = filepath.Join(f.dir, "pg")
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	if seed := filepath.Join(f.templateDir(), "pg", "data"); f.dir != f.templateDir() {
		if err := command(ctx, "cp", "-a", seed, filepath.Join(dir, "data")); err != nil {
			return nil, err
		}
	}
	merged := maps.Clone(durable)
	maps.Copy(merged, settings)
	d := &database{options: localpg.Options{Binaries: f.postgres, Dir: dir, Disposable: true, Settings: merged}}
	if err := d.start(ctx); err != nil {
		return nil, err
	}
	f.cleanup(func() { _ = d.Stop(context.WithoutCancel(ctx)) }) // it ends with this process anyway
	return d, nil
}

// start starts the cluster, or restarts it.
func (d *database) start(ctx context.Context) error {
	if d.Cluster != nil {
		if err := d.Stop(ctx); err != nil {
			return err
		}
	}
	cluster, err := localpg.Start(ctx, d.options)
	if err != nil {
		return err
	}
	d.Cluster = cluster
	return nil
}

func (d *database) url() string { return d.URL(databaseName) }

// processes returns the process ids of the server: the postmaster first, then its children.
func (d *database) processes() ([]int, error) {
	file := filepath.Join(d.options.Dir, "data", "postmaster.pid")
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	postmaster, err := strconv.Atoi(line)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", postmaster))
	if err != nil {
		return nil, err
	}
	all := []int{postmaster}
	for field := range strings.FieldsSeq(string(children)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		all = append(all, pid)
	}
	return all, nil
}

// signal sends a signal to every process of the server. The postmaster is first, so that it
// starts no new ones.
func (d *database) signal(signal syscall.Signal) error {
	processes, err := d.processes()
	if err != nil {
		return err
	}
	for _, pid := range processes {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// exec runs a statement on its own connection.
func (d *database) exec(ctx context.Context, sql string) error {
	return d.execIn(ctx, databaseName, sql)
}

// execIn runs a statement in another database of the cluster.
func (d *database) execIn(ctx context.Context, name, sql string) error {
	conn, err := pgx.Connect(ctx, d.URL(name))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// read reads one row on its own connection.
func (d *database) read(ctx context.Context, sql string, arguments []any, into ...any) error {
	conn, err := pgx.Connect(ctx, d.url())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.QueryRow(ctx, sql, arguments...).Scan(into...)
}

// holdLock runs a statement that takes a lock in a database, and holds the lock until
// release.
func (d *database) holdLock(ctx context.Context, name, sql string) (release func(), err error) {
	conn, err := pgx.Connect(ctx, d.URL(name))
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "BEGIN; "+sql); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	return func() { _ = conn.Close(context.WithoutCancel(ctx)) }, nil
}

// lockWaits counts the statements of the service that wait for a lock.
func (d *database) lockWaits(ctx context.Context) (count int, err error) {
	err = d.read(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'petstore' AND wait_event_type = 'Lock'", nil, &count)
	return count, err
}

// awaitLockWaits waits until that many statements of the service wait for a lock. The error
// says that this took too long.
func (d *database) awaitLockWaits(ctx context.Context, connections int) error {
	_, err := eventually(ctx, time.Second, func() error {
		waiting, err := d.lockWaits(ctx)
		if err == nil && waiting < connections {
			err = fmt.Errorf("%d statements wait for a lock, want %d", waiting, connections)
		}
		return err
	})
	return err
}

// awaitNoLockWaits waits until no statement of the service waits for a lock, and returns
// how long that took.
func (d *database) awaitNoLockWaits(ctx context.Context, limit time.Duration) (time.Duration, error) {
	return eventually(ctx, limit, func() error {
		waiting, err := d.lockWaits(ctx)
		if err == nil && waiting > 0 {
			err = fmt.Errorf("%d backends still wait after their clients have disconnected", waiting)
		}
		return err
	})
}

// command runs a system program.
func command(ctx context.Context, name string, args ...string) error {
	if output, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, output)
	}
	return nil
}
