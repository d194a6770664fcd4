package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// service is a process of the program under test.
type service struct {
	fixture *fixture
	binary  string
	command string // serve or worker
	addr    string
	dbURL   string
	extra   []string // more environment variables
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process has ended
}

// environment is the configuration of the program. It has no rate limits, because all
// clients share a key and an address.
func environment(dbURL, addr string) []string {
	return []string{
		"DATABASE_URL=" + dbURL, "PETSTORE_ADDR=" + addr, "PETSTORE_ADMIN_ADDR=127.0.0.1:0",
		"PETSTORE_DB_MAX_CONNS=" + strconv.Itoa(poolSize),
		"PETSTORE_RATE_LIMIT=0", "PETSTORE_AUTH_FAILURE_LIMIT=0",
	}
}

// runCommand runs a command of the program and returns its output.
func (f *fixture) runCommand(ctx context.Context, dbURL string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, f.program.binary, args...)
	cmd.Env = environment(dbURL, "127.0.0.1:0")
	output, err := cmd.Output()
	if failure, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("petstore %s: %w: %s", strings.Join(args, " "), err, failure.Stderr)
	}
	return string(output), err
}

// serve starts the service on a free port, with more environment variables, and waits until
// it is ready.
func (f *fixture) serve(ctx context.Context, dbURL string, extra ...string) (*service, error) {
	return f.run(ctx, &service{command: "serve", binary: f.program.binary, dbURL: dbURL, extra: extra})
}

// work starts a worker of webhooks, with more environment variables.
func (f *fixture) work(ctx context.Context, dbURL string, extra ...string) (*service, error) {
	return f.run(ctx, &service{command: "worker", binary: f.program.binary, dbURL: dbURL, extra: extra})
}

// run starts a process, and waits until a service is ready.
func (f *fixture) run(ctx context.Context, s *service) (_ *service, err error) {
	if s.addr, err = freeAddr(ctx); err != nil {
		return nil, err
	}
	s.fixture = f
	f.cleanup(s.kill)
	if err := s.start(); err != nil || s.command != "serve" {
		return s, err
	}
	if _, err := s.awaitReady(ctx, 10*time.Second); err != nil {
		return nil, fmt.Errorf("the service is not ready: %w", err)
	}
	return s, nil
}

// The ports of freeAddr are below the ephemeral range.
const lowestPort, beyondPorts = 30000, 32768

// nextPort counts the ports that freeAddr has tried.
var nextPort atomic.Int64

// firstPort is the first one, different in each run.
var firstPort = rand.Int64N(beyondPorts - lowestPort)

// freeAddr returns a port that is free, each time another one: a service listens on the port
// some time later.
func freeAddr(ctx context.Context) (string, error) {
	var config net.ListenConfig
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", lowestPort+(firstPort+nextPort.Add(1))%(beyondPorts-lowestPort))
		if listener, err := config.Listen(ctx, "tcp", addr); err == nil {
			return addr, listener.Close()
		}
	}
	return "", errors.New("no port between 30000 and 32767 is free")
}

// log returns the file with the output of the process.
func (s *service) log() string { return filepath.Join(s.fixture.dir, "petstore-"+s.port()+".log") }

// loggedErrors counts the lines of level ERROR in the log.
func (s *service) loggedErrors() (int, error) {
	text, err := os.ReadFile(s.log())
	return strings.Count(string(text), `"level":"ERROR"`), err
}

// start starts the process, or restarts it after it has ended.
func (s *service) start() error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(s.binary, s.command) //nolint:noctx // it ends with the row
	s.cmd.Env = append(environment(s.dbURL, s.addr), s.extra...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.ended = ended
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait() // ProcessState holds the exit code
		close(ended)
	}(s.cmd)
	return nil
}

func (s *service) url() string { return "http://" + s.addr }

func (s *service) port() string {
	_, port, _ := strings.Cut(s.addr, ":")
	return port
}

// awaitReady waits until GET /readyz returns 200, and returns how long that took.
func (s *service) awaitReady(ctx context.Context, within time.Duration) (time.Duration, error) {
	c := &client{base: s.url()}
	return eventually(ctx, within, func() error {
		_, err := c.want(ctx, http.StatusOK, "GET", "/readyz", "")
		return err
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

// terminate sends SIGTERM, waits for the process and returns its exit code.
func (s *service) terminate(ctx context.Context) (int, error) {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	return s.exitCode(ctx)
}

// exitCode waits for the process and returns its exit code.
func (s *service) exitCode(ctx context.Context) (int, error) {
	select {
	case <-s.ended:
		return s.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("the service has not exited: %w", context.Cause(ctx))
	}
}

// descriptors counts the open files and sockets of the process.
func (s *service) descriptors() (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	return len(entries), err
}

// awaitDescriptors waits until the process has no more open descriptors than before, except
// those that it may need itself, such as connections of its pool.
func (s *service) awaitDescriptors(ctx context.Context, before int, within time.Duration) (time.Duration, error) {
	return eventually(ctx, within, func() error {
		const own = poolSize + 4
		now, err := s.descriptors()
		if err == nil && now > before+own {
			err = fmt.Errorf("%d descriptors are open, %d before", now, before)
		}
		return err
	})
}

// memory returns a field of /proc/PID/status, such as VmHWM, in bytes.
func (s *service) memory(field string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kilobytes << 10, err
		}
	}
	return 0, fmt.Errorf("/proc has no field %s", field)
}
