package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
	"petstore/internal/postgres"
	"petstore/internal/tools/must"
)

const (
	pgBouncerPort         = "6432" // only names the socket file
	pgBouncerStartTimeout = 10 * time.Second
	pgBouncerLogTail      = 1000 // bytes

	// pgBouncerScript runs PgBouncer until its input ends, which is when the test process
	// does, and then removes the directory. Debian installs it outside the PATH of users.
	pgBouncerScript = `PATH=$PATH:/usr/sbin; pgbouncer "$1/pgbouncer.ini" 2>"$1/log" & read -r _; kill $!; rm -rf "$1"`

	// pgBouncerConfig has the host and port of the server, and the directory. Server
	// connections end soon, so that the server notices when nobody uses it.
	pgBouncerConfig = `[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr =
listen_port = ` + pgBouncerPort + `
unix_socket_dir = %s
pool_mode = transaction
auth_type = scram-sha-256
auth_file = %[3]s/users
max_client_conn = 2000
default_pool_size = 20
server_idle_timeout = 2
server_login_retry = 1
log_connections = 0
log_disconnections = 0
log_stats = 0
`
)

// pgBouncer starts a PgBouncer in front of the server, once in this process, and returns
// the directory of its socket. It gives the serving role the settings that it needs.
var pgBouncer = sync.OnceValue(func() (dir string) {
	s := migrated()
	ctx := context.Background() // it outlives the first test
	must.Explain("setting up the role for PgBouncer", func() {
		s.locked(ctx, func() {
			for _, statement := range postgres.RoleSettings(s.servingRole()) {
				s.run(ctx, statement)
			}
		})
	})
	must.Explain("starting PgBouncer", func() { dir = startPgBouncer(ctx, s) })
	return dir
})

// startPgBouncer starts PgBouncer in transaction mode with a socket only. It ends with
// this process. Only the serving role can connect, with its password.
func startPgBouncer(ctx context.Context, s *server) (dir string) {
	target := must.Get(pgx.ParseConfig(s.url.String()))
	// in /tmp, because the path of a socket has at most 103 bytes
	dir = must.Get(os.MkdirTemp("/tmp", "petstore-pgbouncer-"))
	config, users := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users")
	must.OK(os.WriteFile(config, fmt.Appendf(nil, pgBouncerConfig, target.Host, target.Port, dir), 0o600))
	must.OK(os.WriteFile(users, fmt.Appendf(nil, "%q %q\n", s.servingRole(), s.servingPassword()), 0o600))
	as := must.Get(localpg.ServerUser("")) // PgBouncer refuses root, too
	for _, path := range []string{dir, config, users} {
		if as != nil {
			must.OK(os.Chown(path, int(as.Uid), int(as.Gid)))
		}
	}
	command := exec.CommandContext(ctx, "/bin/sh", "-c", pgBouncerScript, "sh", dir)
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: as}
	must.Get(command.StdinPipe())
	must.OK(command.Start())
	go func() { _ = command.Wait() }() // keeps the input open, which the garbage collector would close
	awaitPgBouncer(throughPgBouncer(dir, s.servingURL(s.url, target.Database)), filepath.Join(dir, "log"))
	return dir
}

// awaitPgBouncer returns when PgBouncer accepts connections.
func awaitPgBouncer(address, logFile string) {
	ctx, cancel := context.WithTimeout(context.Background(), pgBouncerStartTimeout)
	defer cancel()
	err := must.Attempt(func() {
		must.Await(ctx, pgBouncerStartTimeout, func() { must.OK(must.Get(pgx.Connect(ctx, address)).Close(ctx)) })
	})
	if err != nil {
		log, _ := os.ReadFile(logFile)
		must.OK(fmt.Errorf("%w; its log ends with\n%s", err, log[max(0, len(log)-pgBouncerLogTail):]))
	}
}

// throughPgBouncer returns the URL of the same database and role through PgBouncer. The
// mode suits every version of PgBouncer.
func throughPgBouncer(dir, direct string) string {
	address := must.Get(url.Parse(direct))
	address.Host = ""
	address.RawQuery = url.Values{
		"host": {dir}, "port": {pgBouncerPort}, "sslmode": {"disable"}, "default_query_exec_mode": {"exec"},
	}.Encode()
	return address.String()
}
