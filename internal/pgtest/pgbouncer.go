package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/localpg"
	"petstore/internal/postgres"
)

const (
	pgBouncerPort         = "6432" // only names the socket file
	pgBouncerStartTimeout = 10 * time.Second
	pgBouncerLogTail      = 1000 // bytes

	// pgBouncerScript runs PgBouncer until its input ends, which is when the test process
	// does, and then removes the directory.
	pgBouncerScript = `"$1" "$2/pgbouncer.ini" 2>"$2/log" & read -r _; kill $!; rm -rf "$2"`

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
autodb_idle_timeout = 10
log_connections = 0
log_disconnections = 0
log_stats = 0
`
)

// pgBouncer starts a PgBouncer in front of the server, once in this process, and returns
// the directory of its socket. It gives the serving role the settings that it needs.
var pgBouncer = sync.OnceValues(func() (string, error) {
	s, err := migrated()
	if err != nil {
		return "", err
	}
	ctx := context.Background() // it outlives the first test
	if err := s.locked(ctx, func() error { return s.run(ctx, postgres.RoleSettings(s.servingRole())...) }); err != nil {
		return "", fmt.Errorf("setting up the role for PgBouncer: %w", err)
	}
	dir, err := startPgBouncer(ctx, s)
	if err != nil {
		return "", fmt.Errorf("starting PgBouncer: %w", err)
	}
	return dir, nil
})

// startPgBouncer starts PgBouncer in transaction mode with a socket only. It ends with
// this process. Only the serving role can connect, with its password.
func startPgBouncer(ctx context.Context, s *server) (dir string, err error) {
	program, err := findPgBouncer()
	if err != nil {
		return "", err
	}
	target, err := pgx.ParseConfig(s.url.String())
	if err != nil {
		return "", err
	}
	// in /tmp, because the path of a socket has at most 103 bytes
	if dir, err = os.MkdirTemp("/tmp", "petstore-pgbouncer-"); err != nil {
		return "", err
	}
	as, err := localpg.ServerUser("") // PgBouncer refuses root, too
	if err != nil {
		return "", err
	}
	for name, content := range map[string]string{
		"pgbouncer.ini": fmt.Sprintf(pgBouncerConfig, target.Host, target.Port, dir),
		"users":         fmt.Sprintf("%q %q\n", s.servingRole(), s.servingPassword()),
	} {
		if err := writeFor(as, filepath.Join(dir, name), content); err != nil {
			return "", err
		}
	}
	if as != nil {
		if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
			return "", err
		}
	}
	command := exec.CommandContext(ctx, "/bin/sh", "-c", pgBouncerScript, "sh", program, dir)
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: as}
	if _, err := command.StdinPipe(); err != nil {
		return "", err
	}
	if err := command.Start(); err != nil {
		return "", err
	}
	go func() { _ = command.Wait() }() // keeps the input open, which the garbage collector would close
	return dir, awaitPgBouncer(s, dir)
}

// findPgBouncer returns the program, which Debian installs outside the PATH of users.
func findPgBouncer() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("pgbouncer is not installed; install the package pgbouncer")
}

// writeFor writes a file that only the user can read.
func writeFor(as *syscall.Credential, path, content string) error {
	err := os.WriteFile(path, []byte(content), 0o600)
	if err == nil && as != nil {
		err = os.Chown(path, int(as.Uid), int(as.Gid))
	}
	return err
}

// awaitPgBouncer returns when PgBouncer accepts connections.
func awaitPgBouncer(s *server, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), pgBouncerStartTimeout)
	defer cancel()
	address := throughPgBouncer(dir, s.servingURL(s.databaseURL(strings.TrimPrefix(s.url.Path, "/"))))
	var refused error
	err := await(ctx, func() (bool, error) {
		var conn *pgx.Conn
		if conn, refused = pgx.Connect(ctx, address); conn == nil {
			return false, nil
		}
		return true, conn.Close(ctx)
	})
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		return fmt.Errorf("%w: %w; its log ends with\n%s", err, refused, log[max(0, len(log)-pgBouncerLogTail):])
	}
	return nil
}

// throughPgBouncer returns the URL of the same database and role through PgBouncer. The
// mode suits every version of PgBouncer.
func throughPgBouncer(dir, direct string) string {
	address, err := url.Parse(direct)
	if err != nil {
		panic(err) // our own URL
	}
	address.Host = ""
	address.RawQuery = url.Values{
		"host": {dir}, "port": {pgBouncerPort}, "sslmode": {"disable"}, "default_query_exec_mode": {"exec"},
	}.Encode()
	return address.String()
}
