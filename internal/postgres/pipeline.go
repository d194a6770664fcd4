package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Pipeline is a transaction whose statements share round trips. The batch functions
// that sqlc generates only queue their statements, and [Pipeline.Send] sends all that
// are queued. Read the results in the order of the statements. It implements db.DBTX for
// batches only. Actions of [TransactThen] only queue statements in it.
type Pipeline struct {
	pgx.Tx // nil, for the other methods of db.DBTX

	conn    *connection
	queued  *pgx.Batch
	begins  bool // whether the first result to read is the result of BEGIN
	results pgx.BatchResults
	// position is the position after the commit, if the pool reports positions.
	position Position
}

// Pipe runs an action in a pipeline. The action must call [Pipeline.Commit] last. If it
// returns an error, Pipe rolls back and returns the error. It does not retry. The result is
// the position after the commit, if it is known and [DB.ReportPositions] was called.
func Pipe(ctx context.Context, d *DB, action func(context.Context, *Pipeline) error) (Position, error) {
	return inPipeline(ctx, d, func(p *Pipeline) error {
		p.queued.Queue("BEGIN")
		p.begins = true
		return action(ctx, p)
	})
}

// transactOnce runs an action in a transaction, and then the statements that it has queued.
func transactOnce(ctx context.Context, d *DB, action func(context.Context, pgx.Tx, *Pipeline) error) (Position, error) {
	return inPipeline(ctx, d, func(last *Pipeline) error {
		tx, err := last.conn.Begin(ctx)
		if err != nil {
			return err
		}
		if err := action(ctx, tx, last); err != nil {
			return err
		}
		return last.Commit(ctx, nil)
	})
}

// inPipeline runs an action with a pipeline, and rolls back a transaction that the action leaves open.
func inPipeline(ctx context.Context, d *DB, action func(*Pipeline) error) (position Position, err error) {
	conn, err := d.acquire(ctx)
	if err != nil {
		return Position{}, err
	}
	defer conn.Release()
	p := &Pipeline{conn: conn, queued: &pgx.Batch{}}
	defer func() {
		err = errors.Join(err, p.closeResults())
		if status := conn.Conn.Conn().PgConn().TxStatus(); status != 'I' && !conn.Conn.Conn().IsClosed() {
			_, rollbackErr := conn.Exec(ctx, "ROLLBACK")
			err = errors.Join(err, rollbackErr)
		}
	}()
	err = action(p)
	return p.position, err
}

// SendBatch queues the statements of a batch.
func (p *Pipeline) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	p.queued.QueuedQueries = append(p.queued.QueuedQueries, b.QueuedQueries...)
	return pipelined{p}
}

// Send sends the queued statements in one round trip.
func (p *Pipeline) Send(ctx context.Context) error {
	if err := p.closeResults(); err != nil {
		return err
	}
	p.results = p.conn.SendBatch(ctx, p.queued)
	p.queued = &pgx.Batch{}
	if !p.begins {
		return nil
	}
	p.begins = false
	_, err := p.results.Exec()
	return err
}

// Commit sends the queued statements and COMMIT in one round trip. It returns the first
// error of any of them. A read must read the results of all queued statements; nil drops them.
func (p *Pipeline) Commit(ctx context.Context, read func() error) error {
	if err := p.closeResults(); err != nil {
		return err
	}
	queued, statements, reports := p.queued, p.queued.Len(), p.conn.db.reports.Load()
	p.queued = &pgx.Batch{}
	queued.Queue("COMMIT")
	if reports {
		queued.Queue(primaryPosition)
	}
	p.results = p.conn.SendBatch(ctx, queued)
	if read == nil {
		read = func() error { return p.drop(statements) }
	}
	var tag pgconn.CommandTag
	err := read()
	if err == nil {
		tag, err = p.results.Exec()
	}
	if err == nil && tag.String() != "COMMIT" { // a statement failed, and the action ignored it
		err = pgx.ErrTxCommitRollback
	}
	// After COMMIT, an error must not look like one of the transaction, which would run again.
	if err == nil && reports {
		if position, scanErr := scanPrimary(p.results.QueryRow()); scanErr == nil {
			p.position = position
		}
	}
	_ = p.closeResults() // it returns the same error, or one after COMMIT
	return err
}

// drop reads the results of statements without using them.
func (p *Pipeline) drop(statements int) error {
	for range statements {
		if _, err := p.results.Exec(); err != nil {
			return err
		}
	}
	return nil
}

// closeResults ends the reading of the statements sent last.
func (p *Pipeline) closeResults() error {
	if p.results == nil {
		return nil
	}
	results := p.results
	p.results = nil
	return results.Close()
}

// pipelined reads the results of one batch of a pipeline.
type pipelined struct{ p *Pipeline }

// Exec reads the result of a statement that returns no rows.
func (r pipelined) Exec() (pgconn.CommandTag, error) { return r.p.results.Exec() }

// Query reads the rows of a statement.
func (r pipelined) Query() (pgx.Rows, error) { return r.p.results.Query() }

// QueryRow reads the row of a statement.
func (r pipelined) QueryRow() pgx.Row { return r.p.results.QueryRow() }

// Tx returns nil: the pipeline itself is the transaction.
func (r pipelined) Tx() pgx.Tx { return nil }

// Close does nothing: the pipeline closes the results of all its batches.
func (r pipelined) Close() error { return nil }
