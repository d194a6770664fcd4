package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/sleep"
)

const (
	// heartbeatInterval is the time between a proof of life and the next ping.
	heartbeatInterval = 300 * time.Millisecond
	// A connection that does not respond within heartbeatTimeout is dead.
	heartbeatTimeout = 300 * time.Millisecond
	// ListenSilence is the maximum time between two calls of Alive on a live
	// connection. After a longer time, notifications may be lost.
	ListenSilence = heartbeatInterval + heartbeatTimeout

	listenTimeout   = 5 * time.Second
	reconnectDelay  = 200 * time.Millisecond
	reconnectAtMost = 2 * time.Second

	// failuresPerLog is the number of consecutive failures per log line.
	failuresPerLog = 10

	// pooledDelay is the time between two attempts while a pooler is in between.
	pooledDelay = time.Minute
)

var (
	// errOtherServer means that notifications of the pool's database would not arrive.
	errOtherServer = errors.New("the connection leads to another server or database than the pool; if it stays so, correct PETSTORE_DIRECT_URL")
	// errPooled means that notifications may not arrive: LISTEN takes effect on the
	// server connection that a pooler lends for one transaction.
	errPooled = errors.New("the connection leads through a connection pooler; set PETSTORE_DIRECT_URL to a URL without one")
)

// Listener receives the notifications of one channel on its own connection. It
// reconnects if the connection is lost or leads to another server or database than the
// pool. It does not listen through a connection pooler.
type Listener struct {
	DB *DB // its server sends the notifications
	// URL is the libpq URL of the connection, which must be valid for [Open]. Empty
	// means the URL of DB.
	URL     string
	Channel string
	// Connected is called after each (re)connect. Earlier notifications may be
	// lost.
	Connected func()
	// Heard is called with the payload of each notification.
	Heard func(payload string)
	// Alive is called when no notification since Connected is lost: at once, and
	// then at least every [ListenSilence].
	Alive func()
	// Patience is the time after which a connection that does not respond is dead; 0: 300 ms.
	// [ListenSilence] does not hold with another one, which is for tests on slow machines.
	Patience time.Duration
	Log      *slog.Logger
}

// Run listens until ctx ends, and returns the error of ctx.
func (l *Listener) Run(ctx context.Context) error {
	delay, failures, wasPooled := reconnectDelay, 0, false
	for {
		connected, err := l.listen(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pooled := errors.Is(err, errPooled)
		if connected {
			delay, failures = reconnectDelay, 0
			l.Log.Warn("lost the connection that listens for notifications", "channel", l.Channel, "error", err)
		} else if failures++; failures == 1 || pooled && !wasPooled || failures%failuresPerLog == 0 && !pooled {
			l.Log.Warn("cannot listen for notifications, trying again", "channel", l.Channel, "failures", failures, "error", err)
		}
		if wasPooled = pooled; pooled {
			delay = pooledDelay
		}
		if !sleep.For(ctx, delay) {
			return ctx.Err()
		}
		delay = min(2*delay, reconnectAtMost)
	}
}

// listen uses one connection until it fails. The result connected reports whether
// LISTEN succeeded.
func (l *Listener) listen(ctx context.Context) (connected bool, err error) {
	connectCtx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	conn, err := l.connect(connectCtx)
	if err != nil {
		return false, err
	}
	defer hangUp(ctx, conn)
	if _, err := conn.Exec(connectCtx, "LISTEN "+pgx.Identifier{l.Channel}.Sanitize()); err != nil {
		return false, err
	}
	l.Connected()
	for {
		if err := l.prove(ctx, conn); err != nil {
			return true, err
		}
		if err := hear(ctx, conn); err != nil {
			return true, err
		}
	}
}

// connect opens a connection that leads to the server and database of the pool, without a pooler.
func (l *Listener) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := l.config()
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	var same bool
	if originOf(conn).pooled {
		err = errPooled
	} else if same, err = l.DB.leadsTo(ctx, originOf(conn).server); err == nil && !same {
		err = errOtherServer
	}
	if err != nil {
		hangUp(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// CheckDirect returns an error that tells the operator what to change if a [Listener] with the URL
// would hear no notifications. The role of the URL must be the role of the pool.
func (d *DB) CheckDirect(ctx context.Context, url string) error {
	var role, direct string
	if err := d.QueryRow(ctx, "SELECT current_user").Scan(&role); err != nil { // the pool then leads to a server
		return err
	}
	conn, err := (&Listener{DB: d, URL: url}).connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(ctx, conn)
	if err := conn.QueryRow(ctx, "SELECT current_user").Scan(&direct); err != nil {
		return err
	}
	if direct != role {
		return fmt.Errorf("the connection has the role %q instead of %q; correct the user in PETSTORE_DIRECT_URL", direct, role)
	}
	return nil
}

// config returns the configuration of the listening connection, which calls Heard.
func (l *Listener) config() (*pgx.ConnConfig, error) {
	config := l.DB.outsideConfig()
	if l.URL != "" {
		parsed, err := pgxpool.ParseConfig(l.URL)
		if err != nil {
			return nil, fmt.Errorf("postgres: %w", err)
		}
		config = parsed.ConnConfig
		boundSession(config)
	}
	config.RuntimeParams["application_name"] = "petstore listen"
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { l.Heard(n.Payload) }
	return config, nil
}

// prove calls Alive if the connection is alive and the pool leads to the same server.
// Both together take at most Patience. The response to the ping follows all
// earlier notifications, so they have been heard.
func (l *Listener) prove(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(l.Patience, heartbeatTimeout))
	defer cancel()
	if err := conn.Ping(ctx); err != nil {
		return err
	}
	same, err := l.DB.leadsTo(ctx, originOf(conn).server)
	switch {
	case err != nil:
		return nil // the pool is busy, so there is no proof this time
	case !same:
		return errOtherServer
	}
	l.Alive()
	return nil
}

// hear handles notifications for heartbeatInterval.
func hear(ctx context.Context, conn *pgx.Conn) error {
	within, cancel := context.WithTimeout(ctx, heartbeatInterval)
	defer cancel()
	for {
		err := conn.PgConn().WaitForNotification(within)
		switch {
		case err == nil: // the connection has called Heard
		case errors.Is(within.Err(), context.DeadlineExceeded) && ctx.Err() == nil && !conn.IsClosed():
			return nil
		default:
			return err
		}
	}
}
