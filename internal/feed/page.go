package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/event"
)

// Window is the maximum number of events that one page looks through for those of some
// types. A page may have none, and its next page goes on after them.
const Window = 10_000

// Latest is the cursor at the end of the feed.
const Latest = "latest"

// Query says which events of an account a client wants.
type Query struct {
	Account int64
	Source  event.Source
	After   *event.ID // nil: from the oldest that is kept
	Latest  bool      // whether to begin at the end
	Types   []string  // none: all, with those that only other versions of Petstore know
	Limit   int
}

// Key identifies the page of a query among those of all accounts.
func (q *Query) Key() string {
	after := "oldest"
	switch {
	case q.Latest:
		after = Latest
	case q.After != nil:
		after = q.After.String()
	}
	return fmt.Sprintf("%d %s %d %s", q.Account, after, q.Limit, strings.Join(q.Types, " "))
}

// From returns the query for the page after an event.
func (q *Query) From(after event.ID) *Query {
	next := *q
	next.Latest, next.After = false, &after
	return &next
}

// Page is a page of the feed.
type Page struct {
	Events []event.Representation
	Next   event.ID // after which the next page begins
	More   bool     // whether the feed had more events after Next
	Looked int64    // the number of events that the query has looked through
}

// ExpiredError is the error of a cursor that is not in the feed of the account.
type ExpiredError struct {
	Cursor event.ID
	Oldest *event.ID // in the feed; nil: it is empty
}

func (e *ExpiredError) Error() string { return fmt.Sprintf("feed: no event %s", e.Cursor) }

// isNext reports whether the feed begins with the event after the cursor. Then only events up to
// the cursor are deleted.
func (e *ExpiredError) isNext() bool {
	return e.Oldest != nil && e.Oldest.Sequence == e.Cursor.Sequence+1
}

// Find reads a page of the feed. After a deleted event, it reads on if the next one is kept. The
// error is an [*ExpiredError], [pgx.ErrNoRows] if the account is deleted, or comes from the database.
func Find(ctx context.Context, queries *db.Queries, q *Query) (Page, error) {
	end, err := queries.FeedEnd(ctx, q.Account)
	if err != nil {
		return Page{}, err
	}
	newest := event.IDOf(q.Account, end.LastSequence, end.LastNonce)
	switch {
	case q.Latest, q.After != nil && *q.After == newest:
		return Page{Next: newest}, nil
	case q.After != nil && (q.After.Account != q.Account || q.After.Sequence >= newest.Sequence):
		return Page{}, expired(ctx, queries, q.Account, *q.After)
	}
	var first int64
	if q.After != nil && q.After.Sequence > 0 {
		first = q.After.Sequence
	} else {
		oldest, err := queries.EventOldest(ctx, q.Account)
		switch {
		case q.After != nil && (err == nil && oldest.Sequence > 1 || errors.Is(err, pgx.ErrNoRows) || q.After.Nonce != 0):
			return Page{}, expired(ctx, queries, q.Account, *q.After)
		case errors.Is(err, pgx.ErrNoRows):
			return Page{Next: newest}, nil
		case err != nil:
			return Page{}, err
		}
		first = oldest.Sequence - 1
	}
	last, err := WindowEnd(ctx, queries, db.EventWindowEndParams{AccountID: q.Account, AfterSequence: first, Last: first + Window}, newest.Sequence)
	if err != nil {
		return Page{}, err
	}
	rows, err := queries.EventList(ctx, db.EventListParams{AccountID: q.Account, First: first, Last: last, Types: q.Types, PageSize: int32(q.Limit) + 1}) //nolint:gosec // at most the limit of lists
	if err != nil {
		return Page{}, err
	}
	if q.After != nil && first > 0 && (len(rows) == 0 || rows[0].Sequence != first || rows[0].Nonce != int64(q.After.Nonce)) {
		err := expired(ctx, queries, q.Account, *q.After)
		if e, is := errors.AsType[*ExpiredError](err); !is || !e.isNext() {
			return Page{}, err
		}
	}
	return q.page(rows, first, newest), nil
}

// WindowEnd returns the number of the last event of a window of numbers, which ends at the newest
// event at the latest. If a restore from a backup has skipped all of the window, it is the next
// event. The error comes from the database.
func WindowEnd(ctx context.Context, queries *db.Queries, window db.EventWindowEndParams, newest int64) (int64, error) {
	if newest <= window.Last {
		return newest, nil
	}
	end, err := queries.EventWindowEnd(ctx, window)
	if errors.Is(err, pgx.ErrNoRows) {
		return newest, nil
	}
	return min(end, newest), err
}

// page makes a page of rows from the number first on. The row of that number is the one of
// the cursor. The last row may have another type.
func (q *Query) page(rows []db.EventListRow, first int64, newest event.ID) Page {
	page := Page{Next: newest}
	if q.After != nil {
		page.Next = *q.After
	}
	for _, row := range rows {
		if row.Sequence == first || len(page.Events) == q.Limit {
			continue
		}
		page.Next = event.IDOf(q.Account, row.Sequence, row.Nonce)
		if len(q.Types) == 0 || slices.Contains(q.Types, row.Type) {
			page.Events = append(page.Events, event.Represent(q.Account, q.Source, row))
		}
	}
	page.More = page.Next != newest
	page.Looked = min(page.Next.Sequence-first, Window) // the numbers may skip some after a restore
	return page
}

// Get reads an event. The error is [pgx.ErrNoRows] or comes from the database.
func Get(ctx context.Context, queries *db.Queries, id event.ID) (row db.EventListRow, err error) {
	rows, err := queries.EventList(ctx, db.EventListParams{AccountID: id.Account, First: id.Sequence, Last: id.Sequence, PageSize: 1})
	switch {
	case err != nil:
		return row, err
	case len(rows) == 0, rows[0].Nonce != int64(id.Nonce):
		return row, pgx.ErrNoRows
	default:
		return rows[0], nil
	}
}

// expired returns the error for a cursor that is not in the feed.
func expired(ctx context.Context, queries *db.Queries, account int64, cursor event.ID) error {
	oldest, err := queries.EventOldest(ctx, account)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return &ExpiredError{Cursor: cursor}
	case err != nil:
		return err
	}
	return &ExpiredError{cursor, new(event.IDOf(account, oldest.Sequence, oldest.Nonce))}
}
