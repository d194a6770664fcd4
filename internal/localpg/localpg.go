// Package localpg runs a private PostgreSQL from the machine's own binaries:
// one directory, one server, reached by a unix socket that only this user can
// open. It works as root too, where the server runs as postgres or nobody.
package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
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
	// superuser owns the cluster; the socket trusts whoever can open it.
	superuser = "postgres"
	// port only names the socket file: the server listens on no address.
	port = 5432
	// maxSocketPath is what sun_path holds on macOS; Linux has four bytes more.
	maxSocketPath = 103

	startTimeout     = time.Minute // crash recovery can take a while
	leftoverTimeout  = 10 * time.Second
	strangerTimeout  = 2 * time.Second // for a server that may be ending
	fastTimeout      = 10 * time.Second
	immediateTimeout = 5 * time.Second
	pollInterval     = 20 * time.Millisecond
)

// Options say what [Start] starts and where.
type Options struct {
	Binaries Binaries
	// Dir holds the cluster, its lock and the log of its server. It is made
	// when absent, with [DirMode], and the cluster in it too.
	Dir string
	// Disposable gives up every promise about crashes for speed: for tests.
	Disposable bool
	// Settings are server settings beside the ones that this package needs.
	Settings map[string]string
}

// Cluster is a running server and its data.
type Cluster struct {
	options  Options
	dir      string
	account  *account
	lock     *dirLock
	socket   string // the directory of the socket
	process  *os.Process
	stopping atomic.Bool
	cleanup  sync.Once
	done     chan struct{}
	err      error // written before done is closed
}

// DirMode is the mode of a directory above the data of a cluster, which nobody
// else can read. Under root the server runs as another user, which must get
// through it; it can list nothing there either.
func DirMode() os.FileMode {
	if os.Geteuid() == 0 {
		return 0o711
	}
	return 0o700
}

// InUseError says that another process has the directory.
type InUseError struct {
	Dir string
	PID int // of that process, 0 when unknown
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("another process uses the database in %s", e.Dir)
	}
	return fmt.Sprintf("another process (pid %d) uses the database in %s", e.PID, e.Dir)
}

// Start starts the cluster in a directory and returns once it answers; ctx
// bounds the start alone. What an earlier owner left when it was killed, a half
// made cluster, a stale pid file or a server still running, is cleared first.
// The error is an [*InUseError] when another process has the directory.
//
// The server dies with this process, however that ends. (Outside Linux it
// survives a kill -9, until the next Start.)
func Start(ctx context.Context, options Options) (_ *Cluster, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("localpg: %w", err)
	}
	if err := os.MkdirAll(dir, DirMode()); err != nil {
		return nil, fmt.Errorf("localpg: %w", err)
	}
	c := &Cluster{options: options, dir: dir}
	if c.lock, err = lockDir(dir); err != nil {
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
	if err := c.prepareData(ctx); err != nil {
		return nil, err
	}
	if err := c.endLeftover(ctx); err != nil {
		return nil, err
	}
	if err := c.makeSocketDir(); err != nil {
		return nil, err
	}
	if err := c.launch(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// URL is the libpq URL of a database of the cluster.
func (c *Cluster) URL(database string) string {
	query := url.Values{
		"host": {c.socket},
		// said because PGPORT and PGSSLMODE would count otherwise
		"port":    {strconv.Itoa(port)},
		"sslmode": {"disable"},
		"user":    {superuser},
	}
	// libpq takes a plus for a plus
	encoded := strings.ReplaceAll(query.Encode(), "+", "%20")
	return (&url.URL{Scheme: "postgres", Path: "/" + database, RawQuery: encoded}).String()
}

// EnsureDatabase makes a database unless it is there.
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
		return fmt.Errorf("localpg: making the database %s: %w", name, err)
	}
	return nil
}

// Done is closed when the server has ended, by [Cluster.Stop] or by itself.
func (c *Cluster) Done() <-chan struct{} { return c.done }

// Err says why the server ended by itself; it is nil after [Cluster.Stop] and
// while the server runs.
func (c *Cluster) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Stop ends the server: it breaks off open transactions and writes everything
// to disk, or not even that for a disposable cluster. A server that takes too
// long, or longer than ctx, is killed, which loses no committed data. The
// directory is free for another process afterwards.
func (c *Cluster) Stop(ctx context.Context) error {
	c.stopping.Store(true)
	defer c.release()
	steps := []struct {
		signal syscall.Signal
		wait   time.Duration
	}{
		{syscall.SIGINT, fastTimeout},
		{syscall.SIGQUIT, immediateTimeout},
	}
	if c.options.Disposable {
		steps = steps[1:]
	}
	for _, step := range steps {
		if c.endBy(ctx, step.signal, step.wait) {
			return nil
		}
	}
	if !c.endBy(context.WithoutCancel(ctx), syscall.SIGKILL, immediateTimeout) {
		return fmt.Errorf("localpg: postgres (pid %d) does not end", c.process.Pid)
	}
	return nil
}

// endBy signals the server and reports whether it ended within the wait.
func (c *Cluster) endBy(ctx context.Context, signal syscall.Signal, wait time.Duration) bool {
	if err := c.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case <-c.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// release gives the directory back, once.
func (c *Cluster) release() {
	c.cleanup.Do(func() {
		if c.socket != "" {
			removeSocketDir(c.socket)
			c.lock.forget()
		}
		c.lock.release()
	})
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

func (c *Cluster) logFile() string { return filepath.Join(c.dir, "postgres.log") }

// prepareData makes the cluster where there is none, and checks that the
// binaries fit the one that is there.
func (c *Cluster) prepareData(ctx context.Context) error {
	// nobody else makes clusters here, we have the lock; what cannot be removed
	// yet, because its initdb is only just dying, goes at a later start
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
	return nil
}

// initdb makes the cluster under another name first, so that one under its own
// name is always whole.
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
	path, err := c.account.reach(cmd, unfinished)
	if err != nil {
		return err
	}
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

// endLeftover deals with what postmaster.pid tells: a server that our killed
// predecessor started is ended, one that somebody else started is an
// [*InUseError]. A pid file without a server is left to postgres, which also
// looks at the shared memory it names.
func (c *Cluster) endLeftover(ctx context.Context) error {
	file := filepath.Join(c.data(), "postmaster.pid")
	pid := postmasterPID(file)
	if pid == 0 || !processExists(pid) {
		return nil
	}
	if !serves(pid, c.data()) {
		// the number belongs to another program by now, which would keep
		// postgres from starting
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("localpg: %w", err)
		}
		return nil
	}
	ours := pid == c.lock.previous.Server
	timeout := strangerTimeout
	if ours {
		timeout = leftoverTimeout
		// it may be ending already; an error shows below as one that stays
		_ = syscall.Kill(pid, syscall.SIGINT)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if waitUntil(ctx, func() bool { return !serves(pid, c.data()) }) {
		return nil
	}
	if !ours {
		return &InUseError{Dir: c.dir, PID: pid}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), immediateTimeout)
	defer cancel()
	if !waitUntil(ctx, func() bool { return !serves(pid, c.data()) }) {
		return &InUseError{Dir: c.dir, PID: pid}
	}
	return nil
}

// postmasterPID reads the first line of postmaster.pid, 0 when there is none.
func postmasterPID(file string) int {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid < 1 {
		return 0
	}
	return pid
}

// makeSocketDir makes a directory for the socket that only we and the server
// can enter: beside the data, or in a temporary directory where that path is
// too long or the server's user cannot get to it.
func (c *Cluster) makeSocketDir() error {
	// left by an owner that was killed
	if stale := c.lock.previous.Socket; stale != "" {
		removeSocketDir(stale)
	}
	var err error
	if beside := filepath.Join(c.dir, "socket"); socketFits(beside) && c.account.canEnter(c.dir) {
		removeSocketDir(beside)
		c.socket, err = beside, os.Mkdir(beside, 0o700)
	} else {
		parent := os.TempDir()
		if !socketFits(filepath.Join(parent, "petstore-0123456789")) || !c.account.canEnter(parent) {
			parent = "/tmp" // short, and open to every user
		}
		c.socket, err = os.MkdirTemp(parent, "petstore-")
	}
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	if err := c.lock.record(record{Socket: c.socket}); err != nil {
		return err
	}
	return c.account.own(c.socket)
}

// removeSocketDir removes a directory with a socket and nothing else: by now
// the name of a stale one may be another's.
func removeSocketDir(dir string) {
	socket := filepath.Join(dir, ".s.PGSQL."+strconv.Itoa(port))
	os.Remove(socket)
	os.Remove(socket + ".lock")
	os.Remove(dir)
}

func socketFits(dir string) bool {
	return len(dir)+len("/.s.PGSQL.5432.lock") <= maxSocketPath
}

// launch starts the server until it answers. Backends of a server that was
// killed can outlive it for a moment, in which postgres refuses to start.
func (c *Cluster) launch(ctx context.Context) error {
	deadline := time.Now().Add(leftoverTimeout)
	for {
		err := c.launchOnce(ctx)
		if err == nil || !strings.Contains(err.Error(), "pre-existing shared memory block") || time.Now().After(deadline) {
			return err
		}
		if !pause(ctx) {
			return err
		}
	}
}

func (c *Cluster) launchOnce(ctx context.Context) error {
	log, err := os.OpenFile(c.logFile(), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	defer log.Close()
	onDeath := syscall.SIGINT
	if c.options.Disposable {
		onDeath = syscall.SIGQUIT
	}
	// not ctx: it bounds the start, and the server lives on
	cmd := c.account.command(context.WithoutCancel(ctx), onDeath, filepath.Join(c.options.Binaries.Dir, "postgres"))
	path, err := c.account.reach(cmd, c.data())
	if err != nil {
		return err
	}
	cmd.Args = append(cmd.Args, "-D", path)
	settings := c.settings()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		cmd.Args = append(cmd.Args, "-c", name+"="+settings[name])
	}
	cmd.Stdout, cmd.Stderr = log, log
	ended, err := start(cmd)
	if err != nil {
		return fmt.Errorf("localpg: %w", err)
	}
	c.process = cmd.Process
	c.done, c.err = make(chan struct{}), nil
	go func() {
		err := <-ended
		if !c.stopping.Load() {
			c.err = fmt.Errorf("localpg: postgres ended by itself: %w", endError(err, c.logFile()))
		}
		close(c.done)
	}()
	err = c.lock.record(record{Server: c.process.Pid, Socket: c.socket})
	if err == nil {
		err = c.awaitReady(ctx)
	}
	if err != nil {
		c.endBy(context.WithoutCancel(ctx), syscall.SIGKILL, immediateTimeout)
	}
	return err
}

// settings are those that the package rests on, the speed of a disposable
// cluster, and the caller's.
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
	settings["port"] = strconv.Itoa(port)
	settings["unix_socket_directories"] = `"` + strings.ReplaceAll(c.socket, `"`, `""`) + `"`
	settings["unix_socket_permissions"] = "0700"
	return settings
}

// cannotConnectNow is the SQLSTATE of a server that starts or recovers.
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

// endError adds what the server said last to the way it ended.
func endError(err error, log string) error {
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%w: %s", err, lastLines(readLog(log)))
}

func readLog(file string) string {
	content, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// lastLines is the end of a program's output, for an error.
func lastLines(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// waitUntil polls a condition that nothing announces and reports whether it
// came true before ctx ended.
func waitUntil(ctx context.Context, condition func() bool) bool {
	for !condition() {
		if !pause(ctx) {
			return false
		}
	}
	return true
}

// pause waits for the next poll; false when ctx ended.
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

// processExists reports whether the number is a process, even one of another user.
func processExists(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
