package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/localpg"
	"petstore/internal/tools/must"
	"petstore/internal/tools/need"
	"petstore/migrations"
)

// A cluster has 1,200 files, and a clone of the template 420. On a disk, most of the CPU time
// of the tests could go into their creation: ext4 leaves out the inodes of files that were
// deleted in the last minutes, and examines each of them for every new file.
const (
	memoryFiles = "/dev/shm" // Linux has these files in memory
	memoryRoom  = 4 << 30    // clusters use a part of it
)

// memoryHasRoom reports whether the files of clusters fit into memory, where programs can run too.
func memoryHasRoom() bool {
	const noexec = 0x8
	var files syscall.Statfs_t
	if err := syscall.Statfs(memoryFiles, &files); err != nil || files.Flags&noexec != 0 || files.Bavail*uint64(files.Bsize) < memoryRoom { //nolint:gosec // the size of a block is positive
		return false
	}
	info, _ := os.ReadFile("/proc/meminfo") // Linux has it
	_, available, _ := strings.Cut(string(info), "MemAvailable:")
	kibibytes := 0
	_, err := fmt.Sscan(available, &kibibytes)
	return err == nil && kibibytes >= memoryRoom>>10
}

// Dir returns an empty directory until the test ends. It is in memory if there is room. Unlike
// t.TempDir, every user can enter it, and its name is short enough for sockets.
func Dir(t testing.TB) string {
	t.Helper()
	parent := "/tmp"
	if memoryHasRoom() {
		parent = memoryFiles
	}
	dir, err := os.MkdirTemp(parent, "petstore-") //nolint:usetesting // its directory is closed
	need.OK(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	need.OK(t, os.Chmod(dir, 0o755))
	return dir
}

// inMemory returns the directory in memory for the server whose directory this is.
func inMemory(dir string) string { return filepath.Join(memoryFiles, "petstore-"+filepath.Base(dir)) }

// isInMemory reports whether the running server of a directory has its data in memory.
func isInMemory(dir string) bool {
	_, err := os.Stat(filepath.Join(inMemory(dir), "pg", "data", "postmaster.pid"))
	return err == nil
}

// serverData returns the directory for the clusters of the server whose directory this is. It is
// in memory if there is room.
func serverData(dir string) string {
	if strings.HasPrefix(dir, memoryFiles) || !memoryHasRoom() {
		return dir
	}
	data := inMemory(dir)
	must.OK(os.MkdirAll(data, localpg.DirMode()))
	info := must.Get(os.Lstat(data))
	must.Hold(info.IsDir() && int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid(), "%s is not ours; delete it", data)
	must.OK(os.Chmod(data, localpg.DirMode())) // whatever the umask
	return data
}

// StartCluster starts the cluster of a directory, until the test ends.
func StartCluster(t testing.TB, options localpg.Options) *localpg.Cluster {
	t.Helper()
	cluster := need.Value(localpg.Start(t.Context(), options))(t)
	t.Cleanup(func() { _ = cluster.Stop(context.Background()) }) // it may have been stopped
	return cluster
}

// clusterSettings let a standby reconnect at once. The WAL of a commit reaches the standby
// with it, as on a server that waits for its disk. Backups of a standby need full pages.
var clusterSettings = map[string]string{"wal_retrieve_retry_interval": "100ms", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "100"}

const (
	clusterDatabase = "petstore"
	clusterRole     = "petstore_serving"
)

// NewCluster starts a cluster of this machine's or of downloaded binaries, with a database as
// of [New], until the test ends. It is a copy, as all clusters of this function.
func NewCluster(t testing.TB) (*Database, *localpg.Cluster) {
	t.Helper()
	options := localpg.Options{Dir: Dir(t), Disposable: true, Settings: clusterSettings}
	need.OK(t, must.Attempt(func() {
		options.Binaries = must.Get(localpg.Find(t.Context(), os.Getenv("PETSTORE_PG_BIN"), os.Stderr))
	}))
	options.Copy = Copy(options.Binaries)
	cluster := StartCluster(t, options)
	owner, serving := cluster.URL(clusterDatabase), servingURLOf(cluster)
	pool := need.Value(pgxpool.New(context.WithoutCancel(t.Context()), owner))(t)
	t.Cleanup(pool.Close)
	return &Database{URL: serving, DirectURL: serving, OwnerURL: owner, Pool: pool}, cluster
}

// servingURLOf returns the URL of the database of a cluster for the serving role.
func servingURLOf(cluster *localpg.Cluster) string {
	return withRole(must.Get(url.Parse(cluster.URL(clusterDatabase))), clusterRole, "")
}

// Copy returns the Copy of [localpg.Options] that copies a cluster that [makeCluster] has made. All
// processes of this user copy the same one, because initdb and the migrations take ten times as long.
func Copy(binaries localpg.Binaries) func(context.Context, string) (end func(context.Context), err error) {
	return func(ctx context.Context, dir string) (func(context.Context), error) {
		return func(context.Context) {}, must.Attempt(func() { copyCluster(ctx, binaries, dir) })
	}
}

// copyCluster copies the data into a folder, which is not there yet.
func copyCluster(ctx context.Context, binaries localpg.Binaries, to string) {
	dir := serverDir()
	defer lockFile(filepath.Join(dir, "cluster.lock")).Close()
	const prefix = "cluster-"
	made := filepath.Join(dir, prefix+digest(migrationsHash(migrations.FS) + binaries.String())[:16])
	if _, err := os.Stat(made); errors.Is(err, os.ErrNotExist) {
		for _, old := range must.Get(filepath.Glob(filepath.Join(dir, prefix+"*"))) {
			must.OK(os.RemoveAll(old))
		}
		unfinished := localpg.Options{Binaries: binaries, Dir: made + ".new", Disposable: true, Settings: clusterSettings}
		makeCluster(ctx, unfinished)
		must.OK(os.Rename(unfinished.Dir, made))
	}
	output, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(made, "data"), to).CombinedOutput()
	must.Hold(err == nil, "cp: %w: %s", err, output)
}

// makeCluster makes a cluster with a migrated database and the serving role.
func makeCluster(ctx context.Context, options localpg.Options) {
	cluster := must.Get(localpg.Start(ctx, options))
	must.OK(errors.Join(must.Attempt(func() {
		must.OK(cluster.EnsureDatabase(ctx, clusterDatabase))
		address := must.Get(url.Parse(cluster.URL(clusterDatabase)))
		conn := must.Get(pgx.Connect(ctx, address.String()))
		defer conn.Close(context.WithoutCancel(ctx))
		must.Get(conn.Exec(ctx, "CREATE ROLE "+clusterRole+" LOGIN IN ROLE pg_read_all_stats"))
		migrate(ctx, address, clusterRole, false)
		must.Get(conn.Exec(ctx, "CHECKPOINT")) // a copy recovers from it
	}), cluster.Stop(context.WithoutCancel(ctx))))
}
