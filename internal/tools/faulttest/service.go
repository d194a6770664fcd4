package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"petstore/internal/tools/freeport"
	"petstore/internal/tools/must"
)

// service is a process of the program under test, and a client of it.
type service struct {
	*client
	fixture *fixture
	binary  string
	command string // serve or worker
	addr    string // of the API
	admin   string // of the metrics
	dbURL   string
	extra   []string // more environment variables
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process has ended
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
	output, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("petstore %s: %w: %s", strings.Join(args, " "), err, failed.Stderr)
	}
	return strings.TrimSpace(string(must.Get(output, err)))
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
	f.cleanup(s.kill)
	s.start()
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
	log := must.Get(os.OpenFile(filepath.Join(s.fixture.dir, "petstore-"+port+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer log.Close()
	s.cmd = exec.Command(s.binary, s.command) //nolint:noctx // it ends with the row
	s.cmd.Env = append(environment(s.dbURL, s.addr, s.admin), s.extra...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	must.OK(s.cmd.Start())
	ended := make(chan struct{})
	s.ended = ended
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait() // ProcessState holds the exit code
		close(ended)
	}(s.cmd)
}

// restart starts the process again after it has ended, and waits until it is ready.
func (s *service) restart(ctx context.Context) {
	s.start()
	s.awaitReady(ctx, 5*time.Second)
}

// awaitReady waits until GET /readyz returns 200.
func (s *service) awaitReady(ctx context.Context, limit time.Duration) {
	must.Explain("the service is not ready", func() {
		must.Await(ctx, limit, func() { s.want(ctx, http.StatusOK, "GET", "/readyz", "") })
	})
}

// kill kills the process with SIGKILL.
func (s *service) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.ended
}

// signal sends a signal to the process.
func (s *service) signal(signal syscall.Signal) { must.OK(s.cmd.Process.Signal(signal)) }

// terminate sends SIGTERM, waits for the process and returns its exit code.
func (s *service) terminate(ctx context.Context) int {
	s.signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-ctx.Done():
		must.OK(fmt.Errorf("the service has not exited: %w", context.Cause(ctx)))
	}
	return s.cmd.ProcessState.ExitCode()
}

// metrics returns the metrics of the process.
func (s *service) metrics(ctx context.Context) string {
	return string((&client{base: "http://" + s.admin}).want(ctx, http.StatusOK, "GET", "/metrics", "").body)
}

// descriptors counts the open files and sockets of the process.
func (s *service) descriptors() int {
	return len(must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))))
}

// peakMemory returns the largest resident size of the process so far, in bytes.
func (s *service) peakMemory() int64 {
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid)))
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	return must.Get(strconv.ParseInt(strings.Fields(peak)[0], 10, 64)) << 10
}
