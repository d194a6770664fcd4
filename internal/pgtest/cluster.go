package pgtest

import (
	"bufio"
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
	"petstore/internal/postgres"
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
	info, err := os.Open("/proc/meminfo")
	if err != nil {
		return false
	}
	defer info.Close()
	for lines := bufio.NewScanner(info); lines.Scan(); {
		kibibytes := 0
		if _, err := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kibibytes); err == nil {
			return kibibytes >= memoryRoom>>10
		}
	}
	return false
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
	check(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	check(t, os.Chmod(dir, 0o755))
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
func serverData(dir string) (string, error) {
	if strings.HasPrefix(dir, memoryFiles) || !memoryHasRoom() {
		return dir, nil
	}
	data := inMemory(dir)
	if err := os.MkdirAll(data, localpg.DirMode()); err != nil {
		return "", err
	}
	info, err := os.Lstat(data)
	if err != nil {
		return "", err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; !info.IsDir() || int(owner) != os.Geteuid() {
		return "", fmt.Errorf("%s is not ours; delete it", data)
	}
	return data, os.Chmod(data, localpg.DirMode()) // whatever the umask
}

// startCluster starts the cluster of a directory, until the test ends.
func startCluster(t testing.TB, options localpg.Options) *localpg.Cluster {
	t.Helper()
	cluster, err := localpg.Start(t.Context(), options)
	check(t, err)
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
	return newCluster(t, copyCluster)
}

// newCluster starts a cluster whose data come from prepare.
func newCluster(t testing.TB, prepare func(context.Context, localpg.Options) error) (*Database, *localpg.Cluster) {
	t.Helper()
	binaries, err := localpg.Find(t.Context(), os.Getenv("PETSTORE_PG_BIN"), os.Stderr)
	options := localpg.Options{Binaries: binaries, Dir: Dir(t), Disposable: true, Settings: clusterSettings}
	if err == nil {
		err = prepare(t.Context(), options)
	}
	check(t, err)
	cluster := startCluster(t, options)
	owner := cluster.URL(clusterDatabase)
	pool, err := pgxpool.New(context.WithoutCancel(t.Context()), owner)
	check(t, err)
	t.Cleanup(pool.Close)
	serving := asRole(owner, clusterRole)
	return &Database{URL: serving, DirectURL: serving, OwnerURL: owner, Pool: pool}, cluster
}

// copyCluster copies the data of a cluster that [makeCluster] has made. All processes of this
// user copy the same one, because initdb and the migrations take ten times as long.
func copyCluster(ctx context.Context, options localpg.Options) error {
	dir, err := serverDir()
	if err != nil {
		return err
	}
	hash, err := migrationsHash(migrations.FS)
	if err != nil {
		return err
	}
	lock, err := lockFile(filepath.Join(dir, "cluster.lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	const prefix = "cluster-"
	made := filepath.Join(dir, prefix+digest(hash + options.Binaries.String())[:16])
	_, err = os.Stat(made)
	if errors.Is(err, os.ErrNotExist) {
		old, _ := filepath.Glob(filepath.Join(dir, prefix+"*")) // the pattern is valid
		for _, one := range old {
			if err := os.RemoveAll(one); err != nil {
				return err
			}
		}
		unfinished := options
		unfinished.Dir = made + ".new"
		if err = makeCluster(ctx, unfinished); err == nil {
			err = os.Rename(unfinished.Dir, made)
		}
	}
	if err != nil {
		return err
	}
	output, err := exec.CommandContext(ctx, "cp", "-a", filepath.Join(made, "data"), options.Dir).CombinedOutput() // with its owner
	if err != nil {
		return fmt.Errorf("cp: %w: %s", err, output)
	}
	return nil
}

// makeCluster makes a cluster with a migrated database and the serving role.
func makeCluster(ctx context.Context, options localpg.Options) (err error) {
	cluster, err := localpg.Start(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()
	if err := cluster.EnsureDatabase(ctx, clusterDatabase); err != nil {
		return err
	}
	m, err := postgres.OpenMigrations(ctx, cluster.URL(clusterDatabase))
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	conn, connErr := pgx.Connect(ctx, cluster.URL(clusterDatabase))
	if err = errors.Join(err, connErr); err != nil {
		return errors.Join(err, m.Close())
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "CREATE ROLE "+clusterRole+" LOGIN IN ROLE pg_read_all_stats")
	if err == nil {
		err = m.GrantServing(ctx, clusterRole)
	}
	if err == nil {
		_, err = conn.Exec(ctx, "CHECKPOINT") // a copy recovers from it
	}
	return errors.Join(err, m.Close())
}

// asRole returns a URL of a cluster for another role.
func asRole(address, role string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		panic(err) // localpg returns valid URLs
	}
	query := parsed.Query()
	query.Set("user", role)
	parsed.RawQuery = query.Encode()
	return parsed.String()
}
