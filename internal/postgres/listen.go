package postgres

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// A connection that has been silent this long is asked whether it lives.
	heartbeatInterval = 300 * time.Millisecond
	// One that does not answer in this time does not live.
	heartbeatTimeout = 300 * time.Millisecond
	// ListenSilence is the longest time between two signs of life of a
	// connection; after a longer one, notifications may be going unheard.
	ListenSilence = heartbeatInterval + heartbeatTimeout

	listenTimeout   = 5 * time.Second
	reconnectDelay  = 200 * time.Millisecond
	reconnectAtMost = 2 * time.Second

	// failuresPerLog is how many failures in a row make another line in the log.
	failuresPerLog = 10
)

// errOtherServer says that a notification of the pool's server would not be heard.
var errOtherServer = errors.New("the connection leads to another server than those of the pool")

// Listener hears the notifications of one channel on a connection of its own,
// which it makes again when it is lost, or leads to another server than the pool.
type Listener struct {
	DB      *DB // whose server it listens to
	Channel string
	// Connected is called when the connection was made or made again: what was
	// announced before has not been heard.
	Connected func()
	// Heard is called with the payload of each notification.
	Heard func(payload string)
	// Alive is called whenever it is certain that nothing was missed since
	// Connected: at once, and then at least every [ListenSilence].
	Alive func()
	Log   *slog.Logger
}

// Run listens until the context ends, and returns its error.
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

// listen holds one connection until it fails; connected says that it was made.
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
		_ = conn.Close(closeCtx) // there is nothing left to do for it
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

// wait hears one notification, or makes sure after a silence that there was none.
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
