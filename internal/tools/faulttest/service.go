package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"petstore/internal/tools/freeport"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// service is a process of the program under test, and a client of it.
type service struct {
	*client
	fixture *fixture
	process *run.Process
	binary  string
	command string // serve or worker
	addr    string // of the API
	admin   string // of the metrics
	dbURL   string
	extra   []string // more environment variables
}

// environment is the configuration of the program. It has no rate limits, because all
// clients share a key and an address.
func environment(dbURL, addr, admin string) []string {
	return []string{
		"DATABASE_URL=" + dbURL, "PETSTORE_ADDR=" + addr, "PETSTORE_ADMIN_ADDR=" + admin,
		"PETSTORE_DB_MAX_CONNS=" + strconv.Itoa(poolSize),
		"PETSTORE_RATE_LIMIT=0", "PETSTORE_AUTH_FAILURE_LIMIT=0",
	}
}

// runCommand runs a command of the program and returns its output.
func (f *fixture) runCommand(ctx context.Context, db *database, args ...string) string {
	return runBinary(ctx, f.program.binary, environment(db.url(), "127.0.0.1:0", "127.0.0.1:0"), args...)
}

// runBinary runs a command of a build of the program and returns its output.
func runBinary(ctx context.Context, binary string, environ []string, args ...string) string {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = environ
	return run.Output(cmd)
}

// newKey creates an API key.
func (f *fixture) newKey(ctx context.Context, db *database, account, scope string) string {
	return f.runCommand(ctx, db, "key", "create", "--account", account, "--scope", scope)
}

// serve starts the service on a free port, with more environment variables, and waits until
// it is ready.
func (f *fixture) serve(ctx context.Context, dbURL string, extra ...string) *service {
	s := f.run(ctx, "serve", f.program.binary, dbURL, extra...)
	s.awaitReady(ctx, 10*time.Second)
	return s
}

// run starts a process of a build of the program, with more environment variables.
func (f *fixture) run(ctx context.Context, command, binary, dbURL string, extra ...string) *service {
	s := &service{fixture: f, command: command, binary: binary, dbURL: dbURL, extra: extra, addr: freeAddr(ctx), admin: freeAddr(ctx)}
	s.client = &client{base: "http://" + s.addr, key: f.key}
	s.start()
	f.cleanup(s.kill)
	return s
}

// freeAddr returns an address for a server.
func freeAddr(ctx context.Context) (addr string) {
	prepare(func() { addr = must.Get(freeport.Addr(ctx)) })
	return addr
}

// start starts the process, or restarts it after it has ended.
func (s *service) start() {
	_, port, _ := strings.Cut(s.addr, ":")
	cmd := exec.Command(s.binary, s.command) //nolint:noctx // it ends with the row
	cmd.Env = append(environment(s.dbURL, s.addr, s.admin), s.extra...)
	s.process = run.Start(cmd, filepath.Join(s.fixture.dir, "petstore-"+port+".log"))
}

// restart starts the process again after it has ended, and waits until it is ready. A worker does
// not say when it is.
func (s *service) restart(ctx context.Context) {
	s.start()
	if s.command == "serve" {
		s.awaitReady(ctx, 5*time.Second)
	}
}

// awaitReady waits until GET /readyz returns 200.
func (s *service) awaitReady(ctx context.Context, limit time.Duration) {
	must.Explain("the service is not ready", func() {
		must.Await(ctx, limit, func() { s.want(ctx, http.StatusOK, "GET", "/readyz", "") })
	})
}

// kill kills the process with SIGKILL.
func (s *service) kill() { s.process.Kill() }

// metrics returns the metrics of the process.
func (s *service) metrics(ctx context.Context) string {
	return string((&client{base: "http://" + s.admin}).want(ctx, http.StatusOK, "GET", "/metrics", "").body)
}

// descriptors counts the open files and sockets of the process.
func (s *service) descriptors() int {
	return len(must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.process.PID()))))
}

// peakMemory returns the largest resident size of the process so far, in bytes.
func (s *service) peakMemory() int64 { return s.process.Memory("VmHWM") }
