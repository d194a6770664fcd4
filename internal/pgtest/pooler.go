package pgtest

import (
	"context"
	"crypto/rand"
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
	target, err := pgconn.ParseConfig(databaseURL)
	check(t, err)
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

// NewRole creates a role without privileges and settings, which the test drops at its
// end. It returns its name and the URL of the database for the role.
func (d *Database) NewRole(t testing.TB) (role, roleURL string) {
	t.Helper()
	address, err := url.Parse(d.OwnerURL)
	check(t, err)
	role = strings.TrimPrefix(address.Path, "/") // unique on the server
	password := rand.Text()
	_, err = d.Pool.Exec(t.Context(), "CREATE ROLE "+quote(role)+" LOGIN PASSWORD '"+password+"'")
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		if _, err := d.Pool.Exec(ctx, "DROP OWNED BY "+quote(role)+"; DROP ROLE "+quote(role)); err != nil {
			t.Error(err)
		}
	})
	query := address.Query()
	query.Del("user")
	query.Del("password")
	address.RawQuery = query.Encode()
	address.User = url.UserPassword(role, password)
	return role, address.String()
}

// pooled is a client of a Pooler.
type pooled struct {
	pooler *Pooler
	client *pgproto3.Backend

	mu      sync.Mutex
	server  *pgconn.HijackedConn // nil between transactions
	pending int                  // ReadyForQuery messages that the server still sends

	writing sync.Mutex // held while a message goes to the client
}

// serve handles one client until it disconnects.
func (p *Pooler) serve(conn net.Conn) {
	c := &pooled{pooler: p, client: pgproto3.NewBackend(conn, conn)}
	if err := c.start(conn); err != nil {
		return
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.server != nil {
			c.server.Conn.Close()
		}
	}()
	for {
		message, err := c.client.Receive()
		if _, over := message.(*pgproto3.Terminate); err != nil || over {
			return
		}
		if err := c.forward(conn, message); err != nil {
			return
		}
	}
}

// start responds to the startup message as PgBouncer does.
func (c *pooled) start(conn io.Writer) error {
	for {
		message, err := c.client.ReceiveStartupMessage()
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
					c.client.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
					return errors.Join(c.client.Flush(), errors.New("refused"))
				}
			}
			c.client.Send(&pgproto3.AuthenticationOk{})
			for name, value := range map[string]string{"client_encoding": "UTF8", "standard_conforming_strings": "on", "server_version": "15.0", "TimeZone": "UTC"} {
				c.client.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
			}
			c.client.Send(&pgproto3.BackendKeyData{ProcessID: poolerPID, SecretKey: []byte("none")})
			c.client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			return c.client.Flush()
		default:
			return errors.New("the pooler cancels nothing")
		}
	}
}

// forward sends a message of the client to the server, to which it connects before a
// transaction.
func (c *pooled) forward(client net.Conn, message pgproto3.FrontendMessage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		server, err := c.pooler.connect()
		if err != nil {
			return err
		}
		c.server = server
		go func() {
			if !c.reply(server) {
				client.Close()
			}
		}()
	}
	switch message.(type) {
	case *pgproto3.Sync, *pgproto3.Query:
		c.pending++
	}
	c.server.Frontend.Send(message)
	return c.server.Frontend.Flush()
}

// reply sends the server's messages to the client. It returns true when the transaction
// has ended, and false after an error.
func (c *pooled) reply(server *pgconn.HijackedConn) bool {
	defer server.Conn.Close()
	for {
		message, err := server.Frontend.Receive()
		if err != nil {
			return false
		}
		ready, ended := message.(*pgproto3.ReadyForQuery)
		if ended {
			c.mu.Lock()
			c.pending--
			if ended = c.pending == 0 && ready.TxStatus == 'I'; ended {
				c.server = nil // before the client can send the next statement
			}
			c.mu.Unlock()
		}
		c.writing.Lock() // the next transaction may begin before Flush returns
		c.client.Send(message)
		err = c.client.Flush()
		c.writing.Unlock()
		if err != nil {
			return false
		}
		if ended {
			return true
		}
	}
}
