package postgres

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Position is a position in the write-ahead log (WAL) of a database: all that committed
// before it. The zero Position is unknown, and no replica includes it.
type Position struct {
	// Timeline begins with the promotion of a primary. Later writes of the former primary
	// are on another timeline.
	Timeline uint32
	LSN      uint64 // log sequence number, in bytes since the first record
}

// Includes reports whether a server at position p has all that committed before the
// other one.
func (p Position) Includes(other Position) bool {
	return other.Timeline != 0 && p.Timeline == other.Timeline && p.LSN >= other.LSN
}

// Join returns the position that includes both, or the zero Position if there is none.
func (p Position) Join(other Position) Position {
	if p.Timeline != other.Timeline {
		return Position{}
	}
	return Position{p.Timeline, max(p.LSN, other.LSN)}
}

// meet returns the position that both include, or the zero Position if there is none.
func (p Position) meet(other Position) Position {
	if p.Timeline != other.Timeline {
		return Position{}
	}
	return Position{p.Timeline, min(p.LSN, other.LSN)}
}

// primaryPosition reads the position of a primary. It is the end of the WAL that was
// inserted, which may not be written yet if synchronous_commit is off. The name of a WAL file
// begins with the timeline.
const primaryPosition = `-- name: PrimaryPosition :one
SELECT ` + endOfRecord + `, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
FROM (SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint AS lsn OFFSET 0) AS inserted`

// endOfRecord is the end of the last record before lsn. If the record ends with its page,
// PostgreSQL returns the position after the header of the next page: 24 bytes, or 40 at the
// start of a WAL file. A standby gets there only with the next record.
const endOfRecord = `lsn - CASE
	WHEN lsn % current_setting('wal_block_size')::bigint = 24 THEN 24
	WHEN lsn % current_setting('wal_block_size')::bigint = 40 AND lsn % pg_size_bytes(current_setting('wal_segment_size')) = 40 THEN 40
	ELSE 0 END`

// flushedPosition reads the position up to which a primary sends its WAL to standbys.
const flushedPosition = `-- name: FlushedPosition :one
SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint, left(pg_walfile_name(pg_current_wal_flush_lsn()), 8)`

// scanPrimary reads the row of primaryPosition or flushedPosition.
func scanPrimary(row pgx.Row) (Position, error) {
	var lsn int64
	var timeline string
	if err := row.Scan(&lsn, &timeline); err != nil {
		return Position{}, err
	}
	number, err := strconv.ParseUint(timeline, 16, 32)
	if err != nil {
		return Position{}, fmt.Errorf("postgres: the timeline %q: %w", timeline, err)
	}
	return Position{uint32(number), uint64(lsn)}, nil //nolint:gosec // an LSN is not negative
}

// Position returns the current position of the primary.
func (d *DB) Position(ctx context.Context) (Position, error) {
	return scanPrimary(d.QueryRow(ctx, primaryPosition))
}

// ReportPositions makes [Pipe] and [TransactAt] return the positions of their commits from
// now on.
func (d *DB) ReportPositions() { d.reports.Store(true) }
