package pgtest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"petstore/internal/tools/must"
	"petstore/internal/tools/need"
	"petstore/internal/tools/run"
)

const (
	// poolerPID is the process id that a Pooler makes up, above the process ids of any system.
	poolerPID = 1 << 30
	// poolerTimeout limits a connection to the server.
	poolerTimeout = 10 * time.Second
)

// poolerParameters are the startup parameters that PgBouncer knows, and those that
// every client sends.
var poolerParameters = []string{
	"user", "database", "application_name", "client_encoding", "datestyle", "standard_conforming_strings", "timezone",
}

// Pooler is a connection pooler in transaction mode for tests that run without
// PgBouncer. Each transaction gets a new server connection, so nothing of a session
// survives. Like PgBouncer, it refuses startup parameters that it does not know.
type Pooler struct {
	URL string // libpq URL through the pooler

	mu     sync.Mutex
	target *pgconn.Config
}

// StartPooler starts a pooler in front of a database, until the test ends. It connects
// as the role of the URL and requires no password from its clients.
func StartPooler(t testing.TB, databaseURL string) *Pooler {
	t.Helper()
	p := &Pooler{}
	p.LeadTo(t, databaseURL)
	address := ServeTCP(t, p.serve)
	p.URL = (&url.URL{
		Scheme: "postgres", User: url.User(p.target.User), Host: address, Path: "/" + p.target.Database,
		RawQuery: "sslmode=disable",
	}).String()
	return p
}

// LeadTo makes the next transaction of every client run on another database.
func (p *Pooler) LeadTo(t testing.TB, databaseURL string) {
	t.Helper()
	target := need.Value(pgconn.ParseConfig(databaseURL))(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// connect opens a connection to the server.
func (p *Pooler) connect() (*pgconn.HijackedConn, error) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), poolerTimeout)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, target)
	if err != nil {
		return nil, err
	}
	return conn.Hijack()
}

// serve handles one client until it disconnects.
func (p *Pooler) serve(conn net.Conn) {
	client := pgproto3.NewBackend(conn, conn)
	err := greet(client, conn)
	for err == nil {
		err = p.transact(client)
	}
}

// greet responds to the startup message as PgBouncer does.
func greet(client *pgproto3.Backend, conn io.Writer) error {
	for {
		message, err := client.ReceiveStartupMessage()
		if err != nil {
			return err
		}
		switch message := message.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := conn.Write([]byte("N")); err != nil {
				return err
			}
		case *pgproto3.StartupMessage:
			for name := range message.Parameters {
				if !slices.Contains(poolerParameters, strings.ToLower(name)) {
					client.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
					return errors.Join(client.Flush(), errors.New("refused"))
				}
			}
			client.Send(&pgproto3.AuthenticationOk{})
			for name, value := range map[string]string{"client_encoding": "UTF8", "standard_conforming_strings": "on", "server_version": "15.0", "TimeZone": "UTC"} {
				client.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
			}
			client.Send(&pgproto3.BackendKeyData{ProcessID: poolerPID, SecretKey: []byte("none")})
			client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			return client.Flush()
		default:
			return errors.New("the pooler cancels nothing")
		}
	}
}

// transact runs one transaction of a client on a connection to the server of its own.
func (p *Pooler) transact(client *pgproto3.Backend) error {
	message, err := client.Receive()
	if _, over := message.(*pgproto3.Terminate); err != nil || over {
		return cmp.Or(err, io.EOF)
	}
	server, err := p.connect()
	if err != nil {
		return err
	}
	defer server.Conn.Close()
	for ; err == nil; message, err = client.Receive() {
		server.Frontend.Send(message)
		switch message.(type) {
		case *pgproto3.Query, *pgproto3.Sync, *pgproto3.CopyDone, *pgproto3.CopyFail:
			if ended, err := respond(client, server.Frontend); ended || err != nil {
				return err
			}
		}
	}
	return err
}

// respond sends messages of the server to the client, up to the one after which the server waits
// for the client. It reports whether the transaction has ended.
func respond(client *pgproto3.Backend, server *pgproto3.Frontend) (ended bool, err error) {
	_ = server.Flush() // after an error there may be a last message
	for {
		message, err := server.Receive()
		if err != nil {
			return false, errors.Join(err, client.Flush())
		}
		client.Send(message)
		switch message := message.(type) {
		case *pgproto3.ReadyForQuery:
			return message.TxStatus == 'I', client.Flush()
		case *pgproto3.CopyInResponse:
			return false, client.Flush()
		}
	}
}

// ServeTCP listens on this machine until the test ends, handles every connection with
// handle and closes it. It returns the address.
func ServeTCP(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	listener := need.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// Through returns the URL of a database through a proxy, until the test ends. The proxy handles every connection
// of a client with handle and closes it.
func Through(t testing.TB, databaseURL string, handle func(client net.Conn)) string {
	t.Helper()
	config := need.Value(pgconn.ParseConfig(databaseURL))(t)
	query := need.Value(url.Parse(databaseURL))(t).Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable")
	address := &url.URL{Scheme: "postgres", Host: ServeTCP(t, handle), Path: "/" + config.Database, RawQuery: query.Encode()}
	return withRole(address, config.User, config.Password)
}

// FreePort returns a port of this machine that nothing listens on.
func FreePort(t testing.TB) string {
	t.Helper()
	var address string
	need.OK(t, must.Attempt(func() { address = run.FreeAddr(t.Context()) }))
	return strings.TrimPrefix(address, "127.0.0.1:")
}
