package postgres

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// A connection that was silent for heartbeatInterval gets a ping.
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
)

// errOtherServer means that notifications of the pool's server would not arrive.
var errOtherServer = errors.New("the connection leads to another server than those of the pool")

// Listener receives the notifications of one channel on its own connection. It
// reconnects if the connection is lost or leads to another server than the pool.
type Listener struct {
	DB      *DB // its server sends the notifications
	Channel string
	// Connected is called after each (re)connect. Earlier notifications may be
	// lost.
	Connected func()
	// Heard is called with the payload of each notification.
	Heard func(payload string)
	// Alive is called when no notification since Connected is lost: at once, and
	// then at least every [ListenSilence].
	Alive func()
	Log   *slog.Logger
}

// Run listens until ctx ends, and returns the error of ctx.
func (l *Listener) Run(ctx context.Context) error {
	delay, failures := reconnectDelay, 0
	for {
		connected, err := l.listen(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if connected {
			delay, failures = reconnectDelay, 0
			l.Log.Warn("lost the connection that listens for notifications", "channel", l.Channel, "error", err)
		} else if failures++; failures == 1 || failures%failuresPerLog == 0 {
			l.Log.Warn("cannot listen for notifications, trying again", "channel", l.Channel, "failures", failures, "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
		delay = min(2*delay, reconnectAtMost)
	}
}

// listen uses one connection until it fails. The result connected reports whether
// LISTEN succeeded.
func (l *Listener) listen(ctx context.Context) (connected bool, err error) {
	config := l.DB.outside.Copy()
	config.RuntimeParams["application_name"] = "petstore listen"
	connectCtx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(connectCtx, config)
	if err != nil {
		return false, err
	}
	defer func() {
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), heartbeatTimeout)
		defer cancel()
		_ = conn.Close(closeCtx) // the connection is no longer needed
	}()
	if !l.DB.leadsTo(ctx, serverOf(conn)) {
		return false, errOtherServer
	}
	if _, err := conn.Exec(connectCtx, "LISTEN "+pgx.Identifier{l.Channel}.Sanitize()); err != nil {
		return false, err
	}
	l.Connected()
	for {
		if !l.DB.leadsTo(ctx, serverOf(conn)) {
			return true, errOtherServer
		}
		l.Alive()
		if err := l.wait(ctx, conn); err != nil {
			return true, err
		}
	}
}

// wait handles one notification, or pings the server after a silence.
func (l *Listener) wait(ctx context.Context, conn *pgx.Conn) error {
	waitCtx, cancel := context.WithTimeout(ctx, heartbeatInterval)
	defer cancel()
	notification, err := conn.WaitForNotification(waitCtx)
	switch {
	case err == nil:
		l.Heard(notification.Payload)
		return nil
	case errors.Is(waitCtx.Err(), context.DeadlineExceeded) && ctx.Err() == nil && !conn.IsClosed():
		pingCtx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
		defer cancel()
		return conn.Ping(pingCtx)
	default:
		return err
	}
}
