package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"petstore/internal/sleep"
)

// replicaPosition reads the position of a standby. It is NULL if the server is not a
// standby (any more). A query after it in the same batch sees all of that position. At
// REPEATABLE READ its snapshot would be older.
//
// The timeline belongs to the WAL that the standby receives. The standby has replayed no
// later one, and cannot receive a timeline that began before its position. It is NULL while
// the standby receives nothing. The role needs pg_read_all_stats to see it. The control file
// has a timeline too, but it may still have the former one when the standby is ahead of it.
// The function of pg_stat_wal_receiver takes less CPU time than the view.
const replicaPosition = `-- name: ReplicaPosition :one
SELECT CASE WHEN pg_is_in_recovery() AND current_setting('transaction_isolation') = 'read committed'
		THEN (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint END,
	(pg_stat_get_wal_receiver()).received_tli::bigint`

// planByValues makes Postgres plan the rest of a batch with the values of its parameters.
const planByValues = `-- name: PlanByValues :one
SELECT set_config('plan_cache_mode', 'force_custom_plan', true)`

// scanReplica reads the row of replicaPosition.
func scanReplica(row pgx.Row) (Position, error) {
	var lsn, timeline *int64
	if err := row.Scan(&lsn, &timeline); err != nil {
		return Position{}, err
	}
	switch {
	case lsn == nil:
		return Position{}, errNotStandby
	case timeline == nil:
		return Position{}, errNoTimeline
	}
	return Position{uint32(*timeline), uint64(*lsn)}, nil //nolint:gosec // neither is negative
}

// replicaError is the error of a read that the primary must serve.
type replicaError struct {
	reason ReadReason
	err    error
}

func (e *replicaError) Error() string {
	return fmt.Sprintf("postgres: the replica cannot serve the read (%s): %v", e.reason, e.err)
}
func (e *replicaError) Unwrap() error { return e.err }

var errTooOld = errors.New("it does not include the required position")

// notIncluded returns the error of a read of a replica at a position.
func notIncluded(position, required Position) error {
	if position.Timeline != required.Timeline {
		return &replicaError{ReadTimeline, errTooOld}
	}
	return &replicaError{ReadBehind, errTooOld}
}

// Read calls a read-only function, whose statements on [Reads] run on a replica that
// includes the position; nil: on any in rotation. If there is none, or the replica fails,
// the function runs on the primary. It may run several times, and returns the error of the
// last.
//
// Each statement reads the position of the replica in the same round trip. So it is not
// stale after a restart, a promotion or a change of the server behind an address.
func (r *Replicas) Read(ctx context.Context, after *Position, read func(context.Context) error) error {
	var reason ReadReason
	for attempt := 0; ; attempt++ {
		var one *replica
		if one, reason = r.choose(after); one == nil {
			break
		}
		err := read(withReader(ctx, &Reader{replicas: r, replica: one, after: after}))
		failed, ok := errors.AsType[*replicaError](err)
		if !ok || ctx.Err() != nil {
			r.reads[ReadFresh].Add(1)
			return err
		}
		reason = failed.reason
		if reason != ReadBehind || attempt == len(catchUp) {
			break
		}
		if !sleep.For(ctx, catchUp[attempt]) {
			return ctx.Err()
		}
	}
	r.reads[reason].Add(1)
	return RetryRead(ctx, func() error { return read(withReader(ctx, &Reader{replicas: r})) })
}

// choose returns a replica in rotation that includes the position or may soon, or nil and
// the reason. It takes turns.
func (r *Replicas) choose(after *Position) (*replica, ReadReason) {
	var hopeful *replica
	reason, first := ReadNoReplica, int(r.next.Add(1)%uint32(len(r.all))) //nolint:gosec // a few
	for i := range r.all {
		one := r.all[(first+i)%len(r.all)]
		state := one.state.Load()
		switch {
		case !state.inRotation():
		case after == nil || state.position.Includes(*after):
			return one, ReadFresh
		case state.position.Timeline != after.Timeline:
			if reason == ReadNoReplica {
				reason = ReadTimeline
			}
		case state.lag <= catchUpLag && hopeful == nil:
			hopeful = one
		default:
			reason = ReadBehind
		}
	}
	return hopeful, reason
}

// Reader is where the statements of a read run, and what they saw. A nil Reader is the
// primary, for a client that did not allow a replica. It is not safe for concurrent use.
type Reader struct {
	replicas *Replicas
	replica  *replica // nil: the primary, instead of a replica
	after    *Position
	ends     bool // whether to read the position after each statement
	seen     *Seen
}

// Seen describes the state that statements saw. It had all of From, and nothing beyond To.
// The zero Position means that it is unknown.
type Seen struct{ From, To Position }

type readerKey struct{}

func withReader(ctx context.Context, r *Reader) context.Context {
	return context.WithValue(ctx, readerKey{}, r)
}

// OnPrimary returns a context without a Reader.
func OnPrimary(ctx context.Context) context.Context { return withReader(ctx, nil) }

// ReaderOf returns the Reader of a context.
func ReaderOf(ctx context.Context) *Reader {
	r, _ := ctx.Value(readerKey{}).(*Reader)
	return r
}

// IsReplica reports whether the statements of a Reader run on a replica.
func (r *Reader) IsReplica() bool { return r != nil && r.replica != nil }

// Target identifies the server of a Reader. Reads may only be shared by those with the same
// target.
func (r *Reader) Target() any {
	switch {
	case r == nil:
		return nil
	case r.replica == nil:
		return r.replicas
	default:
		return r.replica
	}
}

// Shared returns a context for a read that others share: on the same target, for any
// position. The Reader tells what it saw.
func (r *Reader) Shared(ctx context.Context) (context.Context, *Reader) {
	if r == nil {
		return ctx, nil
	}
	shared := &Reader{replicas: r.replicas, replica: r.replica}
	return withReader(ctx, shared), shared
}

// ReadEnds makes To known for the next statements.
func (r *Reader) ReadEnds() {
	if r != nil {
		r.ends = true
	}
}

// Seen returns what the statements of a Reader saw together.
func (r *Reader) Seen() Seen {
	if r == nil || r.seen == nil {
		return Seen{}
	}
	return *r.seen
}

// Saw adds what a shared read saw. It returns an error if that does not include the
// position of the Reader.
func (r *Reader) Saw(seen Seen) error {
	if !r.IsReplica() {
		return nil
	}
	all := seen // a copy, so that a request without a Reader allocates nothing
	if r.seen != nil {
		all = Seen{r.seen.From.meet(seen.From), r.seen.To.Join(seen.To)}
	}
	r.seen = &all
	if r.after != nil && !seen.From.Includes(*r.after) {
		return notIncluded(seen.From, *r.after)
	}
	return nil
}

// Require adds a position that the read must include. It returns an error if no replica
// can include all of them.
func (r *Reader) Require(position Position) error {
	if !r.IsReplica() {
		return nil
	}
	if r.after != nil {
		position = position.Join(*r.after)
	}
	if position == (Position{}) {
		return &replicaError{ReadTimeline, errTooOld}
	}
	r.after = &position
	return nil
}

// End returns a position that includes all that the statements of the Reader saw, or the
// zero Position if it is unknown. Call [Reader.ReadEnds] before the statements.
func (r *Reader) End(ctx context.Context) Position {
	switch {
	case r == nil:
		return Position{}
	case r.replica != nil:
		return r.Seen().To
	}
	position, err := r.replicas.fallback.Position(ctx)
	if err != nil {
		return Position{}
	}
	return position
}

// Reads runs the statements of reads where the [Reader] of the context says. Without a
// Reader it is the primary. It implements db.DBTX.
type Reads struct{ *DB }

// Query runs a statement. Closing the rows releases the connection.
func (d Reads) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	r := ReaderOf(ctx)
	switch {
	case r == nil:
		return d.DB.Query(ctx, sql, args...)
	case r.replica == nil:
		return r.replicas.fallback.Query(ctx, sql, args...)
	}
	b := &pgx.Batch{}
	byValues := false
	if len(args) > 0 { // a batch has the mode of its connection
		if _, byValues = args[0].(pgx.QueryExecMode); byValues {
			args = args[1:]
		}
	}
	b.Queue(sql, args...)
	results, err := r.send(ctx, b, byValues)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close() // it has the same error
		return nil, err
	}
	return &replicaRows{rows, results}, nil
}

// QueryRow runs a statement. Scan releases the connection.
func (d Reads) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := d.Query(ctx, sql, args...)
	return pooledRow{rows, err}
}

// SendBatch sends several statements in one round trip. Closing the results releases the
// connection.
func (d Reads) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	r := ReaderOf(ctx)
	switch {
	case r == nil:
		return d.DB.SendBatch(ctx, b)
	case r.replica == nil:
		return r.replicas.fallback.SendBatch(ctx, b)
	}
	results, err := r.send(ctx, b, false)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return results
}

// send sends statements to the replica together with one that reads its position, and
// checks the position.
func (r *Reader) send(ctx context.Context, b *pgx.Batch, byValues bool) (*replicaResults, error) {
	state := r.replica.state.Load()
	if !state.inRotation() {
		return nil, &replicaError{ReadNoReplica, errors.New(state.problem)}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(state.alive, func() { cancel(errSilent) })
	acquireCtx, cancelAcquire := context.WithTimeout(ctx, r.replicas.patience)
	defer cancelAcquire()
	conn, err := r.replica.db.acquire(acquireCtx)
	if err != nil {
		stop()
		cancel(nil)
		return nil, failed(err)
	}
	all := &pgx.Batch{}
	all.Queue(replicaPosition)
	if byValues {
		all.Queue(planByValues)
	}
	all.QueuedQueries = append(all.QueuedQueries, b.QueuedQueries...)
	if r.ends {
		all.Queue(replicaPosition)
	}
	results := &replicaResults{
		BatchResults: conn.SendBatch(ctx, all), reader: r, unread: b.Len(),
		release: func() { conn.Release(); stop(); cancel(nil) },
	}
	if err := results.begin(byValues); err != nil {
		_ = results.Close() // it has the same error
		return nil, err
	}
	return results, nil
}

// failed returns the error of a read whose replica failed.
func failed(err error) error {
	if _, already := errors.AsType[*replicaError](err); already || err == nil {
		return err
	}
	return &replicaError{ReadFailed, err}
}

// replicaResults are the results of the statements after the position.
type replicaResults struct {
	pgx.BatchResults

	reader  *Reader
	from    Position
	unread  int // number of statements whose results were not read
	release func()
}

// begin reads the results that come before the results of the statements.
func (b *replicaResults) begin(byValues bool) (err error) {
	if b.from, err = scanReplica(b.BatchResults.QueryRow()); err != nil {
		if errors.Is(err, errNotStandby) {
			b.reader.replica.db.reset(readOnlyInterval) // new connections may lead to another server
		}
		return failed(err)
	}
	if byValues {
		if _, err := b.BatchResults.Exec(); err != nil {
			return failed(err)
		}
	}
	if after := b.reader.after; after != nil && !b.from.Includes(*after) {
		return notIncluded(b.from, *after)
	}
	return nil
}

// Query reads the rows of a statement.
func (b *replicaResults) Query() (pgx.Rows, error) {
	b.unread--
	rows, err := b.BatchResults.Query()
	if err != nil {
		return nil, failed(err)
	}
	return &replicaRows{rows, nil}, nil
}

// QueryRow reads the row of a statement.
func (b *replicaResults) QueryRow() pgx.Row {
	rows, err := b.Query()
	return pooledRow{rows, err}
}

// Close ends the statements, adds what they saw to the Reader, and releases the connection.
func (b *replicaResults) Close() error {
	if b.release == nil {
		return nil
	}
	seen := Seen{From: b.from}
	if b.reader.ends && b.unread == 0 {
		if to, err := scanReplica(b.BatchResults.QueryRow()); err == nil {
			seen.To = to
		}
	}
	err := b.BatchResults.Close()
	b.release()
	b.release = nil
	if b.unread == 0 {
		_ = b.reader.Saw(seen) // begin has checked it
	}
	return failed(err)
}

// replicaRows are the rows of a statement on a replica.
type replicaRows struct {
	pgx.Rows

	results *replicaResults // of the statement alone, or nil
}

// Err returns the error of the statement.
func (r *replicaRows) Err() error { return failed(r.Rows.Err()) }

// Close ends the statement and releases the connection.
func (r *replicaRows) Close() {
	r.Rows.Close()
	if r.results != nil {
		_ = r.results.Close() // Err has the error
	}
}
