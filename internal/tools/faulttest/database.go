package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
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
func (f *fixture) startDatabase(ctx context.Context, dir string, settings map[string]string) *database {
	if dir == "" {
		dir = filepath.Join(f.dir, "pg")
	}
	must.OK(os.MkdirAll(dir, 0o711))
	if seed := filepath.Join(f.templateDir(), "pg", "data"); f.dir != f.templateDir() {
		prepare(func() { run.Program(ctx, "cp", "-a", seed, filepath.Join(dir, "data")) })
	}
	merged := maps.Clone(durable)
	maps.Copy(merged, settings)
	return f.startCluster(ctx, localpg.Options{Binaries: f.postgres, Dir: dir, Disposable: true, Settings: merged})
}

// startCluster starts a cluster, which ends with the row.
func (f *fixture) startCluster(ctx context.Context, options localpg.Options) *database {
	d := &database{options: options}
	prepare(func() { d.start(ctx) })
	f.cleanup(func() { _ = d.Stop(context.WithoutCancel(ctx)) }) // it ends with this process anyway
	return d
}

// start starts the cluster, or restarts it: it stops without a checkpoint.
func (d *database) start(ctx context.Context) {
	if d.Cluster != nil {
		must.OK(d.Stop(ctx))
	}
	d.Cluster = must.Get(localpg.Start(ctx, d.options))
}

func (d *database) url() string { return d.URL(databaseName) }

// urlOf returns the URL for another role than the superuser.
func (d *database) urlOf(role string) string {
	return strings.Replace(d.url(), "user=postgres", "user="+role, 1)
}

// processes returns the process ids of the server: the postmaster first, then its children.
func (d *database) processes() []int {
	all := []int{run.Postmaster(d.Data())}
	children := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", all[0])))
	for field := range strings.FieldsSeq(string(children)) {
		all = append(all, must.Get(strconv.Atoi(field)))
	}
	return all
}

// signal sends a signal to every process of the server. The postmaster is first, so that it
// starts no new ones.
func (d *database) signal(signal syscall.Signal) {
	for _, pid := range d.processes() {
		if err := syscall.Kill(pid, signal); !errors.Is(err, syscall.ESRCH) {
			must.OK(err)
		}
	}
}

// exec runs statements, of which only a single one may have arguments.
func (d *database) exec(ctx context.Context, sql string, arguments ...any) {
	run.Exec(ctx, d.url(), sql, arguments...)
}

// read reads one row.
func (d *database) read(ctx context.Context, sql string, arguments []any, into ...any) {
	run.Scan(ctx, d.url(), sql, arguments, into...)
}

// count reads a number.
func (d *database) count(ctx context.Context, sql string, arguments ...any) (count int) {
	d.read(ctx, sql, arguments, &count)
	return count
}

// holdLock runs a statement that takes a lock, and holds the lock until release.
func (d *database) holdLock(ctx context.Context, sql string) (release func()) {
	conn := must.Get(pgx.Connect(ctx, d.url()))
	release = func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	if _, err := conn.Exec(ctx, "BEGIN; "+sql); err != nil {
		release()
		must.OK(err)
	}
	return release
}
