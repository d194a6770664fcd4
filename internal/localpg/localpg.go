// Package localpg runs a private PostgreSQL from server binaries: one directory,
// one server, and a Unix socket that only this user can open. As root, it runs the
// server as the user postgres or nobody, because PostgreSQL refuses to run as root.
package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// superuser owns the cluster. The server trusts everybody who can open its socket.
	superuser = "postgres"
	// port only names the socket file: the server listens on no address.
	port = "5432"
	// maxSocketPath is the size of sun_path on macOS; Linux has four bytes more.
	maxSocketPath = 103

	startTimeout = time.Minute // crash recovery can take long
	stopTimeout  = 10 * time.Second
	pollInterval = 20 * time.Millisecond
)

// Options tell [Start] which server to start and where.
type Options struct {
	Binaries Binaries
	// Dir holds the cluster, its lock and the log of its server. [Start] creates
	// the directory and the cluster if they do not exist.
	Dir string
	// Disposable trades the safety of the data for speed: for tests.
	Disposable bool
	// Detached keeps the server running when this process ends. The server
	// deletes its data when it ends. Implies Disposable.
	Detached bool
	// Settings are additional server settings.
	Settings map[string]string
}

// Cluster is a running server and its data.
type Cluster struct {
	options  Options
	dir      string
	account  *account
	lock     *os.File
	socket   string // the directory of the socket
	process  *os.Process
	stopping atomic.Bool
	done     chan struct{}
	err      error // written before done is closed
	cleanup  sync.Once
}

// DirMode is the mode of a directory that contains a cluster. Nobody else can
// read it. Under root, the server's user must be able to pass through it.
func DirMode() os.FileMode {
	if os.Geteuid() == 0 {
		return 0o711
	}
	return 0o700
}

// InUseError says that another process uses the directory.
type InUseError struct {
	Dir string
	PID int // of that process, 0 if unknown
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("another process uses the database in %s", e.Dir)
	}
	return fmt.Sprintf("another process (pid %d) uses the database in %s", e.PID, e.Dir)
}

// Start starts the cluster of a directory and returns when it accepts connections.
// The context limits the start only. Start first clears away what a killed owner
// left: an unfinished cluster, a stale pid file, a running server. The error is an
// [*InUseError] if another process uses the directory.
//
// Unless it is detached, the server ends when this process ends for any reason.
// (Outside Linux it survives a kill -9 until the next Start.)
func Start(ctx context.Context, options Options) (_ *Cluster, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	options.Disposable = options.Disposable || options.Detached
	dir, err := filepath.Abs(options.Dir)
	if err == nil {
		err = os.MkdirAll(dir, DirMode())
	}
	if err != nil {
		return nil, fmt.Errorf("localpg: %w", err)
	}
	c := &Cluster{options: options, dir: dir}
	if c.lock, err = lockDir(ctx, dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	if c.account, err = serverAccount(c.data()); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{c.prepareData, c.makeSocketDir, c.launch} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// URL returns the libpq URL of a database of the cluster.
func (c *Cluster) URL(database string) string {
	query := url.Values{
		"host": {c.socket},
		// explicit, because PGPORT and PGSSLMODE would apply otherwise
		"port":    {port},
		"sslmode": {"disable"},
		"user":    {superuser},
	}
	// libpq does not decode a plus
	encoded := strings.ReplaceAll(query.Encode(), "+", "%20")
	return (&url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: encoded}).String()
}

// EnsureDatabase creates a database if it does not exist.
func (c *Cluster) EnsureDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists)
	if err == nil && !exists {
		_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	}
	if err != nil {
		return fmt.Errorf("localpg: create the database %s: %w", name, err)
	}
	return nil
}

// Done is closed when the server has ended, by [Cluster.Stop] or by itself.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Err returns why the server ended by itself. It returns nil after [Cluster.Stop]
// and while the server runs.
func (c *Cluster) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Stop ends the server. The server aborts open transactions and, unless it is
// disposable, writes everything to disk. Stop kills a server that takes longer
// than ctx allows, which loses no committed data. The directory is free for
// another process afterwards.
func (c *Cluster) Stop(ctx context.Context) error {
	c.stopping.Store(true)
	defer c.release()
	signal := syscall.SIGINT
	if c.options.Disposable {
		signal = syscall.SIGQUIT
	}
	if c.endBy(ctx, signal) || c.endBy(context.WithoutCancel(ctx), syscall.SIGKILL) {
		return nil
	}
	return fmt.Errorf("localpg: postgres (pid %d) does not end", c.process.Pid)
}

// endBy signals the server and reports whether it ended in time.
func (c *Cluster) endBy(ctx context.Context, signal syscall.Signal) bool {
	if err := c.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// release gives up the directory, once.
func (c *Cluster) release() {
	c.cleanup.Do(func() {
		if c.socket != "" {
			os.RemoveAll(c.socket)
		}
		_ = c.lock.Truncate(0) // we are not the owner any more
		c.lock.Close()
	})
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

func (c *Cluster) logFile() string { return filepath.Join(c.dir, "postgres.log") }

// prepareData creates the cluster if there is none, or else checks that these
// binaries can open it.
func (c *Cluster) prepareData(ctx context.Context) error {
	// We hold the lock, so no other process makes a cluster here. A later start
	// removes what an initdb that is still dying keeps here.
	if abandoned, err := filepath.Glob(c.data() + ".new-*"); err == nil {
		for _, path := range abandoned {
			os.RemoveAll(path)
		}
	}
	version, err := os.ReadFile(filepath.Join(c.data(), "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return c.initdb(ctx)
	}
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	if major := strings.TrimSpace(string(version)); major != strconv.Itoa(c.options.Binaries.Major) {
		return fmt.Errorf("localpg: the database in %s was made by PostgreSQL %s, and %s cannot open it: "+
			"use the binaries of PostgreSQL %s, or move the directory away to begin anew",
			c.dir, major, c.options.Binaries, major)
	}
	pid := readPID(pidFile(c.dir))
	if pid > 0 && serves(pid, c.data()) { // somebody started it without our lock
		return &InUseError{Dir: c.dir, PID: pid}
	}
	// postgres refuses to start if another program has the number by now
	if err := os.Remove(pidFile(c.dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("localpg: %w", err)
	}
	return nil
}

// initdb makes the cluster under another name and renames it, so that a cluster
// under its own name is always complete.
func (c *Cluster) initdb(ctx context.Context) error {
	unfinished, err := os.MkdirTemp(c.dir, "data.new-")
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	defer os.RemoveAll(unfinished)
	if err := c.account.own(unfinished); err != nil {
		return err
	}
	cmd := c.account.command(ctx, syscall.SIGKILL, filepath.Join(c.options.Binaries.Dir, "initdb"))
	path, closeDir, err := c.account.reach(cmd, unfinished)
	if err != nil {
		return err
	}
	defer closeDir()
	cmd.Args = append(cmd.Args, "--pgdata="+path, "--username="+superuser, "--auth=trust", "--encoding=UTF8", "--locale=C")
	if c.options.Disposable {
		cmd.Args = append(cmd.Args, "--no-sync")
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	ended, err := start(cmd)
	if err != nil {
		return fmt.Errorf("localpg: initdb: %w", err)
	}
	if err := <-ended; err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("localpg: initdb: %w: %s", err, lastLines(output.String()))
	}
	if err := os.Rename(unfinished, c.data()); err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	return nil
}

// makeSocketDir makes a directory for the socket that only the server's user can
// enter. It is next to the data, so that a restart keeps the URL. If that path is too
// long for a socket or closed to the server's user, it is a new directory in /tmp.
func (c *Cluster) makeSocketDir(context.Context) error {
	var err error
	beside := filepath.Join(c.dir, "socket")
	if len(beside)+len("/.s.PGSQL.5432.lock") <= maxSocketPath && c.account.canEnter(c.dir) {
		os.RemoveAll(beside) // of a killed owner
		c.socket, err = beside, os.Mkdir(beside, 0o700)
	} else {
		c.socket, err = os.MkdirTemp("/tmp", "petstore-")
	}
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	return c.account.own(c.socket)
}

// launch starts the server and returns when it accepts connections.
func (c *Cluster) launch(ctx context.Context) error {
	log, err := os.OpenFile(c.logFile(), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	defer log.Close()
	cmd, closeDir, err := c.serverCommand(ctx)
	if err != nil {
		return err
	}
	defer closeDir()
	cmd.Stdout, cmd.Stderr = log, log
	ended, err := start(cmd)
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	c.process, c.done = cmd.Process, make(chan struct{})
	go func() {
		err := <-ended
		if !c.stopping.Load() {
			c.err = fmt.Errorf("localpg: postgres ended by itself: %w", endError(err, c.logFile()))
		}
		close(c.done)
	}()
	if err := c.awaitReady(ctx); err != nil {
		_ = cmd.Cancel() // kills its process group
		<-c.done
		return err
	}
	return nil
}

// serverCommand returns the command that runs the server, and a function to call
// after its start.
func (c *Cluster) serverCommand(ctx context.Context) (*exec.Cmd, func(), error) {
	onDeath := syscall.SIGINT
	if c.options.Disposable {
		onDeath = syscall.SIGQUIT
	}
	// without ctx, which limits the start only
	cmd := c.account.command(context.WithoutCancel(ctx), onDeath, filepath.Join(c.options.Binaries.Dir, "postgres"))
	path, closeDir, err := c.account.reach(cmd, c.data())
	if err != nil {
		return nil, nil, err
	}
	cmd.Args = append(cmd.Args, "-D", path)
	settings := c.settings()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		cmd.Args = append(cmd.Args, "-c", name+"="+settings[name])
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, c.lock)
	if c.options.Detached {
		cmd.Args = append([]string{"sh", "-c", `"$@"; rm -rf "$0"/* "$SOCKET"`, path, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		cmd.Env = append(cmd.Env, "SOCKET="+c.socket)
		// a session of its own, without a signal when we end
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: cmd.SysProcAttr.Credential}
	}
	return cmd, closeDir, nil
}

// settings returns the settings that this package needs, those that make a
// disposable cluster fast, and the caller's.
func (c *Cluster) settings() map[string]string {
	settings := map[string]string{}
	if c.options.Disposable {
		settings["fsync"] = "off"
		settings["synchronous_commit"] = "off"
		settings["full_page_writes"] = "off"
		settings["shared_buffers"] = "64MB"
	}
	maps.Copy(settings, c.options.Settings)
	settings["listen_addresses"] = ""
	settings["port"] = port
	settings["unix_socket_directories"] = `"` + strings.ReplaceAll(c.socket, `"`, `""`) + `"`
	settings["unix_socket_permissions"] = "0700"
	return settings
}

// cannotConnectNow is the SQLSTATE of a server that starts, recovers or shuts down.
const cannotConnectNow = "57P03"

// awaitReady returns when a connection works.
func (c *Cluster) awaitReady(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, c.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code != cannotConnectNow {
			return fmt.Errorf("localpg: %w", err)
		}
		select {
		case <-c.done:
			return c.err
		default:
		}
		if !pause(ctx) {
			return fmt.Errorf("localpg: postgres is not ready: %w: %w", context.Cause(ctx), err)
		}
	}
}

// endError adds the last lines of the server's log to the error of its process.
func endError(err error, log string) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	content, readErr := os.ReadFile(log)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	return fmt.Errorf("%w: %s", err, lastLines(string(content)))
}

// lastLines returns the last five lines of a program's output.
func lastLines(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// pause waits for the next poll. It returns false if ctx ended.
func pause(ctx context.Context) bool {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
