package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/localpg"
)

const (
	// findTimeout is longer than all ways to a server take together.
	findTimeout = 8 * time.Minute
	// maxConnections is for all tests that run at once, in two runs of `go test ./...`.
	maxConnections = "800"

	serverFile = "server.json" // the running server of a directory
	noServer   = `there is no PostgreSQL to test on. One of these helps:
- start Docker (%w)
- install a server (%w)
- set PETSTORE_TEST_DATABASE_URL to a postgres:// URL whose user may create databases and roles`
)

// findServer takes the first way to a server that works, see the package comment.
// The first process starts the server; the others wait for it and use it too.
func findServer(ctx context.Context) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	if address := os.Getenv("PETSTORE_TEST_DATABASE_URL"); address != "" {
		found, err := useForeign(ctx, address)
		if err != nil {
			return nil, fmt.Errorf("PETSTORE_TEST_DATABASE_URL: %w", err)
		}
		say(found.Description)
		return found, nil
	}
	dir, err := serverDir()
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(dir, "lock"), true)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if found, err := readServer(dir); err == nil {
		err := found.use(ctx)
		if err == nil {
			return found, found.stopWhenIdle(ctx) // in case its starter was killed
		}
		if !hasEnded(err) {
			return nil, fmt.Errorf("%s: %w", found.Description, err)
		}
	}
	found, err := startServer(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := found.use(ctx); err != nil {
		return nil, err
	}
	if err := found.stopWhenIdle(ctx); err != nil {
		return nil, err
	}
	say(found.Description)
	return found, writeServer(dir, found)
}

// serverDir creates and returns the directory in which the processes of this user
// that want the same server find it.
func serverDir() (string, error) {
	cache, err := localpg.CacheDir()
	if err != nil {
		return "", err
	}
	hostname, _ := os.Hostname() // the cache may be a network folder
	wanted := []string{hostname, cache}
	for _, name := range []string{"DOCKER_HOST", "PETSTORE_TEST_POSTGRES_IMAGE", "PETSTORE_PG_BIN"} {
		wanted = append(wanted, os.Getenv(name))
	}
	hash := sha256.Sum256([]byte(strings.Join(wanted, "\x00")))
	dir := filepath.Join(cache, "test-"+hex.EncodeToString(hash[:4]))
	if err := os.MkdirAll(dir, localpg.DirMode()); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, localpg.DirMode()) // whatever the umask
}

// hasEnded reports whether an error of [server.use] means that the server has ended
// or is about to.
func hasEnded(err error) bool {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(pgErr.Code, "57P") // it starts, shuts down or has crashed
	}
	return !errors.Is(err, context.DeadlineExceeded)
}

// startServer starts a server that stops itself, in a container or else from
// binaries.
func startServer(ctx context.Context, dir string) (*server, error) {
	found, containerErr := startContainer(ctx, dir)
	if containerErr == nil {
		return found, nil
	}
	found, err := startCluster(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf(noServer, containerErr, err)
	}
	return found, nil
}

// startCluster starts a server from the machine's own binaries, or downloaded ones.
// Its data does not outlive it, so neither a crash nor a new version of PostgreSQL
// needs any care.
func startCluster(ctx context.Context, dir string) (*server, error) {
	binaries, err := localpg.Find(ctx, localpg.FindOptions{Bin: os.Getenv("PETSTORE_PG_BIN"), Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	if err := removeEnded(dir); err != nil {
		return nil, err
	}
	clusterDir, err := os.MkdirTemp(dir, "pg")
	if err == nil {
		err = os.Chmod(clusterDir, localpg.DirMode())
	}
	if err != nil {
		return nil, err
	}
	cluster, err := localpg.Start(ctx, localpg.Options{
		Binaries: binaries,
		Dir:      clusterDir,
		Detached: true,
		Settings: map[string]string{"max_connections": maxConnections},
	})
	if err != nil {
		return nil, err
	}
	return &server{URL: cluster.URL("postgres"), Description: binaries.String() + " (private cluster)"}, nil
}

// removeEnded removes what servers left that have ended. A server holds the lock of
// its directory.
func removeEnded(dir string) error {
	clusters, err := filepath.Glob(filepath.Join(dir, "pg*"))
	if err != nil {
		return err
	}
	for _, cluster := range clusters {
		lock, err := lockFile(filepath.Join(cluster, "lock"), false)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			continue
		}
		if err == nil {
			lock.Close()
		}
		if err := os.RemoveAll(cluster); err != nil {
			return err
		}
	}
	return nil
}

// lockFile locks a file until it is closed. If it does not wait, the error is
// EWOULDBLOCK when another process has the lock.
func lockFile(path string, wait bool) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	err = syscall.EINTR
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Flock(int(file.Fd()), how)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return file, nil
}

func readServer(dir string) (*server, error) {
	content, err := os.ReadFile(filepath.Join(dir, serverFile))
	if err != nil {
		return nil, err
	}
	found := &server{}
	return found, json.Unmarshal(content, found)
}

func writeServer(dir string, found *server) error {
	content, err := json.Marshal(found)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, serverFile), content, 0o600)
}
