package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

	"petstore/internal/localpg"
	"petstore/internal/sleep"
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
	cmd := exec.CommandContext(ctx, f.program.binary, args...)
	cmd.Env = append(environment(db.url(), "127.0.0.1:0", "127.0.0.1:0"), "PETSTORE_SERVING_ROLE="+f.grantee)
	return run.Output(cmd)
}

// newKey creates an API key.
func (f *fixture) newKey(ctx context.Context, db *database, account, scope string) string {
	return f.runCommand(ctx, db, "key", "create", "--account", account, "--scope", scope)
}

// serve starts the service on a free port, with more environment variables, and waits until
// it is ready.
func (f *fixture) serve(ctx context.Context, dbURL string, extra ...string) *service {
	s := f.run(ctx, "serve", dbURL, extra...)
	s.awaitReady(ctx, 10*time.Second)
	return s
}

// run starts a process of the program, with more environment variables.
func (f *fixture) run(ctx context.Context, command, dbURL string, extra ...string) *service {
	s := &service{fixture: f, command: command, binary: f.program.binary, dbURL: dbURL, extra: extra, addr: freeAddr(ctx), admin: freeAddr(ctx)}
	s.client = &client{base: "http://" + s.addr, key: f.key}
	s.start()
	f.cleanup(s.kill)
	return s
}

// freeAddr returns an address for a server.
func freeAddr(ctx context.Context) (addr string) {
	prepare(func() { addr = run.FreeAddr(ctx) })
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

// durable are the settings that crash safety depends on, which localpg turns off by default to start
// faster. A standby notices soon that it can follow another server.
var durable = map[string]string{"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "wal_retrieve_retry_interval": "200ms"}

// database is a PostgreSQL for one row, filled from the template. It can be killed, frozen
// and started again.
type database struct {
	*localpg.Cluster
	options localpg.Options
}

// startDatabase starts a copy of the template in dir, or in the folder of the row if dir is
// "".
func (f *fixture) startDatabase(ctx context.Context, dir string, settings map[string]string) *database {
	if dir == "" {
		dir = filepath.Join(f.dir, "pg")
	}
	must.OK(os.MkdirAll(dir, 0o711))
	if seed := filepath.Join(f.templateDir(), "pg", "data"); f.dir != f.templateDir() {
		prepare(func() { run.Program(ctx, "cp", "-a", seed, filepath.Join(dir, "data")) })
	}
	merged := maps.Clone(durable)
	maps.Copy(merged, settings)
	return f.startCluster(ctx, localpg.Options{Binaries: f.postgres, Dir: dir, Disposable: true, Settings: merged})
}

// startCluster starts a cluster, which ends with the row.
func (f *fixture) startCluster(ctx context.Context, options localpg.Options) *database {
	d := &database{options: options}
	prepare(func() { d.start(ctx) })
	f.cleanup(func() { _ = d.Stop(context.WithoutCancel(ctx)) }) // it ends with this process anyway
	return d
}

// start starts the cluster, or restarts it: it stops without a checkpoint.
func (d *database) start(ctx context.Context) {
	if d.Cluster != nil {
		must.OK(d.Stop(ctx))
	}
	d.Cluster = must.Get(localpg.Start(ctx, d.options))
}

func (d *database) url() string { return d.URL(databaseName) }

// urlOf returns the URL for another role than the superuser.
func (d *database) urlOf(role string) string {
	return strings.Replace(d.url(), "user=postgres", "user="+role, 1)
}

// processes returns the process ids of the server: the postmaster first, then its children.
func (d *database) processes() []int {
	all := []int{run.Postmaster(d.Data())}
	children := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", all[0])))
	for field := range strings.FieldsSeq(string(children)) {
		all = append(all, must.Get(strconv.Atoi(field)))
	}
	return all
}

// signal sends a signal to every process of the server. The postmaster is first, so that it
// starts no new ones.
func (d *database) signal(signal syscall.Signal) {
	for _, pid := range d.processes() {
		if err := syscall.Kill(pid, signal); !errors.Is(err, syscall.ESRCH) {
			must.OK(err)
		}
	}
}

// exec runs statements, of which only a single one may have arguments.
func (d *database) exec(ctx context.Context, sql string, arguments ...any) {
	run.Exec(ctx, d.url(), sql, arguments...)
}

// read reads one row.
func (d *database) read(ctx context.Context, sql string, arguments []any, into ...any) {
	run.Scan(ctx, d.url(), sql, arguments, into...)
}

// count reads a number.
func (d *database) count(ctx context.Context, sql string, arguments ...any) (count int) {
	d.read(ctx, sql, arguments, &count)
	return count
}

// holdLock runs a statement that takes a lock, and holds the lock until release.
func (d *database) holdLock(ctx context.Context, sql string) (release func()) {
	conn := must.Get(pgx.Connect(ctx, d.url()))
	release = func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	if _, err := conn.Exec(ctx, "BEGIN; "+sql); err != nil {
		release()
		must.OK(err)
	}
	return release
}

// restartEach restarts one instance after the other with SIGTERM and waits until each is
// ready.
func restartEach(ctx context.Context, instances [2]*service, rounds int) {
	const pause, readyWithin = 300 * time.Millisecond, 3 * time.Second
	for range rounds {
		for _, instance := range instances {
			sleep.For(ctx, pause)
			code := instance.process.Terminate(ctx)
			must.Hold(code == 0, "SIGTERM: exit code %d", code)
			instance.start()
			instance.awaitReady(ctx, readyWithin)
		}
	}
	sleep.For(ctx, pause)
}

// killInTurn kills processes by turns, and PostgreSQL once, and restarts them.
func (s *deployment) killInTurn(ctx context.Context, kills int, pause time.Duration, processes ...*service) {
	for kill := range kills {
		sleep.For(ctx, pause)
		process := processes[kill%len(processes)]
		process.kill()
		if kill == kills/2 {
			s.db.signal(syscall.SIGKILL)
			s.db.start(ctx)
		}
		process.restart(ctx)
	}
	sleep.For(ctx, pause)
}

// balancer spreads requests over two instances.
type balancer struct {
	instances [2]*service
	healthy   [2]atomic.Bool
	refused   atomic.Int64
}

// newBalancer starts a balancer that checks the health of the instances until stop is
// called.
func newBalancer(ctx context.Context, instances [2]*service) (b *balancer, stop func()) {
	const interval = 50 * time.Millisecond
	b = &balancer{instances: instances}
	ctx, cancel := context.WithCancel(ctx)
	wait := must.Background(func() {
		must.Parallel(len(instances), func(i int) {
			for ; ctx.Err() == nil; sleep.For(ctx, interval) {
				b.healthy[i].Store(must.Attempt(func() { instances[i].want(ctx, http.StatusOK, "GET", "/readyz", "") }) == nil)
			}
		})
	})
	return b, func() { cancel(); wait() }
}

// notConnected reports whether a connection was refused. The kernel resets it instead if
// the listener closes during the handshake, when nothing has been sent either.
func notConnected(err error) bool {
	dial, failed := errors.AsType[*net.OpError](err)
	return failed && dial.Op == "dial" && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET))
}

// send sends a request to an instance, to a healthy one if checked is true, and to the
// other one if the connection is refused.
func (b *balancer) send(checked bool, request func(*client) (response, error)) (response, error) {
	first := rand.N(len(b.instances))
	if checked && !b.healthy[first].Load() {
		first = 1 - first
	}
	resp, err := request(b.instances[first].client)
	if notConnected(err) {
		b.refused.Add(1)
		resp, err = request(b.instances[1-first].client)
	}
	return resp, err
}
