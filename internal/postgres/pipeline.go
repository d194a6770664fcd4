package postgres

import (
	"context"
	"errors"
	"fmt"

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
	results pgx.BatchResults
	begun   bool // whether the result of BEGIN has been read
	// position is that after the commit, if the pool reports positions.
	position Position
}

// Pipe runs an action in a pipeline. The action must call [Pipeline.Commit] last. If it
// returns an error, Pipe rolls back and returns the error. It does not retry. The position
// is that after the commit, if it is known and [DB.ReportPositions] was called.
func Pipe(ctx context.Context, d *DB, action func(context.Context, *Pipeline) error) (position Position, err error) {
	conn, err := d.acquire(ctx)
	if err != nil {
		return Position{}, err
	}
	defer conn.Release()
	p := &Pipeline{conn: conn, queued: &pgx.Batch{}}
	p.queued.Queue("BEGIN")
	defer func() {
		err = errors.Join(err, p.closeResults())
		if status := conn.Conn.Conn().PgConn().TxStatus(); status != 'I' && !conn.Conn.Conn().IsClosed() {
			_, rollbackErr := conn.Exec(ctx, "ROLLBACK")
			err = errors.Join(err, rollbackErr)
		}
	}()
	err = action(ctx, p)
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
	if p.begun {
		return nil
	}
	p.begun = true
	_, err := p.results.Exec()
	return err
}

// Commit sends the queued statements and COMMIT in one round trip. It returns the first
// error of any of them. A read must read the results of all queued statements; nil drops them.
func (p *Pipeline) Commit(ctx context.Context, read func() error) error {
	if err := p.closeResults(); err != nil {
		return err
	}
	var readAll func(pgx.BatchResults) error
	if read != nil {
		readAll = func(results pgx.BatchResults) error {
			p.results = results
			defer func() { p.results = nil }() // which commit closes
			return read()
		}
	}
	position, tag, err := p.conn.commit(ctx, p.queued, readAll)
	p.queued = &pgx.Batch{}
	if err != nil {
		return err
	}
	if tag != "COMMIT" {
		return fmt.Errorf("postgres: COMMIT ended with %s", tag)
	}
	p.position = position
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
