// Package run starts programs and servers, and asks databases, for the programs of developers.
// Its functions fail as package must says.
package run

import (
	"bytes"
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

	"github.com/jackc/pgx/v5"

	"petstore/internal/tools/must"
)

// Program runs a program, and returns its standard output as [Output] does.
func Program(ctx context.Context, program string, args ...string) string {
	return Output(exec.CommandContext(ctx, program, args...))
}

// Output runs a command, and returns its standard output without the space around it.
func Output(cmd *exec.Cmd) string {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		must.OK(fmt.Errorf("%s %s: %w: %s%s", filepath.Base(cmd.Path), strings.Join(cmd.Args[1:], " "), err, stdout.Bytes(), stderr.Bytes()))
	}
	return strings.TrimSpace(stdout.String())
}

// Checkout writes the files of a commit of this repository into a new directory.
func Checkout(ctx context.Context, commit, dir string) {
	archive := dir + ".tar"
	must.OK(os.Mkdir(dir, 0o700))
	Program(ctx, "git", "archive", "--format=tar", "--output="+archive, commit)
	Program(ctx, "tar", "-xf", archive, "-C", dir)
}

// Process is a running program.
type Process struct {
	*exec.Cmd

	ended chan struct{} // closed when the process has ended
}

// Start starts a command. Its output goes to the end of a log file, unless that is "".
func Start(cmd *exec.Cmd, logFile string) *Process {
	if logFile != "" {
		log := must.Get(os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
	}
	must.OK(cmd.Start())
	p := &Process{cmd, make(chan struct{})}
	go func() {
		_ = cmd.Wait() // ProcessState has the exit code
		close(p.ended)
	}()
	return p
}

// HasEnded reports whether the process has ended.
func (p *Process) HasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// PID returns the process id.
func (p *Process) PID() int { return p.Process.Pid }

// Signal sends a signal to the process.
func (p *Process) Signal(signal syscall.Signal) { must.OK(p.Process.Signal(signal)) }

// Kill kills the process with SIGKILL, if it has not ended, and waits for its end.
func (p *Process) Kill() {
	_ = p.Process.Kill() // it may have ended
	<-p.ended
}

// Terminate sends SIGTERM, waits for the process and returns its exit code.
func (p *Process) Terminate(ctx context.Context) int {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-ctx.Done():
		must.OK(fmt.Errorf("%s has not exited: %w", filepath.Base(p.Path), context.Cause(ctx)))
	}
	return p.ProcessState.ExitCode()
}

// Memory returns a field of the memory of the process in bytes, such as VmRSS (proc_pid_status(5)).
func (p *Process) Memory(field string) int64 {
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID())))
	_, value, _ := strings.Cut(string(status), field+":")
	return must.Get(strconv.ParseInt(strings.Fields(value)[0], 10, 64)) << 10 // it is in KiB
}

// Postmaster returns the process id of the PostgreSQL with this data directory.
func Postmaster(data string) int {
	content := must.Get(os.ReadFile(filepath.Join(data, "postmaster.pid")))
	pid, _, _ := strings.Cut(string(content), "\n")
	return must.Get(strconv.Atoi(pid))
}

// FreeAddr returns an address of this machine that nothing listens on, each time another one, for a
// server that begins to listen some time later.
func FreeAddr(ctx context.Context) string {
	var config net.ListenConfig
	for range numberOfPorts {
		addr := fmt.Sprintf("127.0.0.1:%d", firstPort+(beginPort+triedPorts.Add(1))%numberOfPorts)
		if listener, err := config.Listen(ctx, "tcp", addr); err == nil {
			must.OK(listener.Close())
			return addr
		}
	}
	must.Hold(false, "no port between 30000 and 32767 is free")
	return ""
}

// The ports are below those that the system hands out.
const firstPort, numberOfPorts = 30_000, 2_768

// beginPort is the first port, and triedPorts the number of those that were tried.
var (
	beginPort  = rand.Int64N(numberOfPorts) //nolint:gosec // any port will do
	triedPorts atomic.Int64
)

// Serve starts an HTTP server on a free port, and returns its URL.
func Serve(ctx context.Context, handler http.Handler) (url string, stop func()) {
	var config net.ListenConfig
	listener := must.Get(config.Listen(ctx, "tcp", "127.0.0.1:0"))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // ends with Close
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }
}

// Exec runs statements in a session of their own. Only a single one may have arguments.
func Exec(ctx context.Context, databaseURL, statements string, args ...any) {
	conn := must.Get(pgx.Connect(ctx, databaseURL))
	_, err := conn.Exec(ctx, statements, args...)
	must.OK(errors.Join(err, conn.Close(ctx)))
}

// Scan reads a row in a session of its own.
func Scan(ctx context.Context, databaseURL, query string, args []any, into ...any) {
	conn := must.Get(pgx.Connect(ctx, databaseURL))
	must.OK(errors.Join(conn.QueryRow(ctx, query, args...).Scan(into...), conn.Close(ctx)))
}

// AddEvents is a statement that adds events to the feeds of accounts. Its arguments are the names of
// the accounts and the number of events of each.
const AddEvents = `
	WITH moved AS (
		UPDATE account_state
		SET last_sequence = last_sequence + $2::bigint, last_nonce = 1, last_event_at = statement_timestamp()
		WHERE account_id IN (SELECT id FROM accounts WHERE name = ANY ($1::text[]))
		RETURNING account_id, last_sequence - $2::bigint AS before
	)
	INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
	SELECT account_id, before + i, statement_timestamp(), 1, 'pet.updated', '/pets/' || i,
	       json_build_object('pet', json_build_object('id', i, 'name', 'Bella the Brave', 'categoryId', 1, 'status', 'available'))
	FROM moved, generate_series(1, $2::bigint) AS i`
