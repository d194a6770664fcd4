package postgres

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"petstore/internal/sleep"
)

// SQLSTATE codes (https://www.postgresql.org/docs/current/errcodes-appendix.html).
// Errors are never classified by constraint name alone, because a sharded cluster
// may omit it.
const (
	protocolViolation         = "08P01"
	uniqueViolation           = "23505"
	checkViolation            = "23514"
	readOnlySQLTransaction    = "25006"
	idleInTransactionTimeout  = "25P03"
	transactionTimeout        = "25P04" // of PostgreSQL 17 and later, if the role sets it
	serializationFailure      = "40001"
	deadlockDetected          = "40P01"
	programLimitExceeded      = "54000"
	objectNotInPrerequisite   = "55000"
	lockNotAvailable          = "55P03"
	cannotConnectNow          = "57P03"
	queryCanceled             = "57014"
	ioError                   = "58030"
	internalError             = "XX000"
	classConnection           = "08"
	classInsufficientResource = "53"
	classOperatorIntervention = "57P"
)

// lostWorkerMessages are in the messages of the errors with [internalError] by which a
// coordinator of Citus reports that it has lost a worker. libpq gives the first four, which
// have no SQLSTATE. Most are errors of COMMIT: other statements get class 08 or 57P.
var lostWorkerMessages = []string{
	"server closed the connection unexpectedly",
	"could not receive data from server",
	"could not send data to server",
	"SSL SYSCALL error",
	"terminating connection", // of the worker, with its severity before it
	"failure on connection marked as essential",
	"could not commit transaction for shard", // the worker may have committed it
}

var errPoolExhausted = errors.New("no connection was free in time")

// acquireError is the error of a statement that never got a connection.
type acquireError struct{ err error }

func (e *acquireError) Error() string { return "postgres: acquiring a connection: " + e.err.Error() }
func (e *acquireError) Unwrap() error { return e.err }

// IsUniqueViolation reports whether another row has the same value in a unique
// column.
func IsUniqueViolation(err error) bool { return sqlState(err) == uniqueViolation }

// IsLockTimeout reports whether a statement waited longer than lock_timeout for a lock.
func IsLockTimeout(err error) bool { return sqlState(err) == lockNotAvailable }

// FromServer reports whether the server rejected a statement.
func FromServer(err error) bool { return sqlState(err) != "" }

// Unavailable reports whether a statement failed because of the database and not
// because of the statement: it is unreachable, failing over, out of resources, too slow, or
// has no partition for an event. The API then returns 503. The same request may succeed later. A
// write may or may not have been done.
func Unavailable(err error) bool {
	if _, never := errors.AsType[*acquireError](err); never {
		return true // no statement has run, whatever the server said
	}
	if _, missing := errors.AsType[*partitionError](err); missing {
		return true
	}
	if state := sqlState(err); state != "" {
		switch state {
		case readOnlySQLTransaction, idleInTransactionTimeout, transactionTimeout, serializationFailure, deadlockDetected,
			objectNotInPrerequisite, lockNotAvailable, queryCanceled, ioError:
			return true
		}
		return hasClass(state, classConnection) || hasClass(state, classInsufficientResource) ||
			hasClass(state, classOperatorIntervention) || lostServer(err) || wrapsAround(err)
	}
	// Without an SQLSTATE the server did not respond: it is unreachable, the
	// connection broke, or our own deadline passed.
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || errors.Is(err, context.DeadlineExceeded) ||
		pgconn.Timeout(err) || pgconn.SafeToRetry(err) || isBroken(err)
}

// ConnectionLost reports whether a statement failed because its connection ended,
// but not because of a timeout. A write may or may not have been done.
func ConnectionLost(err error) bool {
	if _, never := errors.AsType[*acquireError](err); never || pgconn.Timeout(err) {
		return false
	}
	state := sqlState(err)
	return hasClass(state, classConnection) || hasClass(state, classOperatorIntervention) ||
		state == idleInTransactionTimeout || state == transactionTimeout || (state == "" && isBroken(err)) || lostServer(err)
}

// lostServer reports whether the server crashes, or a coordinator of Citus has lost its connection to a
// worker, which it reports as an internal error. COMMIT may have taken effect.
func lostServer(err error) bool {
	failed, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (failed.SeverityUnlocalized == "PANIC" || failed.Code == internalError && slices.ContainsFunc(lostWorkerMessages, func(part string) bool {
		return strings.Contains(failed.Message, part)
	}))
}

// wrapsAround reports whether the server accepts no writes until a VACUUM, because it is about to run
// out of transaction ids.
func wrapsAround(err error) bool {
	failed, ok := errors.AsType[*pgconn.PgError](err)
	return ok && failed.Code == programLimitExceeded && strings.Contains(failed.Message, "wraparound")
}

// StartingUp reports whether the error is one that a server gives while it starts:
// it is unreachable, or does not accept connections yet or at present. A pooler that runs already
// reports that its connections to the server fail, with the same SQLSTATE as what
// it refuses.
func StartingUp(err error) bool {
	state := sqlState(err)
	return err != nil && (state == cannotConnectNow || state == tooManyConnections || (state == "" && Unavailable(err)) ||
		hasClass(state, classConnection) && !refusesParameter(err) && refusal(err) == "")
}

// refusesParameter reports whether a connection pooler refuses a startup parameter.
func refusesParameter(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refused.Code == protocolViolation && strings.Contains(refused.Message, "startup parameter")
}

// refusals are parts of the messages with which a connection pooler refuses a login or BEGIN, and
// the SQLSTATE that PostgreSQL has for it. PgBouncer has only protocolViolation, also for an
// error of the server.
var refusals = []struct{ message, state string }{
	{"authentication failed", invalidPassword},
	{"no such user", invalidPassword},
	{"password type", invalidPassword},
	{"empty password", invalidPassword},
	{"invalid server signature", invalidPassword},
	{"login rejected", invalidAuthorization},
	{"not permitted to log in", invalidAuthorization},
	{"pg_hba.conf", invalidAuthorization},
	{"no such database", invalidCatalogName},
	{"does not exist", invalidCatalogName}, // a database or a role
	{"statement pooling mode", invalidTransaction},
}

// refusal returns the SQLSTATE of PostgreSQL for a login or BEGIN that a connection pooler
// refuses, or "" if the error is another one.
func refusal(err error) string {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refused.Code != protocolViolation {
		return ""
	}
	for _, one := range refusals {
		if strings.Contains(refused.Message, one.message) {
			return one.state
		}
	}
	return ""
}

// isBroken reports whether the connection ended before the response.
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
	retryDelay = 20 * time.Millisecond // doubled each time, plus up to 100% jitter
)

// Retry runs a query, which must be a whole transaction of d. It runs the query again,
// at most three times, after a serialization failure or a deadlock, because the
// server has then rolled the transaction back. It also does so if events had no partition
// for a row, and creates the partition first.
func Retry[Arg, Result any](ctx context.Context, d *DB, query func(context.Context, Arg) (Result, error), arg Arg) (result Result, err error) {
	err = d.retry(ctx, func() error {
		result, err = query(ctx, arg)
		return err
	})
	return result, err
}

// RetryRead runs a read-only function, and runs it again, at most three times, if
// its connection was lost.
func RetryRead(ctx context.Context, read func() error) error { return retry(ctx, ConnectionLost, read) }

// NotSent reports whether a statement failed before any of it was sent.
func NotSent(err error) bool {
	_, noConnection := errors.AsType[*acquireError](err)
	return noConnection || pgconn.SafeToRetry(err)
}

// RolledBack reports whether the server reported an error of a statement or of COMMIT, so
// that it has certainly rolled the transaction back. If the connection broke, the server may
// have committed it. A connection pooler reports that in class 08, and Citus as the loss of
// a worker. A server that crashes at COMMIT may find it committed when it starts.
func RolledBack(err error) bool {
	_, never := errors.AsType[*acquireError](err)
	state := sqlState(err)
	return !never && state != "" && !hasClass(state, classConnection) && !lostServer(err)
}

// LostToAnother reports whether the server rolled a transaction back because of a
// concurrent one.
func LostToAnother(err error) bool {
	state := sqlState(err)
	return state == serializationFailure || state == deadlockDetected
}

// retry repeats an action while worthwhile is true for its error, at most three
// times, and returns the last error.
func retry(ctx context.Context, worthwhile func(error) bool, action func() error) error {
	delay := retryDelay
	for attempt := 0; ; attempt++ {
		err := action()
		if err == nil || attempt == retries || !worthwhile(err) {
			return err
		}
		if !sleep.For(ctx, delay+rand.N(delay)) { //nolint:gosec // jitter need not be secret
			return err
		}
		delay *= 2
	}
}

// Transact runs an action in a transaction and repeats it as [Retry] does. It rolls
// back and returns the error if the action fails.
func Transact[Result any](ctx context.Context, d *DB, action func(context.Context, pgx.Tx) (Result, error)) (Result, error) {
	result, _, err := TransactAt(ctx, d, action)
	return result, err
}

// TransactThen is [Transact] for an action that also queues statements in last. They are
// sent together with COMMIT, so the locks that they take are held only for that long.
func TransactThen(ctx context.Context, d *DB, action func(ctx context.Context, tx pgx.Tx, last *Pipeline) error) error {
	return d.retry(ctx, func() error {
		_, err := transactOnce(ctx, d.Writing(), action)
		return err
	})
}

// TransactAt is [Transact] and also returns the position after the commit, if it is known
// and [DB.ReportPositions] was called.
func TransactAt[Result any](ctx context.Context, d *DB, action func(context.Context, pgx.Tx) (Result, error)) (result Result, position Position, err error) {
	err = d.retry(ctx, func() error {
		position, err = transactOnce(ctx, d.Writing(), func(ctx context.Context, tx pgx.Tx, _ *Pipeline) (err error) {
			result, err = action(ctx, tx)
			return err
		})
		return err
	})
	return result, position, err
}
