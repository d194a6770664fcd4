package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/internal/account"
	"petstore/internal/admission"
	"petstore/internal/auth"
	"petstore/internal/event"
	"petstore/internal/feed"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// windowCost is the cost of a page that may look through all of its window. A request that
// waits, and a stream, pay it before they read on.
const windowCost = feed.Window / rowsPerToken

// apiEvent is the Event schema of the spec.
type apiEvent = event.Representation

// sourceOf returns the account of an identity as the source of events.
func sourceOf(identity auth.Identity) event.Source {
	return account.Source(identity.AccountID, identity.IsSandbox())
}

// eventTypes are the values of EventType.
var eventTypes = event.TypeNames()

// listEvents sends a page of the feed of the account, or streams it.
func (s *Server) listEvents(c *gin.Context) error {
	query, err := readFeedQuery(c)
	if err != nil {
		return err
	}
	if httpjson.Prefers(c.Request.Header, gate.StreamType) {
		return s.streamEvents(c, query)
	}
	r, err := s.beginFeed(c, query, feedForm{zipped: httpjson.PrefersGzip(c.Request.Header)})
	if err != nil {
		return err
	}
	wait := gate.PreferredWait(c)
	if wait > 0 {
		if err := s.awaitEvents(c, r, wait); err != nil {
			return err
		}
	}
	gate.ApplyWait(c.Writer.Header(), wait) // after the last possible error
	next := *c.Request.URL
	parameters := next.Query()
	parameters.Set("after", r.page.Next.String())
	next.RawQuery = parameters.Encode()
	r.page.list.Links = fmt.Sprintf(`<%s%s>; rel="next"`, s.options.BaseURL, next.RequestURI())
	return s.gate.WritePage(c, r.page.list)
}

// getEvent sends an event of the feed of the account.
func (s *Server) getEvent(c *gin.Context) error {
	id, ok := event.ParseID(c.Param("eventId"))
	if !ok || id.Account != gate.Caller(c).AccountID {
		return errEventNotFound
	}
	row, err := feed.Get(c.Request.Context(), s.reads, id)
	if err != nil {
		return orNotFound(err, errEventNotFound)
	}
	return writeResource(c, event.Represent(id.Account, sourceOf(gate.Caller(c)), row))
}

// readFeedQuery reads after, type and limit. A client that connects to a stream again sends
// Last-Event-ID, which is newer than after.
func readFeedQuery(c *gin.Context) (*feed.Query, error) {
	params := readParams(c)
	q := &feed.Query{Account: gate.Caller(c).AccountID, Source: sourceOf(gate.Caller(c)), Limit: defaultLimit, Types: params.Enums("type", eventTypes...)}
	if limit := params.Integer("limit", 1, maxLimit); limit != nil {
		q.Limit = int(*limit)
	}
	after, given := params.Value("after")
	switch id, ok := event.ParseID(after); {
	case !given:
	case after == feed.Latest:
		q.Latest = true
	case !ok:
		params.Reject("after", "invalid_format", "`after` must be the id of an event, or `latest`.")
	default:
		q.After = &id
	}
	if err := params.Err(); err != nil {
		return nil, err
	}
	if last := c.GetHeader("Last-Event-ID"); last != "" && httpjson.Prefers(c.Request.Header, gate.StreamType) {
		id, ok := event.ParseID(last)
		if !ok {
			return nil, errInvalidLastEventID
		}
		q.After, q.Latest = &id, false
	}
	return q, nil
}

// feedReading is the reading of the feed by a request, page by page.
type feedReading struct {
	server *Server
	payer  int64
	query  *feed.Query // of the first page
	form   feedForm
	page   feedPage // the last one
	charge func(cost int)
	rest   int64 // rows that are not charged yet
}

// feedForm is the form in which a request wants pages: as parts of a stream or as a list.
type feedForm struct{ stream, zipped bool }

// feedPage is a page of the feed in a form, in place of its events.
type feedPage struct {
	feed.Page

	found bool      // whether it has events
	part  gate.Part // of a stream; it has the text and the last id
	list  gate.Page
}

// feedKey names a page of the feed.
type feedKey struct {
	query string
	form  feedForm
}

// beginFeed reads the first page of a query. A replica may not have the account or the event of
// the cursor yet, so the primary decides whether they are gone. It also decides whether a feed is
// empty: of two standbys behind an address, one may know its end and the other lack its events.
// The next page would skip them.
func (s *Server) beginFeed(c *gin.Context, q *feed.Query, form feedForm) (*feedReading, error) {
	ctx := c.Request.Context()
	r := &feedReading{server: s, payer: gate.Caller(c).Payer(), query: q, form: form, charge: func(cost int) { s.gate.Charge(c, cost) }}
	page, err := r.read(ctx, q)
	_, expired := errors.AsType[*feed.ExpiredError](err)
	empty := err == nil && q.After == nil && !q.Latest && !page.found
	if (expired || empty || errors.Is(err, pgx.ErrNoRows)) && postgres.ReaderOf(ctx).IsReplica() {
		page, err = r.read(postgres.OnPrimary(ctx), q)
	}
	if err == nil {
		err = s.gate.CheckKey(c) // the read may have waited
	}
	return r, r.add(page, 0, err)
}

// next reads the page after the last one, for a request that waits.
func (r *feedReading) next(ctx context.Context) error {
	page, err := r.read(ctx, r.query.From(r.page.Next))
	return r.add(page, r.cost(), err)
}

// read finds a page, which requests for the same share.
func (r *feedReading) read(ctx context.Context, q *feed.Query) (feedPage, error) {
	key := placedKey{r.payer, feedKey{q.Key(), r.form}, admission.ReadParts}
	return readPlaced(ctx, r.server.placedReads, key, func(ctx context.Context) (feedPage, error) { return r.find(ctx, q) })
}

// find finds a page and encodes its events.
func (r *feedReading) find(ctx context.Context, q *feed.Query) (page feedPage, err error) {
	if page.Page, err = feed.Find(ctx, r.server.reads, q); err != nil {
		return page, err
	}
	events := page.Events
	page.Events, page.found = nil, len(events) > 0
	if r.form.stream {
		for _, e := range events {
			err = errors.Join(err, page.part.Add(e.ID, e.Type, e))
		}
		return page, err
	}
	items, count, err := encodeItems(events, func(e apiEvent) apiEvent { return e })
	if err != nil {
		return page, err
	}
	if count < len(events) { // the page would be too large
		page.Next, _ = event.ParseID(events[count-1].ID)
	}
	if page.list.Items = items; r.form.zipped {
		page.list.Zipped = gate.Compress(items)
	}
	return page, nil
}

// add adds a page, and charges the caller for the events that it has looked through, except what
// it has paid before. A stream pays by its bytes, as [gate.Gate.WritePage] charges for large pages, if that is more.
// A rest is forgotten when no more events follow, so that a request that follows live changes pays nothing.
func (r *feedReading) add(page feedPage, paid int, err error) error {
	if err != nil {
		return orNotFound(err, gate.ErrInvalidAPIKey) // without rows, the account is deleted
	}
	r.page = page
	looked := max(page.Looked, int64(len(page.part.Text))*rowsPerToken/gate.PageBytesPerToken)
	r.rest += max(0, looked-int64(paid)*rowsPerToken)
	r.charge(int(r.rest / rowsPerToken))
	if r.rest %= rowsPerToken; !page.More {
		r.rest = 0
	}
	return nil
}

// cost returns the cost of the next page; 0: the caller does not pay it before.
func (r *feedReading) cost() int {
	if !r.page.More || r.page.Looked < rowsPerToken {
		return 0
	}
	return windowCost
}
