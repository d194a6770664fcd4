package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/event"
	"petstore/internal/localpg"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// asProgram makes the test binary run as the program, for tests that need a
// process: signals, exit codes and a working directory.
const asProgram = "PETSTORE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	pgtest.Widen()
	os.Exit(runTests(m.Run))
}

// emptyDir is a folder in which commands run that write no files.
var emptyDir string

// runTests runs the tests, and then ends what they share.
func runTests(run func() int) int {
	var err error
	if emptyDir, err = os.MkdirTemp("", "petstore-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := run()
	err = endShared()
	if err := errors.Join(err, pgtest.LeaveShared(code != 0 || err != nil), os.Remove(emptyDir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// execute runs a command in this process and searches its output for secrets. The
// admin address is off unless environ sets it.
func execute(t *testing.T, environ []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return executeIn(t, emptyDir, environ, "", args...)
}

// executeIn is [execute] in a folder and with a stdin.
func executeIn(t *testing.T, dir string, environ []string, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	learnEnviron(environ)
	environ = append([]string{"PETSTORE_ADMIN_ADDR=off"}, withReplica(environ)...)
	err = run(ctx, args, &program{environ: environ, dir: dir, stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs})
	watchOutput(t, args, out.String(), fmt.Sprintf("%s%v", &errs, err))
	return out.String(), errs.String(), err
}

// must runs a command that must succeed and returns its output.
func must(t *testing.T, environ []string, args ...string) string {
	t.Helper()
	stdout, stderr, err := execute(t, environ, args...)
	if err != nil {
		t.Fatalf("petstore %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

func TestHelpShowsAnExampleOfEveryCommand(t *testing.T) {
	t.Parallel()
	var check func(*cobra.Command)
	check = func(command *cobra.Command) {
		path := strings.Fields(command.CommandPath())[1:]
		help := must(t, nil, append(path, "--help")...)
		if !strings.Contains(help, "Examples:\n  ") {
			t.Errorf("petstore %s --help has no example:\n%s", path, help)
		}
		readsNothing := slices.Contains([]string{"petstore", "petstore version", "petstore man"}, command.CommandPath())
		if strings.Contains(help, "\nEnvironment variables (docs/configuration.md):\n  ") == readsNothing {
			t.Errorf("petstore %s --help does not name the environment variables:\n%s", path, help)
		}
		for _, one := range command.Commands() {
			if one.Name() != "help" && one.Name() != "completion" { // of cobra
				check(one)
			}
		}
	}
	check((&program{}).rootCommand())
	for command, variable := range map[string]string{"seed": "PETSTORE_DB_MAX_CONNS", "healthcheck": "PETSTORE_TLS_CERT_FILE"} {
		if _, variables, _ := strings.Cut(must(t, nil, command, "--help"), "\nEnvironment variables"); !strings.Contains(variables, variable) {
			t.Errorf("petstore %s --help does not name %s", command, variable)
		}
	}
	wantText(t, nil, "petstore", "completion", "bash")
}

// TestWrongUsage: a wrong command line is a usage error. TestUsageSentences has more of them, with the
// sentences.
func TestWrongUsage(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"migrate up --json", "key create --account a --expires-in 0d", "key create --account \t", "key create --account a\u0085b",
		"key create --account a --name \x7F", "key create --account " + strings.Repeat("a", 101), "account create a b", "account delete",
		"account list a", "sandbox create --account a --expires-in 59s",
		"sandbox create --account a --expires-in 61500ms", "sandbox create --account a --name \t", "sandbox delete sbx_1", "api", "api pets", "api GOT /pets", "api /pets name", "api POST /pets name:=", "api POST /pets a=1 a=2",
		"api /pets --header Prefer", "api POST /pets --paginate", "api /pets --paginate -i", "api /pets --input -", "api POST /pets --input - a=1",
		"api /pets --url x", "trigger a b", "listen --types ,", "logs now", "logs --limit 0", "logs --limit 5001", "logs --har --json", "import",
		"import a --resource messages", "import a --in-doubt no", "import a b --again", "import a --connections 0", "import a --connections 257",
		"export petz", "export pets status", "export --csv", "export pets --csv -f", "export pets -f status=sold", "key rotate",
		"key rotate 1 --grace soon", "key rotate 1 --grace 1500ms", "key rotate 1 --grace 24h1s",
	} {
		_, _, err := execute(t, []string{"DATABASE_URL=postgres:///unused?host=/nowhere"}, strings.Split(args, " ")...)
		if _, ok := errors.AsType[*usageError](err); !ok {
			t.Errorf("petstore %s: %v, want a usage error", args, err)
		}
	}
}

// TestValuesOfVariables has valid and invalid values. A base URL has no path, because Location headers
// are absolute paths. After a longer timeout of requests, the server could not send its 503.
func TestValuesOfVariables(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]map[string]bool{
		"PETSTORE_BASE_URL": {
			"": true, "http://localhost:8080": true, "https://petstore.example": true, "https://[::1]:8443": true,
			"https://petstore.example/": false, "https://petstore.example/v1": false, "https://petstore.example?": false, "https://petstore.example#": false,
			"https://user@petstore.example": false, "https://": false, "https://:8080": false, "petstore.example": false, "ftp://petstore.example": false,
		},
		"PETSTORE_DB_MAX_CONNS":    {"": true, "2": true, "1": false, "10001": false},
		"PETSTORE_MAX_BODY_BYTES":  {"1": true, "1048576": true, "1048577": false, "0": false},
		"PETSTORE_RATE_BURST":      {"": true, "1": true, "0": false, "-1": false},
		"PETSTORE_REQUEST_TIMEOUT": {"1ms": true, "10s": true, "10001ms": false, "1m": false, "-1s": false},
		"PETSTORE_TRUSTED_PROXIES": {
			"": true, "127.0.0.1": true, "10.0.0.0/8": true, "::1": true, "2001:db8::/32": true, "10.0.0.0/8, 192.0.2.1 ,::1": true,
			"localhost": false, "10.0.0.1/8": false, "10.0.0.0/33": false, "10.0.0": false, "fe80::1%eth0": false, "127.0.0.1:80": false,
			"10.0.0.0/8,,::1": false, "10.0.0.0/8;::1": false, "*": false,
		},
		"OTEL_EXPORTER_OTLP_ENDPOINT":        {"": true, "http://collector:4318": true, "https://collector/otlp": true, "collector:4318": false, "grpc://collector": false, "http://": false},
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": {"http://collector:4318/v1/traces": true, "collector": false},
		"OTEL_RESOURCE_ATTRIBUTES":           {"": true, "service.namespace=shop, team=": true, "load=50%": true, "shop": false, "a=b,": false, "=b": false},
		"OTEL_EXPORTER_OTLP_HEADERS": {
			"": true, " ": true, "Authorization=Bearer%20x": true, "a = b=c , X-Scope-OrgID=": true,
			"a": false, "a=b,": false, "=b": false, "a b=c": false, "a=%": false, "a=b%0Ac": false,
		},
	} {
		for value, right := range values {
			_, _, err := execute(t, []string{"OTEL_TRACES_EXPORTER=otlp", name + "=" + value}, "serve") // fails later because there is no database
			if err == nil || strings.Contains(err.Error(), name) == right {
				t.Errorf("%s=%s: %v", name, value, err)
			}
		}
	}
}

// TestServeWaits: servers log that they wait for a database that is away, full or locked, and may be
// stopped then. TestDatabaseSentences has the errors.
func TestServeWaits(t *testing.T) {
	t.Parallel()
	environ := []string{"DATABASE_URL=postgres://localhost:1/petstore", "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_STARTUP_WAIT=300ms"}
	began := time.Now()
	_, _, err := execute(t, environ, "serve")
	if err == nil || !strings.HasSuffix(err.Error(), "(waited 300ms, see PETSTORE_STARTUP_WAIT)") || time.Since(began) < 300*time.Millisecond {
		t.Errorf("%v, after %s", err, time.Since(began))
	}
	locked := pgtest.New(t)
	holder := need.Value(locked.Pool.Begin(t.Context()))(t)
	defer func() { _ = holder.Rollback(t.Context()) }()
	need.Value(holder.Exec(t.Context(), "LOCK TABLE goose_db_version"))(t)
	full := "postgres://shop:secret@" + rejectLogins(t, "53300", "sorry, too many clients already") + "/shop?sslmode=disable"
	for _, address := range []string{environ[0], "DATABASE_URL=" + full, "DATABASE_URL=" + locked.URL} {
		for _, command := range []string{"serve", "worker"} {
			p := begin(t, emptyDir, []string{address, environ[1], "PETSTORE_ADMIN_ADDR=off"}, command)
			p.expect("waiting for the database")
			p.exits(0, syscall.SIGTERM)
		}
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	environ := []string{"DATABASE_URL=" + pgtest.NewEmpty(t).URL}
	wantOutput(t, environ, "0\n", "migrate", "version")
	wantRefusal(t, append(environ, "PETSTORE_SERVING_ROLE=nobody_at_all"), "CREATE ROLE", "migrate", "up")
	wantText(t, environ, "applied 00001_create_accounts.sql", "migrate", "up")
	wantOutput(t, environ, "the schema is current\n", "migrate", "up")
	distributed, _, err := execute(t, environ, "migrate", "distribute")
	if pgtest.Is(pgtest.Citus) {
		if again := must(t, environ, "migrate", "distribute"); err != nil || !strings.Contains(distributed, "distributed pets (") || again != "all tables are distributed\n" {
			t.Errorf("migrate distribute: %q, %v; again: %q", distributed, err, again)
		}
	} else if err == nil || !strings.Contains(err.Error(), "CREATE EXTENSION citus") {
		t.Errorf("migrate distribute without Citus: %v", err)
	}
	if status := must(t, environ, "migrate", "status"); strings.Contains(status, "pending") || !strings.Contains(status, "00007_create_orders.sql") {
		t.Errorf("migrate status:\n%s", status)
	}
	if _, _, err := execute(t, environ, "migrate", "down"); err == nil || !strings.HasSuffix(err.Error(), "; confirm it with --yes") {
		t.Errorf("migrate down without a terminal: %v", err)
	}
	if status := must(t, environ, "migrate", "status"); strings.Contains(status, "pending") {
		t.Errorf("migrate status without confirmation:\n%s", status)
	}
	wantText(t, environ, "reverted", "migrate", "down", "--yes")
	wantText(t, environ, "pending", "migrate", "status")
}

// TestServingRole: migrate up grants the serving role all privileges that it needs.
func TestServingRole(t *testing.T) {
	t.Parallel()
	role := need.Value(url.Parse(pgtest.New(t).DirectURL))(t)
	database := pgtest.NewEmpty(t)
	owner := need.Value(url.Parse(database.OwnerURL))(t)
	serving := *role
	serving.Path = owner.Path
	environ := []string{"DATABASE_URL=" + serving.String(), "PETSTORE_ADDR=127.0.0.1:0"}
	p := begin(t, emptyDir, environ, "serve")
	p.expect("petstore migrate up")
	base := p.address()
	if log := strings.Join(p.output, ""); strings.Count(log, "the server is not ready") != 1 {
		t.Errorf("serve does not say once that it is not ready:\n%s", log)
	}
	wantStatus(t, base+"/readyz", "", http.StatusServiceUnavailable)
	up := []string{"DATABASE_URL=" + database.OwnerURL, "PETSTORE_SERVING_ROLE=" + role.User.Username()}
	for range 2 {
		wantText(t, up, "granted "+role.User.Username()+" the privileges of serve\n", "migrate", "up")
	}
	need.Within(t, patience, "the server is ready after the grant", func() bool { // it looks at most once a second
		return status(t, base+"/readyz", "") == http.StatusOK
	})
	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme"))
	post(t, base+"/categories", key, `{"name": "dogs"}`)
	wantRefusal(t, environ, "may not migrate the schema", "migrate", "down", "--yes")
	p.exits(0, syscall.SIGTERM)
}

var keyPattern = regexp.MustCompile(`petstore_[0-9A-Za-z]{36}`)

func TestKeys(t *testing.T) {
	t.Parallel()
	environ := []string{"DATABASE_URL=" + pgtest.New(t).URL}
	secret := must(t, environ, "key", "create", "--account", "acme", "--name", "ci", "--scope", "read", "--expires-in", "90d")
	if !regexp.MustCompile(`^` + keyPattern.String() + "\n$").MatchString(secret) {
		t.Fatalf("key create prints %q, want only the key", secret)
	}
	must(t, environ, "key", "create", "--account", "acme")
	must(t, environ, "key", "create", "--account", "other") // not in the list of acme
	prefix := secret[:len("petstore_")+8]
	list := must(t, environ, "key", "list", "--account", "acme")
	if !strings.Contains(list, prefix) || strings.Contains(list, strings.TrimSpace(secret)) || strings.Count(list, "in force") != 2 {
		t.Errorf("key list:\n%s", list)
	}
	for range 2 { // revoking again changes nothing
		wantText(t, environ, "(ci)", "key", "revoke", prefix)
	}
	must(t, environ, "key", "revoke", "1002")
	if list := must(t, environ, "key", "list", "--account", "acme"); strings.Count(list, "revoked") != 2 {
		t.Errorf("key list after both were revoked:\n%s", list)
	}
	wantRefusal(t, environ, "there is no API key", "key", "revoke", "petstore_00000000")
	wantRefusal(t, environ, "there is no account", "key", "list", "--account", "nobody")
}

// TestListManyKeys: the list has all keys in order, as many as an account may have.
func TestListManyKeys(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	environ := []string{"DATABASE_URL=" + database.URL}
	must(t, environ, "key", "create", "--account", "acme")
	const many = auth.MaxStored - 1 // and the other key
	pgtest.Exec(t, database.Pool, `
		INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256)
		SELECT account_id, name, scope, prefix, sha256(n::text::bytea) FROM api_keys, generate_series(1, $1) n`, many)
	lines := strings.Split(strings.TrimSpace(must(t, environ, "key", "list", "--account", "acme")), "\n")[1:]
	if len(lines) != many+1 {
		t.Fatalf("the list has %d keys, want %d", len(lines), many+1)
	}
	for i, line := range lines {
		if id := strings.Fields(line)[0]; id != strconv.Itoa(1001+i) {
			t.Fatalf("line %d of the list has the key %s", i+1, id)
		}
	}
}

// TestRotateKey: rotate prints only the new secret, and the old one works during
// its grace.
func TestRotateKey(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	environ := []string{"DATABASE_URL=" + database.URL}
	first := must(t, environ, "key", "create", "--account", "acme", "--name", "ci")
	prefix := func(secret string) string { return secret[:len("petstore_")+8] }
	works := func(secrets ...string) {
		t.Helper()
		for i, secret := range secrets {
			_, err := auth.NewVerifier(db.New(database.Pool), nil).Verify(t.Context(), strings.TrimSpace(secret), nil)
			if last := i == len(secrets)-1; (err == nil) != last {
				t.Errorf("secret %d of %d: %v", i+1, len(secrets), err)
			}
		}
	}
	second := must(t, environ, "key", "rotate", prefix(first), "--grace", "10m")
	if !regexp.MustCompile(`^`+keyPattern.String()+"\n$").MatchString(second) || second == first {
		t.Fatalf("key rotate prints %q, want only the new secret", second)
	}
	works(first)
	works(second)
	third := must(t, environ, "key", "rotate", "1001")
	works(first, second, third)
	list := must(t, environ, "key", "list", "--account", "acme")
	if !strings.Contains(list, prefix(third)) || strings.Contains(list, prefix(first)) || strings.Count(list, "in force") != 1 {
		t.Errorf("key list:\n%s", list)
	}
	wantRefusal(t, environ, "there is no API key", "key", "rotate", prefix(first))
	wantRefusal(t, environ, "there is no API key", "key", "rotate", "2")
	must(t, environ, "key", "create", "--account", "acme")
	pgtest.Exec(t, database.Pool, "UPDATE api_keys SET prefix = $1", prefix(third))
	for _, command := range []string{"rotate", "revoke"} {
		wantRefusal(t, environ, "2 API keys have the prefix", "key", command, prefix(third))
	}
	works(third)
	pgtest.Exec(t, database.Pool, "UPDATE api_keys SET expires_at = now() WHERE id = 1002")
	for range 2 { // the first has changed nothing
		wantRefusal(t, environ, "the API key 1002 "+prefix(third)+" (default) has expired", "key", "rotate", "1002")
	}
	must(t, environ, "key", "revoke", "1001")
	wantRefusal(t, environ, "is revoked", "key", "rotate", "1001")
}

func TestSeed(t *testing.T) {
	t.Parallel()
	environ := []string{"DATABASE_URL=" + pgtest.New(t).URL}
	wantText(t, environ, "50 pets", "seed", "--pets", "50")
	wantRefusal(t, environ, "", "seed", "--pets", "50") // the database is not empty
}

// TestCommandsWithoutServer: the commands that add events work on a database on which no
// server has run for weeks. Its table events then has no partition of this week.
func TestCommandsWithoutServer(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	environ := []string{"DATABASE_URL=" + database.URL}
	for _, command := range []string{"seed --pets 5 --account acme", "sandbox create --account acme"} {
		const drops = "SELECT 'DROP TABLE ' || inhrelid::regclass FROM pg_inherits WHERE inhparent = 'events'::regclass"
		for _, drop := range pgtest.List[string](t, database.Pool, drops) {
			pgtest.Exec(t, database.Pool, drop)
		}
		must(t, environ, strings.Fields(command)...)
	}
}

func TestOpenAPIAndVersion(t *testing.T) {
	t.Parallel()
	if yaml := must(t, nil, "openapi"); !strings.HasPrefix(yaml, "openapi: 3.0.3") {
		t.Errorf("openapi: %.40q", yaml)
	}
	json := must(t, []string{"PETSTORE_BASE_URL=https://api.example.com"}, "openapi", "--format", "json")
	if !strings.Contains(json, `"https://api.example.com"`) {
		t.Error("openapi --format json does not contain the base URL")
	}
	if version := must(t, nil, "version"); !strings.HasPrefix(version, "petstore ") || !strings.Contains(version, "API 1.0.0") {
		t.Errorf("version: %q", version)
	}
	for _, flag := range []string{"--version", "-v"} {
		wantOutput(t, nil, must(t, nil, "version"), flag)
	}
}

// TestCompletion: the shell completes the values of flags, and file names only
// where they make sense.
func TestCompletion(t *testing.T) {
	t.Parallel()
	types := event.TypeNames()
	for line, want := range map[string]string{
		"key create --scope ":          "read\nwrite\nadmin\n:4\n",
		"key create --scope=":          "read\nwrite\nadmin\n:4\n",
		"key create --expires-in ":     "30d\n90d\n365d\n:4\n",
		"key rotate 1 --grace ":        "10m\n1h\n24h\n:4\n",
		"sandbox create --sample ":     "empty\nshop\n:4\n",
		"sandbox create --expires-in ": "1h\n24h\n7d\n:4\n",
		"api ":                         ":4\n",
		"api --input ":                 ":0\n",
		"import ":                      ":0\n",
		"import pets.csv --errors ":    ":0\n",
		"man ":                         ":16\n",
		"trigger order.pl":             "order.placed\tAn order took units from stock.\n:4\n",
		"account del":                  "delete\tDelete an account with its store, its keys and its sandboxes\n:4\n",
		"account delete ":              ":4\n",
		"listen --after ":              "latest\nstart\n:4\n",
		"listen --types ":              strings.Join(types, "\n") + "\n:6\n",
		"listen --types pet.created,o": "pet.created," + strings.Join(types, "\npet.created,") + "\n:6\n",
		"openapi --format ":            "yaml\njson\njson-3.1\npostman\n:4\n",
		"help mig":                     "migrate\tMigrate the database schema at deploy time\n:4\n",
		"help migrate u":               "up\tApply every pending migration\n:4\n",
		"key revoke ":                  ":4\n",
		"serve ":                       ":4\n",
		"seed --pets ":                 ":4\n",
		"key list --account ":          ":4\n",
		"completion bash ":             ":4\n",
		"migrate ver":                  "version\tPrint the version of the schema\n:4\n",
		"dev --po":                     "--port\tthe port to listen on, instead of the port of PETSTORE_ADDR or 8080; 0 selects a free port\n:4\n",
	} {
		wantOutput(t, nil, want, append([]string{"__complete"}, strings.Split(line, " ")...)...)
	}
}

// process is the program in its own process.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	unread         transcript // of both
	output         []string   // the lines that expect has read
}

// begin starts the program in a directory. The test kills it at the end, searches its output for
// secrets, and shows the output if it has failed.
func begin(t *testing.T, dir string, environ []string, args ...string) *process {
	t.Helper()
	p := start(t, dir, environ, args...)
	t.Cleanup(func() {
		p.kill()
		watchOutput(t, args, p.stdout.String(), p.stderr.String())
		if strings.Contains(p.stderr.String(), "WARNING: DATA RACE") {
			t.Errorf("petstore %s has a data race", strings.Join(args, " "))
		}
		if t.Failed() {
			t.Logf("petstore %s printed:\n%s%s", strings.Join(args, " "), &p.stdout, &p.stderr)
		}
	})
	return p
}

// start starts the program in a directory. The caller kills it.
func start(t *testing.T, dir string, environ []string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, dir, environ, args...)
}

// startWith is [start] with a stdin.
func startWith(t *testing.T, stdin io.Reader, dir string, environ []string, args ...string) *process {
	t.Helper()
	cmd := command(dir, environ, args...)
	cmd.Stdin = stdin
	p := &process{t: t, cmd: cmd}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&p.stdout, &p.unread), io.MultiWriter(&p.stderr, &p.unread)
	need.OK(t, cmd.Start())
	return p
}

// command returns the program in a directory.
func command(dir string, environ []string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...) //nolint:noctx // the test ends it by signals of its choice
	cmd.Dir = dir
	cmd.Env = append([]string{asProgram + "=1", "PETSTORE_ADMIN_ADDR=off", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, withReplica(environ)...)
	learnEnviron(environ)
	return cmd
}

// kill ends the process, if a test has not done so.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()
}

// transcript is a text that a process goes on printing.
type transcript struct {
	mu   sync.Mutex
	text []byte
}

// Write implements [io.Writer].
func (t *transcript) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	return len(text), nil
}

// line removes and returns the first line, if that is complete.
func (t *transcript) line() (line string, isComplete bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first, rest, isComplete := bytes.Cut(t.text, []byte("\n"))
	if isComplete {
		t.text = rest
	}
	return string(first), isComplete
}

const patience = 60 * time.Second

// expect reads output up to the line that contains text, and returns that line.
func (p *process) expect(text string) (line string) {
	p.t.Helper()
	need.Within(p.t, patience, fmt.Sprintf("the program prints %q", text), func() bool {
		for {
			var isComplete bool
			if line, isComplete = p.unread.line(); !isComplete {
				return false
			}
			p.output = append(p.output, line)
			if strings.Contains(line, text) {
				return true
			}
		}
	})
	return line
}

// end sends a signal, and waits for the process.
func (p *process) end(signal os.Signal) {
	p.t.Helper()
	watchArguments(p.t)
	need.OK(p.t, p.cmd.Process.Signal(signal))
	p.wait()
}

// exits waits for the process, to which it may send a signal before, and wants the exit code.
func (p *process) exits(want int, signals ...os.Signal) {
	p.t.Helper()
	for _, signal := range signals {
		p.end(signal)
	}
	if code := p.wait(); code != want {
		p.t.Errorf("petstore %s: exit code %d after %v, want %d", strings.Join(p.cmd.Args[1:], " "), code, signals, want)
	}
}

func (p *process) wait() int {
	p.t.Helper()
	_ = p.cmd.Wait() // reported by the exit code
	return p.cmd.ProcessState.ExitCode()
}

// listening returns the line with the addresses on stderr. An earlier call of expect may have read
// it, because it has no order with the lines on stdout.
func (p *process) listening() string {
	p.t.Helper()
	if i := slices.IndexFunc(p.output, func(line string) bool { return strings.Contains(line, "listening") }); i >= 0 {
		return p.output[i]
	}
	return p.expect("listening")
}

func (p *process) address() string {
	p.t.Helper()
	return "http://" + regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(p.listening())
}

func TestServe(t *testing.T) {
	t.Parallel()
	environ := []string{"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0"}
	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme"))
	p := begin(t, emptyDir, environ, "serve")
	base := p.address()
	need.Contains(t, "the line of serve", p.output[len(p.output)-1], `"admin_address":"off"`)
	wantStatus(t, base+"/pets", key, http.StatusOK)
	healthcheck := append(slices.Clone(environ), "PETSTORE_ADDR="+strings.TrimPrefix(base, "http://"))
	wantOutput(t, healthcheck, "ready\n", "healthcheck")
	must(t, environ, "key", "revoke", key[:len("petstore_")+8])
	need.Within(t, time.Second, "a revoked key stops", func() bool { return status(t, base+"/pets", key) == http.StatusUnauthorized })
	p.exits(0, syscall.SIGTERM)
	p.expect("authentication_failed")
	p.expect("shut down")                                                                                // the last line, which no other line follows
	if list := must(t, environ, "key", "list", "--account", "acme"); strings.Count(list, "never") != 1 { // "never" in the column EXPIRES only
		t.Errorf("the last use was not written during shutdown:\n%s", list)
	}
	wantRefusal(t, healthcheck, "", "healthcheck")
}

// TestClosedOutput: the program goes on after the reader of its output has ended, such as tee on Ctrl-C.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	database, empty := pgtest.New(t), pgtest.NewEmpty(t)
	role, _ := empty.NewRole(t)
	for args, test := range map[string]struct{ url, last string }{
		"serve": {database.URL, "listening"}, "worker": {database.URL, "delivering webhooks"}, "dev": {database.OwnerURL, "listening"},
		"migrate up": {empty.OwnerURL, ""},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			read, write, err := os.Pipe()
			need.OK(t, err)
			cmd := command(pgtest.Dir(t), []string{"DATABASE_URL=" + test.url, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_SERVING_ROLE=" + role}, strings.Fields(args)...)
			cmd.Stdout, cmd.Stderr = write, write
			if test.last == "" {
				read.Close()
			}
			need.OK(t, errors.Join(cmd.Start(), write.Close()))
			if test.last != "" {
				scanner := bufio.NewScanner(read)
				for scanner.Scan() && !strings.Contains(scanner.Text(), test.last) {
				}
				need.OK(t, errors.Join(read.Close(), cmd.Process.Signal(syscall.SIGTERM)))
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("it ends with %v", err)
			}
		})
	}
	t.Cleanup(func() {
		var isGranted bool
		err := empty.Pool.QueryRow(context.WithoutCancel(t.Context()), "SELECT has_table_privilege($1, 'accounts', 'DELETE')", role).Scan(&isGranted)
		if err != nil || !isGranted {
			t.Errorf("migrate up has not granted the privileges: %v", err)
		}
	})
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{"version": 0, "serve": exitFailure, "nonsense": exitUsage} {
		begin(t, emptyDir, nil, args).exits(want)
	}
}

// TestDev starts, kills and restarts dev in one folder.
func TestDev(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	environ := []string{"PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_PG_BIN=" + os.Getenv("PETSTORE_PG_BIN"), "PETSTORE_DB_MAX_CONNS=90"} // the default of 15 CPUs

	first := begin(t, dir, environ, "dev")
	key := keyPattern.FindString(first.expect("API key"))
	first.expect("Account       demo")
	base := first.address()
	wantPrivate(t, filepath.Join(dir, devDir))
	wantStatus(t, base+"/pets/1", key, http.StatusOK)
	created := post(t, base+"/categories", key, `{"name":"kept over a restart"}`)

	if told, _, err := executeIn(t, dir, environ, "", "doctor"); err != nil {
		t.Errorf("doctor finds a mistake in dev: %v\n%s", err, told)
	}

	first.end(os.Kill)

	second := begin(t, dir, environ, "dev")
	if again := keyPattern.FindString(second.expect("API key")); again != key {
		t.Error("the key has changed after a restart")
	}
	base = second.address()
	wantStatus(t, base+created, key, http.StatusOK)
	second.exits(0, os.Interrupt)
	if pids, _ := filepath.Glob(filepath.Join(dir, ".petstore", "postgres", "*", "postmaster.pid")); len(pids) != 0 {
		t.Errorf("PostgreSQL is still running: %v", pids)
	}
}

// wantPrivate checks that other users cannot read or list anything in a folder.
// Under root, the user of the database server may enter it.
func wantPrivate(t *testing.T, dir string) {
	t.Helper()
	need.OK(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		allowed := fs.FileMode(0o600)
		if entry.IsDir() {
			allowed = localpg.DirMode()
		}
		if open := info.Mode().Perm() &^ allowed; open != 0 && info.Mode()&fs.ModeSocket == 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		if entry.Name() == "data" || entry.Name() == "socket" { // protected by PostgreSQL
			if info.Mode().Perm() != 0o700 {
				t.Errorf("%s has mode %s", path, info.Mode())
			}
			return fs.SkipDir
		}
		return nil
	}))
}

// TestPortOfDev: --port overrides the port of PETSTORE_ADDR, whose host may be the default of serve.
func TestPortOfDev(t *testing.T) {
	t.Parallel()
	p := begin(t, pgtest.Dir(t), []string{"DATABASE_URL=" + pgtest.New(t).OwnerURL, "PETSTORE_ADDR=:1"}, "dev", "--port", "0")
	if line := p.expect("listening"); strings.Contains(line, "127.0.0.1") {
		t.Errorf("with PETSTORE_ADDR=:1, dev does not listen on all addresses: %s", line)
	}
}

func TestParseExpiry(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{"90d": 90 * day, "12h": 12 * time.Hour, "30m": 30 * time.Minute} {
		if got, err := parseExpiry(text, now); err != nil || !got.Equal(now.Add(want)) {
			t.Errorf("parseExpiry(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"d", "-1d", "0d", "90", "1e9d", "99999999999999999999d", "200000d", "-200000d", "-5m", "100000h0d"} {
		if got, err := parseExpiry(text, now); err == nil {
			t.Errorf("parseExpiry(%q) = %v", text, got)
		}
	}
}

// awaitMetric waits until a metric without labels has a value, and returns all metrics.
func awaitMetric(t *testing.T, admin, name string, want int) string {
	t.Helper()
	line := fmt.Sprintf("\n%s %d\n", name, want)
	var metrics string
	need.Within(t, patience, fmt.Sprintf("the metrics contain %q", line), func() bool {
		metrics = read(t, admin+"/metrics")
		return strings.Contains(metrics, line)
	})
	return metrics
}
