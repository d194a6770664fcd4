package postgres

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATE codes, PostgreSQL's Appendix A. Errors are told apart by these and
// never by the name of a constraint alone, which a sharded cluster may leave out.
const (
	foreignKeyViolation       = "23503"
	uniqueViolation           = "23505"
	readOnlySQLTransaction    = "25006"
	idleInTransactionTimeout  = "25P03"
	serializationFailure      = "40001"
	deadlockDetected          = "40P01"
	objectNotInPrerequisite   = "55000"
	lockNotAvailable          = "55P03"
	cannotConnectNow          = "57P03"
	queryCanceled             = "57014"
	ioError                   = "58030"
	classConnection           = "08"
	classInsufficientResource = "53"
	classOperatorIntervention = "57P"
)

var errPoolExhausted = errors.New("no connection was free in time")

// acquireError says that a statement never got a connection.
type acquireError struct{ err error }

func (e *acquireError) Error() string { return "postgres: acquiring a connection: " + e.err.Error() }
func (e *acquireError) Unwrap() error { return e.err }

// IsForeignKeyViolation reports whether a row names another that is not there,
// or is named by another that is.
func IsForeignKeyViolation(err error) bool { return sqlState(err) == foreignKeyViolation }

// IsUniqueViolation reports whether a row has a value that must be unique and is taken.
func IsUniqueViolation(err error) bool { return sqlState(err) == uniqueViolation }

// Unavailable reports whether the database is the reason that a statement
// failed, and not the statement: it is away, failing over, out of resources, or
// too slow. The same request may succeed later. Nothing that was not
// acknowledged is known to be written or not.
func Unavailable(err error) bool {
	if _, never := errors.AsType[*acquireError](err); never {
		return true // no statement has run, whatever the server said
	}
	if state := sqlState(err); state != "" {
		switch state {
		case readOnlySQLTransaction, idleInTransactionTimeout, serializationFailure, deadlockDetected,
			objectNotInPrerequisite, lockNotAvailable, queryCanceled, ioError:
			return true
		}
		return hasClass(state, classConnection) || hasClass(state, classInsufficientResource) ||
			hasClass(state, classOperatorIntervention)
	}
	// Without an SQLSTATE the server did not answer: it could not be reached, the
	// connection broke, or our own deadline passed.
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || errors.Is(err, context.DeadlineExceeded) ||
		pgconn.Timeout(err) || pgconn.SafeToRetry(err) || isBroken(err)
}

// ConnectionLost reports whether a statement failed because its connection
// ended, and not for want of time. Whether a write was done is then not known.
func ConnectionLost(err error) bool {
	if _, never := errors.AsType[*acquireError](err); never || pgconn.Timeout(err) {
		return false
	}
	state := sqlState(err)
	return hasClass(state, classConnection) || hasClass(state, classOperatorIntervention) ||
		state == idleInTransactionTimeout || (state == "" && isBroken(err))
}

// StartingUp reports whether a server that is about to run would fail so: it
// cannot be reached yet, or says that it is not ready for connections.
func StartingUp(err error) bool {
	state := sqlState(err)
	return err != nil && (state == cannotConnectNow || (state == "" && Unavailable(err)))
}

// isBroken reports whether the connection ended before the answer.
func isBroken(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, pgconn.ErrConnClosed)
}

func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

func hasClass(state, class string) bool {
	return len(state) >= len(class) && state[:len(class)] == class
}

const (
	retries    = 3
	retryDelay = 20 * time.Millisecond // doubled each time, and spread by as much again
)

// Retry runs a query, which must be a whole transaction, and runs it again, at
// most three times, when it lost to another transaction (a serialization
// failure or a deadlock), since then nothing of it was done.
func Retry[Arg, Result any](ctx context.Context, query func(context.Context, Arg) (Result, error), arg Arg) (result Result, err error) {
	err = retry(ctx, lostToAnother, func() error {
		result, err = query(ctx, arg)
		return err
	})
	return result, err
}

// RetryRead runs what changes nothing, and runs it again, at most three times,
// when its connection was lost.
func RetryRead(ctx context.Context, read func() error) error { return retry(ctx, ConnectionLost, read) }

// lostToAnother reports whether a transaction was undone for another's sake.
func lostToAnother(err error) bool {
	state := sqlState(err)
	return state == serializationFailure || state == deadlockDetected
}

// retry repeats an action while its error says so, and returns the last one.
func retry(ctx context.Context, worthwhile func(error) bool, action func() error) error {
	delay := retryDelay
	for attempt := 0; ; attempt++ {
		err := action()
		if err == nil || attempt == retries || !worthwhile(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(delay + rand.N(delay)): //nolint:gosec // jitter need not be secret
		}
		delay *= 2
	}
}

// Transact runs a transaction, all of it again when [Retry] says so. It is rolled
// back when the action returns an error, and that error is returned.
func Transact[Result any](ctx context.Context, d *DB, action func(context.Context, pgx.Tx) (Result, error)) (Result, error) {
	return Retry(ctx, func(ctx context.Context, d *DB) (result Result, err error) {
		conn, err := d.acquire(ctx)
		if err != nil {
			return result, err
		}
		defer conn.Release()
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			result, err = action(ctx, tx)
			return err
		})
		return result, err
	}, d.Writing())
}
