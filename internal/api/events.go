package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/event"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

const (
	eventsPath = "/events"
	eventPath  = eventsPath + "/{eventId}"

	// eventWindow is the maximum number of events that one page looks through for those
	// of some types. A page may have none, and its next page goes on after them.
	eventWindow = 10_000
	// eventsPerToken is the number of events, looked through, that count as one request.
	eventsPerToken = 1000
	// windowCost is the cost of a page that may look through all of its window. A request
	// that waits, and a stream, pay it before they read on.
	windowCost = eventWindow / eventsPerToken
	// latest is the value of after that begins at the end of the feed.
	latest = "latest"
)

// apiEvent is the Event schema of the spec.
type apiEvent = event.Representation

// sourceOf returns the account of an identity as the source of events.
func sourceOf(identity auth.Identity) event.Source {
	return account.Source(identity.AccountID, identity.IsSandbox())
}

// eventTypes are the values of EventType.
var eventTypes = event.TypeNames()

// feedQuery says which events a request wants.
type feedQuery struct {
	account int64
	source  event.Source
	after   *event.ID // nil: from the oldest that is kept
	latest  bool      // whether to begin at the end
	types   []string
	limit   int
}

// key identifies the page of a query among those of all accounts.
func (q *feedQuery) key() string {
	after := "oldest"
	switch {
	case q.latest:
		after = latest
	case q.after != nil:
		after = q.after.String()
	}
	return fmt.Sprintf("%d %s %d %s", q.account, after, q.limit, strings.Join(q.types, " "))
}

// from returns the query for the page after an event.
func (q *feedQuery) from(after event.ID) *feedQuery {
	next := *q
	next.latest, next.after = false, &after
	return &next
}

// feedPage is a page of the feed.
type feedPage struct {
	events []apiEvent
	next   event.ID // after which the next page begins
	more   bool     // whether the feed had more events after next
	looked int64    // the number of events that the query has looked through
}

// listEvents sends a page of the feed of the account, or streams it.
func (s *Server) listEvents(c *gin.Context) error {
	query, err := readFeedQuery(c)
	if err != nil {
		return err
	}
	if acceptsStream(c) {
		return s.streamEvents(c, query)
	}
	page, err := s.readFeed(c.Request.Context(), caller(c), query, 0)
	if err != nil {
		return err
	}
	wait := preferredWait(c)
	if wait > 0 {
		if page, err = s.awaitEvents(c, query, page, wait); err != nil {
			return err
		}
	}
	items, count, err := encodeItems(page.events, func(e apiEvent) apiEvent { return e })
	if err != nil {
		return err
	}
	if count < len(page.events) { // the page would be too large
		page.next, _ = event.ParseID(page.events[count-1].ID)
	}
	applyWait(c.Writer.Header(), wait) // after the last possible error
	next := *c.Request.URL
	parameters := next.Query()
	parameters.Set("after", page.next.String())
	next.RawQuery = parameters.Encode()
	return s.writeList(c, encodedPage{items: items, links: fmt.Sprintf(`<%s%s>; rel="next"`, s.base, next.RequestURI())}, false)
}

// getEvent sends an event of the feed of the account.
func (s *Server) getEvent(c *gin.Context) error {
	if err := readParams(c).Err(); err != nil {
		return err
	}
	id, ok := event.ParseID(c.Param("eventId"))
	if !ok || id.Account != caller(c).AccountID {
		return errEventNotFound
	}
	rows, err := s.reads.EventList(c.Request.Context(), db.EventListParams{AccountID: id.Account, First: id.Sequence, Last: id.Sequence, PageSize: 1})
	switch {
	case err != nil:
		return err
	case len(rows) == 0, rows[0].Nonce != int64(id.Nonce):
		return errEventNotFound
	default:
		return httpjson.WriteResource(c.Writer, c.Request, event.Represent(id.Account, sourceOf(caller(c)), rows[0]))
	}
}

// readFeedQuery reads after, type and limit. A client that connects to a stream again sends
// Last-Event-ID, which is newer than after.
func readFeedQuery(c *gin.Context) (*feedQuery, error) {
	params := readParams(c)
	q := &feedQuery{account: caller(c).AccountID, source: sourceOf(caller(c)), limit: defaultLimit, types: params.Enums("type", eventTypes...)}
	if limit := params.Integer("limit", 1, maxLimit); limit != nil {
		q.limit = int(*limit)
	}
	after, given := params.Value("after")
	switch id, ok := event.ParseID(after); {
	case !given:
	case after == latest:
		q.latest = true
	case !ok:
		params.Reject("after", "invalid_format", "`after` must be the id of an event, or `latest`.")
	default:
		q.after = &id
	}
	if err := params.Err(); err != nil {
		return nil, err
	}
	if last := c.GetHeader("Last-Event-ID"); last != "" && acceptsStream(c) {
		id, ok := event.ParseID(last)
		if !ok {
			return nil, errInvalidLastEventID
		}
		q.after, q.latest = &id, false
	}
	if len(q.types) == 0 {
		q.types = eventTypes
	}
	return q, nil
}

// The time between two runs of MaintainEvents, and after a run that has failed.
const (
	maintainEventsEvery = time.Hour
	maintainEventsAgain = time.Minute
	// eventsAhead is the time from now for which a run must leave a partition.
	eventsAhead = 7 * 24 * time.Hour
)

// errNoPartition is logged if maintain_events created no partition.
var errNoPartition = errors.New("maintain_events() created no partition of events; the log of PostgreSQL says why")

// MaintainEvents creates the partitions of the next weeks for events, and drops those of
// events older than 30 days, until the context ends.
func (s *Server) MaintainEvents(ctx context.Context) {
	for timer := time.NewTimer(maintainEventsEvery); ; {
		if s.maintainEvents(ctx) {
			timer.Reset(maintainEventsEvery)
		} else {
			timer.Reset(maintainEventsAgain)
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// maintainEvents logs why events will have no partition in a week. It reports whether it
// will have one.
func (s *Server) maintainEvents(ctx context.Context) bool {
	err := s.db.MaintainEvents(ctx)
	if err == nil {
		var fit bool
		if fit, err = s.db.EventsFit(ctx, eventsAhead); err == nil && !fit {
			err = errNoPartition
		}
	}
	if err != nil && ctx.Err() == nil && !s.schemaIsBehind(ctx) {
		s.log.LogAttrs(ctx, slog.LevelWarn, "could not maintain the partitions of events", slog.Any("error", err))
	}
	return err == nil
}

// newFeedReader shares the reading of a page of the feed among the requests for it.
func (s *Server) newFeedReader() *sharedRead[string, *feedQuery, feedPage] {
	return shareReads(sharedReads, withoutEnd, func(ctx context.Context, _ string, queries []*feedQuery) ([]feedPage, error) {
		page, err := findEvents(ctx, s.reads, queries[0])
		return slices.Repeat([]feedPage{page}, len(queries)), err
	})
}

// readFeed reads a page of the feed, and charges the caller for the events that it has
// looked through, except what it has paid before. A replica may not have the event of the
// cursor yet, so the primary decides whether the cursor has expired.
func (s *Server) readFeed(ctx context.Context, identity auth.Identity, q *feedQuery, paid int) (feedPage, error) {
	page, err := s.feedPages.Do(ctx, q.key(), q)
	if failure, ok := errors.AsType[*httpjson.Error](err); ok && failure.Code == errCursorExpired.Code && postgres.ReaderOf(ctx) != nil {
		page, err = findEvents(ctx, s.queries, q)
	}
	s.limits.charge(identity, int(page.looked/eventsPerToken)-paid)
	return page, err
}

// findEvents reads a page of the feed. The error is [errCursorExpired] or comes from the
// database.
func findEvents(ctx context.Context, queries *db.Queries, q *feedQuery) (feedPage, error) {
	end, err := queries.FeedEnd(ctx, q.account)
	if err != nil {
		return feedPage{}, orNotFound(err, errInvalidAPIKey) // the account is deleted
	}
	newest := event.IDOf(q.account, end.LastSequence, end.LastNonce)
	switch {
	case q.latest, q.after != nil && *q.after == newest:
		return feedPage{next: newest}, nil
	case q.after != nil && (q.after.Account != q.account || q.after.Sequence >= newest.Sequence):
		return feedPage{}, cursorExpired(ctx, queries, q)
	}
	var first int64
	if q.after != nil && q.after.Sequence > 0 {
		first = q.after.Sequence
	} else {
		oldest, err := queries.EventOldest(ctx, q.account)
		switch {
		case q.after != nil && (err == nil && oldest.Sequence > 1 || errors.Is(err, pgx.ErrNoRows) || q.after.Nonce != 0):
			return feedPage{}, cursorExpired(ctx, queries, q)
		case errors.Is(err, pgx.ErrNoRows):
			return feedPage{next: newest}, nil
		case err != nil:
			return feedPage{}, err
		}
		first = oldest.Sequence - 1
	}
	last := min(newest.Sequence, first+eventWindow)
	rows, err := queries.EventList(ctx, db.EventListParams{AccountID: q.account, First: first, Last: last, Types: q.types, PageSize: int32(q.limit) + 1}) //nolint:gosec // at most maxLimit
	if err != nil {
		return feedPage{}, err
	}
	if q.after != nil && first > 0 && (len(rows) == 0 || rows[0].Sequence != first || rows[0].Nonce != int64(q.after.Nonce)) {
		return feedPage{}, cursorExpired(ctx, queries, q)
	}
	return pageOf(rows, first, newest, q), nil
}

// pageOf makes a page of rows from the number first on. The row of that number is that of
// the cursor. The last row may have another type.
func pageOf(rows []db.EventListRow, first int64, newest event.ID, q *feedQuery) feedPage {
	page := feedPage{next: newest}
	if q.after != nil {
		page.next = *q.after
	}
	for _, row := range rows {
		if row.Sequence == first || len(page.events) == q.limit {
			continue
		}
		page.next = event.IDOf(q.account, row.Sequence, row.Nonce)
		if slices.Contains(q.types, row.Type) {
			page.events = append(page.events, event.Represent(q.account, q.source, row))
		}
	}
	page.more = page.next != newest
	page.looked = page.next.Sequence - first
	return page
}

// cursorExpired returns the error for a cursor that is not in the feed.
func cursorExpired(ctx context.Context, queries *db.Queries, q *feedQuery) error {
	oldest, err := queries.EventOldest(ctx, q.account)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return errCursorExpired
	case err != nil:
		return err
	}
	id := event.IDOf(q.account, oldest.Sequence, oldest.Nonce)
	return errCursorExpired.WithMessage(fmt.Sprintf("The feed of your account has no event %s. The oldest event in it is %s. List your resources again, and follow the feed from `after=latest`.", q.after, id))
}
