package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// maintainEvents creates the partitions of the next weeks and drops partitions that ended
// more than 30 days ago. It must run in a transaction, so that its limit of lock
// waits holds on all nodes of Citus. COMMIT does not wait for a synchronous standby, because
// all reads of events would wait with it, for the lock of a dropped partition. The next call makes
// a change again that a failover has lost.
const maintainEvents = `-- name: EventsMaintain :one
SELECT set_config('synchronous_commit', 'local', true), maintain_events()`

// eventsFit reports whether events has a partition for a row that is inserted after some
// seconds.
const eventsFit = `-- name: EventsFit :one
SELECT EXISTS (
	SELECT FROM event_partitions()
	WHERE bounds IS NULL OR bounds @> statement_timestamp() + make_interval(secs => $1)
)`

// eventsOverdue reports whether maintain_events has failed for a week to drop one of its partitions.
const eventsOverdue = `-- name: EventsOverdue :one
SELECT EXISTS (
	SELECT FROM event_partitions()
	WHERE partition_name ~ '^events_[0-9]{8}_*$' AND upper(bounds) < statement_timestamp() - interval '38 days'
)`

// maintainTimeout limits one call of maintain_events.
const maintainTimeout = 5 * time.Second

// ErrNoPartition means that MaintainEvents created no partition that [DB.EventsFit] asks for.
var ErrNoPartition = errors.New("maintain_events() created no partition of events; the log of PostgreSQL says why")

// MaintainEvents creates the partitions of events for this week and the next four, and drops
// partitions whose events are all older than 30 days. Concurrent callers share a call and
// its error. It continues after the context of one has ended. The error comes from the database or the
// context.
func (d *DB) MaintainEvents(ctx context.Context) error {
	done := d.maintenance.DoChan("", func() (any, error) { return nil, d.maintainEvents(context.WithoutCancel(ctx)) })
	select {
	case result := <-done:
		return result.Err
	case <-ctx.Done():
		return fmt.Errorf("postgres: waiting for maintain_events: %w", ctx.Err())
	}
}

// maintainEvents calls maintain_events.
func (d *DB) maintainEvents(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maintainTimeout)
	defer cancel()
	_, err := transactOnce(ctx, d.Writing(), func(ctx context.Context, tx pgx.Tx, _ *Pipeline) error {
		_, err := tx.Exec(ctx, maintainEvents)
		return err
	})
	return err
}

// EventsFit reports whether events has a partition for events after some time from now.
func (d *DB) EventsFit(ctx context.Context, after time.Duration) (fit bool, err error) {
	err = d.QueryRow(ctx, eventsFit, after.Seconds()).Scan(&fit)
	return fit, err
}

// EventsOverdue reports whether a partition that Petstore has created ended more than 38 days ago. A
// transaction that has read it prevents the drop.
func (d *DB) EventsOverdue(ctx context.Context) (overdue bool, err error) {
	err = d.QueryRow(ctx, eventsOverdue).Scan(&overdue)
	return overdue, err
}

// retry repeats a transaction, at most three times, after a serialization failure or a
// deadlock. It also does so if events may have had no partition for a row, and first
// creates the partition. If another process creates it late, there is a fourth repetition. The
// error is a [*partitionError] if there still is none.
func (d *DB) retry(ctx context.Context, transaction func() error) error {
	err := retry(ctx, func(err error) bool {
		return LostToAnother(err) || sqlState(err) == checkViolation && d.MaintainEvents(ctx) == nil
	}, transaction)
	if sqlState(err) != checkViolation {
		return err
	}
	if fit, fitErr := d.EventsFit(ctx, 0); fitErr != nil || !fit {
		return &partitionError{err}
	}
	return transaction() // the partition may be new; otherwise the row violates a CHECK
}

// partitionError is the error of a row for which events has no partition.
type partitionError struct{ err error }

func (e *partitionError) Error() string { return "postgres: events has no partition: " + e.err.Error() }
func (e *partitionError) Unwrap() error { return e.err }
