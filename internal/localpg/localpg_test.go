package localpg_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
)

// childDir makes the test binary start a cluster in that directory and wait.
const childDir = "LOCALPG_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	dir := os.Getenv(childDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	ctx := context.Background()
	binaries, err := localpg.Find(ctx, localpg.FindOptions{Bin: os.Getenv("PETSTORE_PG_BIN")})
	if err == nil {
		var cluster *localpg.Cluster
		if cluster, err = localpg.Start(ctx, localpg.Options{Binaries: binaries, Dir: dir}); err == nil {
			fmt.Println(cluster.URL("postgres")) // the parent waits for this line
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
}

func TestClusterKeepsItsData(t *testing.T) {
	t.Parallel()
	options := localpg.Options{Binaries: machine(t), Dir: filepath.Join(openDir(t), "not made yet")}
	cluster := start(t, options)
	for range 2 {
		if err := cluster.EnsureDatabase(t.Context(), "petstore"); err != nil {
			t.Fatal(err)
		}
	}
	query[string](t, cluster.URL("petstore"), "CREATE TABLE kept AS SELECT 'Bello' AS name; SELECT ''")
	for setting, want := range map[string]string{
		"listen_addresses": "", "server_encoding": "UTF8", "fsync": "on", "synchronous_commit": "on",
	} {
		if got := query[string](t, cluster.URL("petstore"), "SHOW "+setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	if err := cluster.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-cluster.Done()
	if err := cluster.Err(); err != nil {
		t.Errorf("after Stop, Err is %v", err)
	}
	if _, err := pgx.Connect(t.Context(), cluster.URL("petstore")); err == nil {
		t.Error("the server answers after Stop")
	}

	url := cluster.URL("petstore")
	cluster = start(t, options)
	if cluster.URL("petstore") != url {
		t.Errorf("a restart changes the URL from %s to %s", url, cluster.URL("petstore"))
	}
	if got := query[string](t, url, "SELECT name FROM kept"); got != "Bello" {
		t.Errorf("after a restart the table holds %q", got)
	}
}

func TestSecondStartIsRefused(t *testing.T) {
	t.Parallel()
	options := localpg.Options{Binaries: machine(t), Dir: t.TempDir(), Disposable: true}
	cluster := start(t, options)

	_, err := localpg.Start(t.Context(), options)
	inUse, ok := errors.AsType[*localpg.InUseError](err)
	if !ok || inUse.PID != os.Getpid() {
		t.Errorf("a second start: %v; want an InUseError with pid %d", err, os.Getpid())
	}

	// without the lock file there still is the server
	if err := os.Remove(filepath.Join(options.Dir, "lock")); err != nil {
		t.Fatal(err)
	}
	_, err = localpg.Start(t.Context(), options)
	inUse, ok = errors.AsType[*localpg.InUseError](err)
	if pid := serverPID(t, options.Dir); !ok || inUse.PID != pid {
		t.Errorf("a start beside a server of somebody else: %v; want an InUseError with pid %d", err, pid)
	}

	if got := query[int](t, cluster.URL("postgres"), "SELECT 1"); got != 1 {
		t.Errorf("the first cluster answers %d", got)
	}
}

func TestKilledOwner(t *testing.T) {
	t.Parallel()
	for name, serverToo := range map[string]bool{"alone": false, "with its server": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := openDir(t)
			owner, url := startChild(t, dir)
			query[string](t, url, "CREATE TABLE kept AS SELECT 'Bello' AS name; SELECT ''")
			server := serverPID(t, dir)
			_, err := localpg.Start(t.Context(), localpg.Options{Binaries: machine(t), Dir: dir})
			if inUse, ok := errors.AsType[*localpg.InUseError](err); !ok || inUse.PID != owner.Process.Pid {
				t.Errorf("a start beside another process: %v; want an InUseError with pid %d", err, owner.Process.Pid)
			}
			if serverToo {
				kill(t, server)
			}
			kill(t, owner.Process.Pid)
			if err := owner.Wait(); err == nil {
				t.Fatal("the owner was not killed")
			}
			cluster := start(t, localpg.Options{Binaries: machine(t), Dir: dir})
			if got := query[string](t, cluster.URL("postgres"), "SELECT name FROM kept"); got != "Bello" {
				t.Errorf("the table contains %q", got)
			}
		})
	}
}

func TestServerThatEndsByItself(t *testing.T) {
	t.Parallel()
	options := localpg.Options{Binaries: machine(t), Dir: t.TempDir(), Disposable: true}
	cluster := start(t, options)
	if err := cluster.Err(); err != nil {
		t.Errorf("while the server runs, Err is %v", err)
	}
	kill(t, serverPID(t, options.Dir))
	<-cluster.Done()
	if err := cluster.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Err is %v, want one that says it was killed", err)
	}
	if err := cluster.Stop(t.Context()); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	options := localpg.Options{Binaries: machine(t), Dir: t.TempDir(), Disposable: true}

	// a start that is broken off while initdb runs
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := localpg.Start(ctx, options); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a start of 100 ms: %v", err)
	}
	// one that was killed then
	unfinished := filepath.Join(options.Dir, "data.new-1")
	if err := os.MkdirAll(filepath.Join(unfinished, "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := start(t, options).Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(unfinished); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half made cluster is still there: %v", err)
	}

	// a pid file whose number is another program's by now: ours
	file := filepath.Join(options.Dir, "data", "postmaster.pid")
	if err := os.WriteFile(file, fmt.Appendf(nil, "%d\n/gone\n1\n5432\n/gone\n\n1 1\nready\n", os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := start(t, options).Stop(t.Context()); err != nil {
		t.Fatal(err)
	}

	// a cluster of another version
	if err := os.WriteFile(filepath.Join(options.Dir, "data", "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := localpg.Start(t.Context(), options); err == nil || !strings.Contains(err.Error(), "was made by PostgreSQL 9,") {
		t.Errorf("a cluster of version 9: %v", err)
	}
}

func TestOddDirectories(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		strings.Repeat("longer than the path of a socket may be ", 5),
		`quo"te, co'mma %41 ünï`,
	} {
		t.Run(name[:5], func(t *testing.T) {
			t.Parallel()
			cluster := start(t, localpg.Options{
				Binaries: machine(t), Dir: filepath.Join(t.TempDir(), name), Disposable: true,
				Settings: map[string]string{"max_connections": "7"},
			})
			if got := query[string](t, cluster.URL("postgres"), "SHOW max_connections"); got != "7" {
				t.Errorf("max_connections is %s, want 7", got)
			}
		})
	}
}

// machine is the server of this machine.
func machine(t *testing.T) localpg.Binaries {
	t.Helper()
	binaries, err := localpg.Find(t.Context(), localpg.FindOptions{Bin: os.Getenv("PETSTORE_PG_BIN"), Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	return binaries
}

// start starts a cluster that ends with the test.
func start(t *testing.T, options localpg.Options) *localpg.Cluster {
	t.Helper()
	cluster, err := localpg.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

// startChild starts a process with a cluster in dir, and returns the URL.
func startChild(t *testing.T, dir string) (*exec.Cmd, string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the child prints no URL: %v", err)
	}
	return cmd, strings.TrimSpace(line)
}

// query returns the one value of the last statement.
func query[T any](t *testing.T, url, sql string) (value T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	first, last, found := strings.Cut(sql, ";")
	if found {
		if _, err := conn.Exec(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		sql = last
	}
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func serverPID(t *testing.T, dir string) int {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// openDir is a directory that every user can enter, which t.TempDir is not.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "localpg-test-") //nolint:usetesting // its directory is closed
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeProgram keeps other tests from forking while the file is open: their
// child would hold it open for a moment, and a program that somebody writes to
// cannot be run (golang/go#22315).
func writeProgram(t *testing.T, file string, content []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	err := os.WriteFile(file, content, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
