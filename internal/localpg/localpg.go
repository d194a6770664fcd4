// Package localpg runs a private PostgreSQL from server binaries: one directory,
// one server, and a Unix socket that only this user can open. As root, it runs the
// server as the user postgres or nobody, because PostgreSQL refuses to run as root.
package localpg

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/sleep"
)

const (
	superuser = "postgres"
	port      = "5432" // only names the socket file: the server listens on no address

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
	// Detached keeps the server running when this process ends, until the next
	// [Start] replaces it. The server begins without data and deletes its data when
	// it ends. Implies Disposable.
	Detached bool
	// Settings are additional server settings.
	Settings map[string]string
	// Copy makes the data of a new cluster in a folder, which is not there yet; nil: initdb does.
	// Start calls end when the server accepts connections, or does not start.
	Copy func(ctx context.Context, dir string) (end func(context.Context), err error)
}

// Cluster is a running server and its data.
type Cluster struct {
	options  Options
	user     *syscall.Credential // of the server; nil is our own user
	lock     *os.File
	socket   string // the directory of the socket
	process  *os.Process
	endCopy  func(context.Context) // see [Options.Copy]
	stopping atomic.Bool
	done     chan struct{}
	err      error // written before done is closed
}

// DirMode is the mode of a directory that contains a cluster. Nobody else can
// read it. Under root, the server's user must be able to pass through it.
func DirMode() os.FileMode {
	if os.Geteuid() == 0 {
		return 0o711
	}
	return 0o700
}

// Start starts the cluster of a directory and returns when it accepts connections.
// The context limits the start only. Start first clears away what a killed owner
// left: an unfinished cluster, a stale pid file, a running server. The error is an
// [*InUseError] if another process uses the directory.
//
// Unless it is detached, the server ends when this process ends for any reason.
// (Outside Linux it survives a kill -9 until the next Start.)
func Start(ctx context.Context, options Options) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	options.Disposable = options.Disposable || options.Detached
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, err
	}
	options.Dir = dir
	if err := os.MkdirAll(dir, DirMode()); err != nil {
		return nil, err
	}
	lock, err := lockDir(ctx, dir, options.Detached)
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: options, lock: lock, socket: socketOf(lock), endCopy: func(context.Context) {}, done: make(chan struct{})}
	defer func() { c.endCopy(context.WithoutCancel(ctx)) }()
	for _, step := range []func(context.Context) error{c.prepareData, c.makeSocketDir, c.launch} {
		if err := step(ctx); err != nil {
			c.release()
			return nil, err
		}
	}
	if err := c.awaitReady(ctx); err != nil {
		c.endBy(context.WithoutCancel(ctx), syscall.SIGKILL)
		return nil, err
	}
	return c, nil
}

// socketOf returns the directory of the socket of a cluster. It is in /tmp, because the path of a
// socket has at most 103 bytes. It is the same after a restart, and moves with the lock: another
// folder may have the path of the cluster while its server runs.
func socketOf(lock *os.File) string {
	name := lock.Name()
	if info, err := lock.Stat(); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			name = fmt.Sprint(stat.Dev, stat.Ino)
		}
	}
	return fmt.Sprintf("/tmp/petstore-%.6x", sha256.Sum256([]byte(name)))
}

// URL returns the libpq URL of a database of the cluster.
func (c *Cluster) URL(database string) string {
	// Variables such as PGPORT and PGCHANNELBINDING would apply otherwise. The clients of PostgreSQL 15 reject
	// require_auth and sslcertmode, so [Cluster.awaitReady] reports their variables.
	query := url.Values{
		"host": {c.socket}, "port": {port}, "user": {superuser},
		"sslmode": {"disable"}, "channel_binding": {"disable"}, "target_session_attrs": {"any"}, "options": {""},
	}
	return (&url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: query.Encode()}).String()
}

// Options returns the options of the cluster.
func (c *Cluster) Options() Options { return c.options }

// EnsureDatabase creates a database if it does not exist.
func (c *Cluster) EnsureDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists)
	if err == nil && !exists {
		_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	}
	return err
}

// Done is closed when the server has ended, by [Cluster.Stop] or by itself.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Err waits until the server has ended. It returns the cause, or nil after
// [Cluster.Stop].
func (c *Cluster) Err() error {
	<-c.done
	return c.err
}

// Stop ends the server. The server aborts open transactions and, unless it is
// disposable, writes everything to disk. Stop kills a server that takes longer
// than ctx allows, which loses no committed data. The directory is free for
// another process afterwards.
func (c *Cluster) Stop(ctx context.Context) error {
	c.stopping.Store(true)
	if c.endBy(ctx, c.stopSignal()) || c.endBy(context.WithoutCancel(ctx), syscall.SIGKILL) {
		return nil
	}
	return fmt.Errorf("postgres (pid %d) does not end; kill it", c.process.Pid)
}

// endBy signals the server and reports whether it ended in time.
func (c *Cluster) endBy(ctx context.Context, signal syscall.Signal) bool {
	if c.process.Signal(syscall.Signal(0)) == nil { // it has not ended
		_ = syscall.Kill(-c.process.Pid, signal) // its group: a detached server runs in a shell
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

func (c *Cluster) stopSignal() syscall.Signal {
	if c.options.Disposable {
		return syscall.SIGQUIT
	}
	return syscall.SIGINT
}

// release gives up the directory.
func (c *Cluster) release() {
	os.RemoveAll(c.socket)
	_ = c.lock.Truncate(0) // a backend may still hold the lock, but we are not the owner
	c.lock.Close()
}

// Data returns the directory of the data.
func (c *Cluster) Data() string { return filepath.Join(c.options.Dir, "data") }

func (c *Cluster) logFile() string { return filepath.Join(c.options.Dir, "postgres.log") }

// prepareData creates the cluster if there is none, or else checks that these
// binaries can open it. The caller holds the lock, so no other server or initdb of
// this directory runs.
func (c *Cluster) prepareData(ctx context.Context) error {
	if c.options.Detached {
		if err := os.RemoveAll(c.Data()); err != nil {
			return err
		}
	}
	var err error
	if c.user, err = ServerUser(c.Data()); err != nil {
		return err
	}
	version, err := os.ReadFile(filepath.Join(c.Data(), "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return c.makeData(ctx)
	}
	if err != nil {
		return err
	}
	if major := strings.TrimSpace(string(version)); major != strconv.Itoa(c.options.Binaries.Major) {
		return fmt.Errorf("the database in %s was made by PostgreSQL %s, and %s cannot open it: "+
			"set PETSTORE_PG_BIN to the folder with initdb and postgres of PostgreSQL %s, or move the directory away to start with a new one",
			c.options.Dir, major, c.options.Binaries, major)
	}
	// postgres does not start if another program has this process id now
	if err := os.Remove(pidFile(c.options.Dir)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// makeData makes the cluster under another name and renames it, so that a cluster
// under its own name is always complete.
func (c *Cluster) makeData(ctx context.Context) error {
	unfinished, fill := c.Data()+".new", c.initdb
	if c.options.Copy != nil {
		fill = c.copy
	}
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := fill(ctx, unfinished); err != nil {
		return err
	}
	return os.Rename(unfinished, c.Data())
}

// initdb makes a cluster in a folder, which is not there yet.
func (c *Cluster) initdb(ctx context.Context, dir string) error {
	if err := c.makeDir(dir); err != nil {
		return err
	}
	args := []string{"--username=" + superuser, "--auth=trust", "--encoding=UTF8", "--locale=C"}
	if c.options.Disposable {
		args = append(args, "--no-sync")
	}
	cmd, closeDir, err := c.command(ctx, "initdb", dir, args...)
	if err != nil {
		return err
	}
	defer closeDir()
	runtime.LockOSThread() // see run
	defer runtime.UnlockOSThread()
	signalOnDeath(cmd.SysProcAttr, syscall.SIGKILL)
	if output, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("initdb: %w: %s", err, lastLines(string(output)))
	}
	return nil
}

// copy makes a cluster in a folder as its options say. All of it then belongs to the server's user.
func (c *Cluster) copy(ctx context.Context, dir string) error {
	end, err := c.options.Copy(ctx, dir)
	if err != nil {
		return err
	}
	c.endCopy = end
	if c.user == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(c.user.Uid), int(c.user.Gid))
	})
}

// makeSocketDir makes a directory for the socket that only the server's user can enter.
func (c *Cluster) makeSocketDir(context.Context) error {
	err := os.RemoveAll(c.socket) // of a killed owner
	if err == nil {
		err = c.makeDir(c.socket)
	}
	if err != nil {
		return fmt.Errorf("the socket needs the directory %s: %w; have its owner delete it", c.socket, err)
	}
	return nil
}

// makeDir makes a directory that belongs to the server's user.
func (c *Cluster) makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err == nil && c.user != nil {
		err = os.Chown(dir, int(c.user.Uid), int(c.user.Gid))
	}
	return err
}

// command returns a command that runs a program of the server on a directory, and a
// function to call after its start. It inherits the lock.
func (c *Cluster) command(ctx context.Context, program, dir string, args ...string) (*exec.Cmd, func(), error) {
	cmd := serverCommand(ctx, c.user, filepath.Join(c.options.Binaries.Dir, program))
	cmd.ExtraFiles = []*os.File{c.lock}
	closeDir := func() {}
	if c.user != nil && runtime.GOOS == "linux" {
		// Root's directories are often closed to other users. The path of an open
		// file that the server inherits does not lead through its parents.
		file, err := os.Open(dir)
		if err != nil {
			return nil, nil, err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, file)
		dir, closeDir = "/proc/self/fd/4", func() { file.Close() }
	}
	cmd.Args = append(append(cmd.Args, "-D", dir), args...)
	return cmd, closeDir, nil
}

// launch starts the server.
func (c *Cluster) launch(ctx context.Context) error {
	log, err := os.OpenFile(c.logFile(), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// without ctx, which limits the start only
	cmd, closeDir, err := c.command(context.WithoutCancel(ctx), "postgres", c.Data(), c.settings()...)
	if err != nil {
		return err
	}
	defer closeDir()
	cmd.Stdout, cmd.Stderr = log, log
	if c.options.Detached {
		// the directory of the data follows -D
		script := `socket=$0; trap : INT QUIT; "$@"; rm -rf "$3"/* "$socket"`
		cmd.Args = append([]string{"sh", "-c", script, c.socket, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Setsid = false, true
	} else {
		signalOnDeath(cmd.SysProcAttr, c.stopSignal())
	}
	started := make(chan error)
	go c.run(cmd, started)
	return <-started
}

// run runs the server until it ends, and sends the error of its start.
func (c *Cluster) run(cmd *exec.Cmd, started chan<- error) {
	// the signal on death comes when the thread that forked ends, not the process
	// (golang/go#27505)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	c.process = cmd.Process
	started <- err
	if err != nil {
		return
	}
	_ = cmd.Wait() // cmd.ProcessState has more information
	if !c.stopping.Load() {
		log, _ := os.ReadFile(c.logFile())
		c.err = fmt.Errorf("postgres ended by itself: %s: %s", cmd.ProcessState, lastLines(string(log)))
	}
	c.release()
	close(c.done)
}

// settings returns arguments with the settings that make a disposable cluster fast,
// the caller's, and those that this package needs.
func (c *Cluster) settings() (args []string) {
	if c.options.Disposable {
		args = append(args, "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off", "-c", "shared_buffers=64MB",
			"-c", "shared_preload_libraries=plpgsql") // else each session loads it for its first function
	}
	for name, value := range c.options.Settings {
		args = append(args, "-c", name+"="+value)
	}
	return append(args, "-c", "listen_addresses=", "-c", "port="+port, "-c", "unix_socket_directories="+c.socket)
}

// awaitReady returns when a connection works.
func (c *Cluster) awaitReady(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, c.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-c.done:
			return c.err
		default:
		}
		if ctx.Err() == nil && !isStarting(err) {
			return fmt.Errorf("no connection to postgres is possible: %w; if a variable such as PGSERVICE is for another server, unset it", err)
		}
		if !sleep.For(ctx, pollInterval) {
			return fmt.Errorf("postgres is not ready: %w: %w", context.Cause(ctx), err)
		}
	}
}

// isStarting reports whether a connection failed because the server starts or ends: it has no socket, is slow,
// closes the connection, or says so (cannot_connect_now).
func isStarting(err error) bool {
	_, isSocket := errors.AsType[syscall.Errno](err)
	refused, isSQL := errors.AsType[*pgconn.PgError](err)
	return isSocket || pgconn.Timeout(err) || errors.Is(err, io.ErrUnexpectedEOF) || isSQL && refused.Code == "57P03"
}

// lastLines returns the last five lines of a program's output.
func lastLines(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
