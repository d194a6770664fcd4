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
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// childDir makes the test binary start a cluster in that directory and wait.
const childDir = "LOCALPG_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	dir := os.Getenv(childDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	ctx := context.Background()
	binaries, err := localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), nil)
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

// TestClusterKeepsItsData uses a directory that only this user can enter. Under root,
// the server runs as another user.
func TestClusterKeepsItsData(t *testing.T) {
	t.Parallel()
	private := filepath.Join(pgtest.Dir(t), "private")
	need.OK(t, os.Mkdir(private, 0o700))
	options := options(t, filepath.Join(private, `quo"te, co'mma %41 ünï`))
	options.Disposable, options.Copy = false, nil
	options.Settings = map[string]string{"max_connections": "7"}
	cluster := start(t, options)
	for range 2 {
		need.OK(t, cluster.EnsureDatabase(t.Context(), "petstore"))
	}
	url := cluster.URL("petstore")
	query(t, url, "CREATE TABLE kept AS SELECT 'Bello' AS name")
	for setting, want := range map[string]string{
		"listen_addresses": "", "server_encoding": "UTF8", "fsync": "on", "synchronous_commit": "on", "max_connections": "7",
	} {
		if got := query(t, url, "SHOW "+setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
	need.OK(t, cluster.Stop(t.Context()))
	if err := cluster.Err(); err != nil {
		t.Errorf("after Stop, Err is %v", err)
	}
	if _, err := pgx.Connect(t.Context(), url); err == nil {
		t.Error("the server accepts connections after Stop")
	}

	if again := start(t, options).URL("petstore"); again != url {
		t.Errorf("a restart changes the URL from %s to %s", url, again)
	}
	if got := query(t, url, "SELECT name FROM kept"); got != "Bello" {
		t.Errorf("after a restart the table contains %q", got)
	}
}

// TestSecondStartIsRefused also kills the server, which ends the cluster.
func TestSecondStartIsRefused(t *testing.T) {
	t.Parallel()
	options := options(t, pgtest.Dir(t))
	cluster := start(t, options)
	wantInUse(t, options, os.Getpid())

	if runtime.GOOS == "linux" { // elsewhere nothing shows a server without our lock
		need.OK(t, os.Remove(filepath.Join(options.Dir, "lock")))
		server := serverPID(t, options.Dir)
		wantInUse(t, options, server)
		detached := options
		detached.Detached = true
		wantInUse(t, detached, server)
	}

	if got := query(t, cluster.URL("postgres"), "SELECT 'works'"); got != "works" {
		t.Errorf("the first cluster returns %q", got)
	}

	kill(t, serverPID(t, options.Dir))
	<-cluster.Done()
	if err := cluster.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("after the kill of the server, Err is %v, want one that says it was killed", err)
	}
	if err := cluster.Stop(t.Context()); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

// TestMovedFolder: a server whose folder has moved keeps its socket, although another one runs at the
// path where the folder was.
func TestMovedFolder(t *testing.T) {
	t.Parallel()
	options := options(t, filepath.Join(pgtest.Dir(t), "shop"))
	moved := start(t, options)
	need.OK(t, os.Rename(options.Dir, options.Dir+"-old"))
	second := start(t, options)
	query(t, moved.URL("postgres"), "CREATE TABLE moved AS SELECT 1")
	if got := query(t, second.URL("postgres"), "SELECT coalesce(to_regclass('moved')::text, 'none')"); got != "none" {
		t.Errorf("both URLs lead to the same server: %s", got)
	}
	need.OK(t, moved.Stop(t.Context()))
	if got := query(t, second.URL("postgres"), "SELECT 'works'"); got != "works" {
		t.Errorf("after the end of the moved server, the second one returns %q", got)
	}
}

// TestKilledOwner kills a process alone, and another one with its server. The next start has the data.
func TestKilledOwner(t *testing.T) {
	t.Parallel()
	options := options(t, pgtest.Dir(t))
	const kept = "SELECT name FROM kept"
	for _, serverToo := range []bool{false, true} {
		owner, url := startChild(t, options.Dir)
		if !serverToo {
			query(t, url, "CREATE TABLE kept AS SELECT 'Bello' AS name")
		}
		if got := query(t, url, kept); got != "Bello" {
			t.Errorf("after the kill of the owner alone, the table contains %q", got)
		}
		wantInUse(t, options, owner.Process.Pid)
		if serverToo {
			kill(t, serverPID(t, options.Dir))
		}
		kill(t, owner.Process.Pid)
		_ = owner.Wait()             // it was killed
		if runtime.GOOS == "linux" { // elsewhere the next start ends the server
			waitForLock(t, options.Dir)
		}
	}
	if got := query(t, start(t, options).URL("postgres"), kept); got != "Bello" {
		t.Errorf("after the kill of the owner and its server, the table contains %q", got)
	}
}

// TestRefusedClient: a start ends with the cause if variables keep all clients out, and does not wait.
func TestRefusedClient(t *testing.T) {
	options := options(t, pgtest.Dir(t))
	need.OK(t, start(t, options).Stop(t.Context()))
	for variable, value := range map[string]string{"PGREQUIREAUTH": "scram-sha-256", "PGSSLCERTMODE": "require", "PGSERVICE": "gone"} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, value)
			_, err := localpg.Start(t.Context(), options)
			if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "unset it") {
				t.Errorf("the start ends with %v", err)
			}
		})
	}
}

// TestOrphan starts a detached server and loses it, like a process that is killed.
// The next start replaces it.
func TestOrphan(t *testing.T) {
	t.Parallel()
	options := options(t, pgtest.Dir(t))
	options.Detached = true
	orphan := start(t, options)
	query(t, orphan.URL("postgres"), "CREATE TABLE orphaned ()")
	next := start(t, options)
	<-orphan.Done()
	if got := query(t, next.URL("postgres"), "SELECT to_regclass('orphaned') IS NULL"); got != "t" {
		t.Error("the next server has the data of the orphan")
	}
	need.OK(t, next.Stop(t.Context()))
	if left, err := os.ReadDir(filepath.Join(options.Dir, "data")); err != nil || len(left) > 0 {
		t.Errorf("the server leaves %v, %v", left, err)
	}
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	options := options(t, pgtest.Dir(t))
	options.Copy = nil
	cancelled, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		waitForFile(t, filepath.Join(options.Dir, "data.new", "PG_VERSION"))
	}()
	if _, err := localpg.Start(cancelled, options); !errors.Is(err, context.Canceled) {
		t.Fatalf("a start that is cancelled during initdb: %v", err)
	}
	mkdir(t, filepath.Join(options.Dir, "data.new", "base")) // of a killed initdb
	need.OK(t, start(t, options).Stop(t.Context()))

	// a pid file with the number of another program: this one
	file := filepath.Join(options.Dir, "data", "postmaster.pid")
	need.OK(t, os.WriteFile(file, fmt.Appendf(nil, "%d\n/gone\n1\n5432\n/gone\n\n1 1\nready\n", os.Getpid()), 0o600))
	need.OK(t, start(t, options).Stop(t.Context()))

	need.OK(t, os.WriteFile(filepath.Join(options.Dir, "data", "PG_VERSION"), []byte("9\n"), 0o600))
	if _, err := localpg.Start(t.Context(), options); err == nil || !strings.Contains(err.Error(), "was made by PostgreSQL 9,") {
		t.Errorf("a cluster of version 9: %v", err)
	}
}

// TestKilledDuringInitdb checks that initdb ends with its owner.
func TestKilledDuringInitdb(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // see signalOnDeath
	}
	dir := pgtest.Dir(t)
	bin := filepath.Join(dir, "bin")
	install(t, bin, "15.18")
	// it never ends by itself
	writeProgram(t, filepath.Join(bin, "initdb"), `#!/bin/sh
case "$1" in --version) exit;; esac
cd "$2" && mkfifo forever && echo $$ >pid.new && mv pid.new pid && read line <forever
`)
	owner := child(t, filepath.Join(dir, "cluster"))
	owner.Env = append(owner.Env, "PETSTORE_PG_BIN="+bin)
	need.OK(t, owner.Start())
	file := filepath.Join(dir, "cluster", "data.new", "pid")
	waitForFile(t, file)
	content := need.Value(os.ReadFile(file))(t)
	initdb := need.Value(strconv.Atoi(strings.TrimSpace(string(content))))(t)
	t.Cleanup(func() { _ = syscall.Kill(initdb, syscall.SIGKILL) })
	kill(t, owner.Process.Pid)
	_ = owner.Wait() // it was killed
	need.Within(t, 20*time.Second, "initdb has ended", func() bool { return isFree(t, filepath.Join(dir, "cluster")) })
}

// TestDataOfRoot needs root: other users do not run the server as somebody else.
func TestDataOfRoot(t *testing.T) {
	t.Parallel()
	options := options(t, pgtest.Dir(t))
	mkdir(t, filepath.Join(options.Dir, "data"))
	if os.Geteuid() != 0 {
		return
	}
	if _, err := localpg.Start(t.Context(), options); err == nil || !strings.Contains(err.Error(), "chown -R postgres") {
		t.Errorf("a cluster of root: %v", err)
	}
}

// options returns the options of a disposable cluster with this machine's server. It is a copy,
// because initdb takes most of the CPU time of these tests.
func options(t *testing.T, dir string) localpg.Options {
	t.Helper()
	binaries := need.Value(localpg.Find(t.Context(), os.Getenv("PETSTORE_PG_BIN"), os.Stderr))(t)
	return localpg.Options{Binaries: binaries, Dir: dir, Disposable: true, Copy: pgtest.Copy(binaries)}
}

// start starts a cluster that ends with the test.
func start(t *testing.T, options localpg.Options) *localpg.Cluster {
	t.Helper()
	cluster := need.Value(localpg.Start(t.Context(), options))(t)
	t.Cleanup(func() {
		if err := cluster.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

func wantInUse(t *testing.T, options localpg.Options, pid int) {
	t.Helper()
	_, err := localpg.Start(t.Context(), options)
	if inUse, ok := errors.AsType[*localpg.InUseError](err); !ok || inUse.PID != pid {
		t.Errorf("a second start: %v; want an InUseError with pid %d", err, pid)
	}
}

// startChild starts a process with a cluster in dir, and returns the URL.
func startChild(t *testing.T, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := child(t, dir)
	stdout := need.Value(cmd.StdoutPipe())(t)
	need.OK(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the child prints no URL: %v", err)
	}
	return cmd, strings.TrimSpace(line)
}

// child returns a process with a cluster in dir, which ends with the test.
func child(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	program := need.Value(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), program)
	// As for another server. They must not apply to the cluster.
	cmd.Env = append(os.Environ(), childDir+"="+dir, "PGCHANNELBINDING=require", "PGTARGETSESSIONATTRS=standby", "PGOPTIONS=-c nothing=1")
	cmd.Stderr = os.Stderr
	need.Value(cmd.StdinPipe())(t)
	return cmd
}

// waitForLock returns when no server of the directory runs.
func waitForLock(t *testing.T, dir string) {
	t.Helper()
	need.Within(t, 20*time.Second, "the server has ended", func() bool { return isFree(t, dir) })
}

// isFree reports whether no process of a cluster in the directory runs.
func isFree(t *testing.T, dir string) bool {
	t.Helper()
	file, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Error(err)
		return true
	}
	defer file.Close()
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// waitForFile returns when a file exists.
func waitForFile(t *testing.T, name string) {
	t.Helper()
	need.Within(t, 20*time.Second, name+" exists", func() bool {
		_, err := os.Stat(name)
		return err == nil
	})
}

// query runs a statement and returns its first value as text.
func query(t *testing.T, url, sql string) (value string) {
	t.Helper()
	conn := need.Value(pgx.Connect(t.Context(), url))(t)
	defer conn.Close(t.Context())
	results := need.Value(conn.PgConn().Exec(t.Context(), sql).ReadAll())(t)
	for _, row := range results[0].Rows {
		value = string(row[0])
	}
	return value
}

func serverPID(t *testing.T, dir string) int {
	t.Helper()
	content := need.Value(os.ReadFile(filepath.Join(dir, "data", "postmaster.pid")))(t)
	line, _, _ := strings.Cut(string(content), "\n")
	pid := need.Value(strconv.Atoi(line))(t)
	return pid
}

func kill(t *testing.T, pid int) {
	t.Helper()
	need.OK(t, syscall.Kill(pid, syscall.SIGKILL))
}
