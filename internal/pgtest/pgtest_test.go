package pgtest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/pgtest"
)

const (
	// roleEnv makes the test binary play `go test`, see playGo.
	roleEnv = "PGTEST_TEST_PLAYS_GO"
	// failEnv makes TestDatabasesAreSeparate fail when it is done.
	failEnv = "PGTEST_TEST_FAILS"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		if err := playGo(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	one, other := pgtest.New(t), pgtest.New(t)
	t.Logf("url=%s", one.OwnerURL)
	if one.URL == other.URL || one.OwnerURL == other.OwnerURL {
		t.Fatalf("both are %s", one.OwnerURL)
	}
	var migrated bool
	if err := one.Pool.QueryRow(t.Context(), "SELECT max(version_id) > 0 FROM goose_db_version").Scan(&migrated); err != nil || !migrated {
		t.Errorf("migrated: %t, %v", migrated, err)
	}
	if _, err := one.Pool.Exec(t.Context(), "CREATE TABLE mine (id int)"); err != nil {
		t.Fatal(err)
	}
	mine, others := tables(t, one.Pool), tables(t, other.Pool)
	if diff := cmp.Diff(append(others, "mine"), mine); diff != "" {
		t.Errorf("the table of one database (- wanted, + got):\n%s", diff)
	}
	if os.Getenv(failEnv) != "" {
		t.Error("as asked")
	}
}

// TestServerDoesNotOwn: a server under test is another role than the test, on the
// same database.
func TestServerDoesNotOwn(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	server, err := pgxpool.New(t.Context(), database.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	who := func(pool *pgxpool.Pool) (name, role string) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), "SELECT current_database(), session_user::text").Scan(&name, &role); err != nil {
			t.Fatal(err)
		}
		return name, role
	}
	served, serving := who(server)
	owned, owner := who(database.Pool)
	if served != owned || serving == owner || !strings.HasSuffix(serving, "_serving") {
		t.Errorf("the server is %s in %s, the test %s in %s", serving, served, owner, owned)
	}
	if _, err := server.Exec(t.Context(), "CREATE TABLE mine (id int)"); err == nil {
		t.Error("the server can make a table")
	}
}

func TestNewEmpty(t *testing.T) {
	t.Parallel()
	if got := tables(t, pgtest.NewEmpty(t).Pool); len(got) != 0 {
		t.Errorf("an empty database has %v", got)
	}
}

func TestRunSharesOneServer(t *testing.T) {
	t.Parallel()
	run := startRun(t, openDir(t))
	first, second := run.test(t), run.test(t)
	if !first.passed || !second.passed {
		t.Fatalf("not passed:\n%s\n%s", first.output, second.output)
	}
	if serverOf(t, first.url) != serverOf(t, second.url) {
		t.Errorf("two packages got %s and %s", first.url, second.url)
	}
	if len(first.lines) != 1 || len(second.lines) != 0 {
		t.Errorf("the packages say %q and %q about the server, want one line once", first.lines, second.lines)
	}

	run.end()
	eventually(t, "the server is gone", func() bool { return !answers(t, first.url) })
}

func TestKilledKeeper(t *testing.T) {
	t.Parallel()
	temp := openDir(t)
	run := startRun(t, temp)
	first := run.test(t)
	run.killKeeper(t)
	second := run.test(t)
	if !second.passed || serverOf(t, first.url) == serverOf(t, second.url) {
		t.Errorf("after its keeper was killed, a run got %s again:\n%s", second.url, second.output)
	}

	// with nobody left to clear up, the next run does
	run.killKeeper(t)
	run.end()
	if next := startRun(t, temp).test(t); !next.passed {
		t.Errorf("the next run:\n%s", next.output)
	}
	if left := run.dirs(t); len(left) != 0 {
		t.Errorf("after the next run there still are %v", left)
	}
}

func TestForeignServer(t *testing.T) {
	t.Parallel()
	server := pgtest.NewEmpty(t)
	run := startRun(t, openDir(t), with("PETSTORE_TEST_DATABASE_URL="+server.URL))
	passed := run.test(t)
	if !passed.passed || !strings.Contains(strings.Join(passed.lines, ""), "PETSTORE_TEST_DATABASE_URL") {
		t.Fatalf("not passed:\n%s", passed.output)
	}
	if serverOf(t, passed.url) != serverOf(t, server.URL) {
		t.Errorf("got %s of another server", passed.url)
	}
	if answers(t, passed.url) {
		t.Error("the database of a test that passed is still there")
	}
	failed := run.test(t, failEnv+"=1")
	if failed.passed || !strings.Contains(failed.output, "is kept: "+failed.url) {
		t.Errorf("a failed test does not tell its database:\n%s", failed.output)
	}

	run.end()
	prefix := regexp.MustCompile("petstore_[0-9a-f]{8}_").FindString(failed.url)
	left := func() []string {
		return names(t, server.Pool, "SELECT datname::text FROM pg_database WHERE starts_with(datname, $1)", prefix)
	}
	eventually(t, "the template is gone", func() bool { return len(left()) == 2 })
	if !answers(t, failed.url) {
		t.Error("the database of a test that failed is gone")
	}
	for _, name := range left() {
		if _, err := server.Pool.Exec(t.Context(), "DROP DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
			t.Error(err)
		}
	}
	// the role stayed for them
	if _, err := server.Pool.Exec(t.Context(), "DROP ROLE "+prefix+"serving"); err != nil {
		t.Error(err)
	}
}

// TestMuteEngine has a Docker engine that takes connections and never answers.
func TestMuteEngine(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(openDir(t), "mute.sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	result := startRun(t, openDir(t), with("DOCKER_HOST=unix://"+socket)).test(t)
	if !result.passed || !strings.Contains(strings.Join(result.lines, ""), "(private cluster)") {
		t.Errorf("not passed:\n%s", result.output)
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	result := startRun(t, openDir(t), with("PETSTORE_PG_BIN=/nowhere", "DOCKER_HOST=unix:///nowhere.sock")).test(t)
	if result.passed || strings.Contains(result.output, "SKIP") {
		t.Fatalf("without a server:\n%s", result.output)
	}
	for _, want := range []string{"/nowhere/initdb cannot be run", "unix:///nowhere.sock", "start Docker", "PETSTORE_TEST_DATABASE_URL"} {
		if !strings.Contains(result.output, want) {
			t.Errorf("%q is missing in:\n%s", want, result.output)
		}
	}
}

// TestWithoutRights is a run of nobody when the tests run as root; else they
// all are without rights.
func TestWithoutRights(t *testing.T) {
	t.Parallel()
	temp := openDir(t)
	result := startRun(t, temp, func(cmd *exec.Cmd) {
		if os.Geteuid() != 0 {
			return
		}
		const nobody = 65534
		if err := os.Chown(temp, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, "HOME="+temp)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}).test(t)
	if !result.passed {
		t.Errorf("not passed:\n%s", result.output)
	}
}

// playGo runs tests as `go test` does, as children of a process called go, one
// for each line of environment variables on stdin.
func playGo() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		cmd := exec.CommandContext(context.Background(), program, "-test.run=^TestDatabasesAreSeparate$", "-test.v")
		cmd.Env = append(os.Environ(), strings.Fields(lines.Text())...)
		cmd.Env = append(cmd.Env, roleEnv+"=")
		output, err := cmd.CombinedOutput() // hangs if the keeper has it open
		fmt.Printf("%s\n%s%v\n", output, endOfTest, err)
	}
	return lines.Err()
}

const endOfTest = "end of test: "

// goTest is a process that plays `go test`.
type goTest struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	temp   string // its TMPDIR
}

// result is what one test binary of a run said.
type result struct {
	output string
	passed bool
	url    string
	lines  []string // that say which server was taken
}

// startRun starts a run in a temporary directory, which other runs should have
// only to see what it leaves.
func startRun(t *testing.T, temp string, change ...func(*exec.Cmd)) *goTest {
	t.Helper()
	program := filepath.Join(openDir(t), "go")
	copyTestBinary(t, program)
	cmd := exec.CommandContext(t.Context(), program)
	// a server named for the run of this test is not for those it starts
	cmd.Env = append(os.Environ(), roleEnv+"=1", "TMPDIR="+temp, "PETSTORE_TEST_DATABASE_URL=")
	cmd.Dir = temp
	cmd.Stderr = os.Stderr
	for _, change := range change {
		change(cmd)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	run := &goTest{cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout), temp: temp}
	t.Cleanup(func() {
		run.end()
		eventually(t, "nothing is left of the run", func() bool { return len(run.dirs(t)) == 0 })
	})
	return run
}

func with(env ...string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, env...) }
}

// test has the run test a package.
func (g *goTest) test(t *testing.T, env ...string) result {
	t.Helper()
	if _, err := fmt.Fprintln(g.stdin, strings.Join(env, " ")); err != nil {
		t.Fatal(err)
	}
	var r result
	for {
		line, err := g.stdout.ReadString('\n')
		if err != nil {
			t.Fatalf("the run ended: %v\n%s", err, r.output)
		}
		if end, ok := strings.CutPrefix(line, endOfTest); ok {
			r.passed = end == "<nil>\n" && strings.Contains(r.output, "--- PASS: TestDatabasesAreSeparate")
			break
		}
		r.output += line
		if _, url, ok := strings.Cut(line, "url="); ok {
			r.url = strings.TrimSpace(url)
		}
		if strings.HasPrefix(line, "pgtest: ") {
			r.lines = append(r.lines, line)
		}
	}
	return r
}

// end ends the run at once: nothing it could do at its end is done.
func (g *goTest) end() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait() // says that it was killed
}

// dirs are the directories of the run.
func (g *goTest) dirs(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(g.temp, fmt.Sprintf("petstore-pgtest-*-%d-*", g.cmd.Process.Pid)))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// killKeeper leaves the run without its keeper.
func (g *goTest) killKeeper(t *testing.T) {
	t.Helper()
	dirs := g.dirs(t)
	if len(dirs) != 1 {
		t.Fatalf("the run has the directories %v, want one", dirs)
	}
	content, err := os.ReadFile(filepath.Join(dirs[0], "server.json"))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Keeper int }
	if err := json.Unmarshal(content, &answer); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(answer.Keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(filepath.Join(dirs[0], "keeper.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	eventually(t, "the keeper is dead", func() bool {
		return syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
	})
}

func tables(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return names(t, pool, "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename = 'mine', tablename")
}

func names(t *testing.T, pool *pgxpool.Pool, query string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// serverOf is a URL without its database.
func serverOf(t *testing.T, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil || address == "" {
		t.Fatalf("no URL: %q, %v", address, err)
	}
	parsed.Path = ""
	return parsed.String()
}

// answers reports whether there is a database at the URL.
func answers(t *testing.T, url string) bool {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err == nil {
		conn.Close(t.Context())
	}
	return err == nil
}

// eventually polls what nothing announces.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(20 * time.Second)
	for !condition() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not so after 20 s: %s", what)
		}
	}
}

// openDir is a directory that every user can enter, which t.TempDir is not,
// and whose name is short: sockets lie below.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pgt") //nolint:usetesting // its directory is closed
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

// copyTestBinary copies it to where every user can run it. Other tests must
// not fork meanwhile: their child would hold the file open for a moment, and a
// program that somebody writes to cannot be run (golang/go#22315).
func copyTestBinary(t *testing.T, to string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.RLock()
	err = os.WriteFile(to, content, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}
