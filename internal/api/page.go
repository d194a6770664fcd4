package api

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/internal/admission"
	"petstore/internal/casefold"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// The size of a page. The parameter limit in openapi.yaml has both.
const (
	defaultLimit = 50
	maxLimit     = 200
)

// last comes after all items of an ascending order, and the zero position before them.
var last = httpjson.Position{Key: casefold.Beyond, ID: math.MaxInt64}

// page is the page of a list that a request asks for. It outlives the request, because
// other requests may share the query.
type page struct {
	url    *url.URL
	path   string // the path pattern
	limit  int
	sort   string
	cursor string
	// after is the position of the last item of the previous page, or the position
	// before the first item.
	after   httpjson.Position
	account int64 // whose items the list has
	payer   int64 // against whose limits the request counts
	// counted is whether the client prefers an exact count of the items of all pages.
	counted bool
	zipped  bool // whether the client prefers gzip
	// id identifies the list. It is empty until listID is called.
	id string
}

// newPage reads limit, cursor, sort and Prefer.
func newPage(c *gin.Context, params *httpjson.Params, usual int, s sorts) *page {
	p := &page{url: c.Request.URL, path: c.FullPath(), limit: usual, account: gate.Caller(c).AccountID, payer: gate.Caller(c).Payer(), counted: httpjson.PrefersCount(c.Request.Header), zipped: httpjson.PrefersGzip(c.Request.Header)}
	if limit := params.Integer("limit", 1, maxLimit); limit != nil {
		p.limit = int(*limit)
	}
	p.cursor, _ = params.Value("cursor")
	p.sort = readSort(params, s)
	if p.descending() {
		p.after = last
	}
	return p
}

// descending reports whether the order is descending.
func (p *page) descending() bool { return strings.HasPrefix(p.sort, "-") }

// byName reports whether the order is by name.
func (p *page) byName() bool { return strings.HasSuffix(p.sort, "name") }

// byID reports whether the order is by id.
func (p *page) byID() bool { return strings.HasSuffix(p.sort, "id") }

// startWithin starts an order by key at a bound of the range.
func (p *page) startWithin(from, until string) {
	switch {
	case p.byID():
	case p.descending():
		p.after = httpjson.Position{Key: until} // the range excludes it, and ids are positive
	default:
		p.after = httpjson.Position{Key: from}
	}
}

// queryLimit returns the number of rows to query: one more than the page has, which
// shows whether another page follows.
func (p *page) queryLimit() int32 { return int32(p.limit) + 1 } //nolint:gosec // at most maxLimit

// applyCursor moves the page to the position of its cursor, if it has one. It comes after
// all checks of the input, because it may need the database. A second call has no effect. The
// error is [httpjson.ErrInvalidCursor] or comes from the database.
func (s *Server) applyCursor(ctx context.Context, p *page) error {
	if p.cursor == "" {
		return nil
	}
	key, err := s.gate.SigningKey(ctx)
	if err != nil {
		return err
	}
	after, ok := httpjson.OpenCursor(key, p.listID(), p.cursor)
	if !ok {
		return httpjson.ErrInvalidCursor
	}
	p.after, p.cursor = after, ""
	return s.gate.ContinueWalk(ctx, after.Token)
}

// list has the parts in which lists differ.
type list[Row, Item any] struct {
	// find returns the rows of a page and the row after it, if there is one.
	find func(context.Context) ([]Row, error)
	// count counts the rows of all pages.
	count func(context.Context) (int64, error)
	// inVain is whether find may read all rows of a filter and find none that match another.
	// It then counts as an expensive query.
	inVain bool
	// perPlace is how many of such pages share a place of [admission.Reads]; 0: each has one alone.
	// A page takes no part of a place if more than [admission.ReadParts] share it.
	perPlace int64
	item     func(Row) Item
	cursorOf func(Row) httpjson.Position
	// fitting returns the number of rows that the page may have at most; nil: all.
	fitting func([]Row) int
	// The media type of a page whose JSON is not only an array, and the text around the array.
	contentType, prefix, suffix string
}

// pageKey names a page of a list in the form in which it is sent.
type pageKey struct {
	account          int64
	uri, contentType string
	zipped           bool
}

// writePage sends a page of a list, unless a parameter of the request is invalid. Concurrent requests for
// the same page share it.
func writePage[Row, Item any](s *Server, c *gin.Context, params *httpjson.Params, p *page, l list[Row, Item]) error {
	if err := params.Err(); err != nil {
		return err
	}
	ctx := c.Request.Context()
	if err := s.applyCursor(ctx, p); err != nil {
		return err
	}
	var total *int64
	if p.counted { // first, because a count may have to wait
		count, err := s.countOf(ctx, p, l.count)
		if err != nil {
			return err
		}
		total = &count
	}
	pages, weight := s.placedReads, admission.ReadParts/max(1, l.perPlace)
	if l.inVain {
		pages, weight = s.counts, 1
	}
	what := pageKey{p.account, p.url.RequestURI(), l.contentType, p.zipped}
	made, err := readPlaced(ctx, pages, placedKey{p.payer, what, weight}, func(ctx context.Context) (gate.Page, error) {
		return readPage(ctx, s, p, l)
	})
	if hasEnded := c.Request.Context().Err() != nil; l.inVain && !p.counted && (err == nil || hasEnded) { // once: the gate may repeat a handler that fails in time
		s.gate.Charge(c, gate.ExpensiveCost-1)
	}
	if err != nil {
		return err
	}
	if err := s.gate.CheckKey(c); err != nil { // the read may have waited
		return err
	}
	made.Total = total
	return s.gate.WritePage(c, made)
}

// countOf returns the number of items of all pages of a list. Concurrent requests of an
// account that differ only in limit, cursor and sort share a count.
func (s *Server) countOf(ctx context.Context, p *page, count func(context.Context) (int64, error)) (int64, error) {
	query := p.url.Query()
	query.Del("sort")
	return readPlaced(ctx, s.counts, placedKey{p.payer, p.itemsID(p.url.Path, query), 1}, count)
}

// readPage reads and encodes a page, with a link to the next one if there is one.
func readPage[Row, Item any](ctx context.Context, s *Server, p *page, l list[Row, Item]) (made gate.Page, err error) {
	postgres.ReaderOf(ctx).ReadEnds() // for the cursor
	rows, err := l.find(ctx)
	if err != nil {
		return made, err
	}
	query := p.url.Query()
	query.Del("cursor")
	made.Links = s.link(p.url.Path, query, "first")
	most := min(len(rows), p.limit)
	if l.fitting != nil {
		most = min(most, l.fitting(rows))
	}
	items, count, err := encodeItems(rows[:most], l.item)
	if err != nil {
		return made, err
	}
	made.Items, made.ContentType = items, l.contentType
	if l.contentType != "" {
		made.Items = slices.Concat([]byte(l.prefix), items, []byte(l.suffix))
	}
	if p.zipped {
		made.Zipped = gate.Compress(made.Items)
	}
	if count < len(rows) {
		key, err := s.gate.SigningKey(ctx)
		if err != nil {
			return made, err
		}
		at := l.cursorOf(rows[count-1])
		at.Token = s.gate.EndOfPage(ctx)
		query.Set("cursor", httpjson.SealCursor(key, p.listID(), at))
		made.Links = s.link(p.url.Path, query, "next") + ", " + made.Links
	}
	return made, nil
}

// maxPageBytes is the maximum size of a page of several items. A page of messages could
// otherwise have 3 MB.
const maxPageBytes = 512 << 10

// encodeItems encodes as many of the rows as fit into a page, but at least one, and
// returns their number.
func encodeItems[Row, Item any](rows []Row, item func(Row) Item) (encoded []byte, count int, err error) {
	encoded = append(make([]byte, 0, usualItem*(len(rows)+1)), '[')
	for ; count < len(rows); count++ {
		before := len(encoded)
		if count > 0 {
			encoded = append(encoded, ',')
		}
		if encoded, err = appendItem(encoded, item(rows[count])); err != nil {
			return nil, 0, err
		}
		if len(encoded) >= maxPageBytes && count > 0 {
			encoded = encoded[:before]
			break
		}
	}
	return append(encoded, ']'), count, nil
}

// link returns a link (RFC 8288) to a page of a list. Without a base URL it is relative
// (RFC 3986, section 4.2).
func (s *Server) link(path string, query url.Values, rel string) string {
	target := url.URL{Path: path, RawQuery: query.Encode()}
	return "<" + s.options.BaseURL + target.RequestURI() + `>; rel="` + rel + `"`
}

// listID identifies the list by its path, account, filters and sort. A cursor is valid
// for one list, whatever the limit.
func (p *page) listID() string {
	if p.id == "" {
		query := p.url.Query()
		query.Set("sort", p.sort)
		p.id = p.itemsID(p.path, query)
	}
	return p.id
}

// itemsID identifies the items of the list at a path by their account and filters.
func (p *page) itemsID(path string, query url.Values) string {
	query.Del("cursor")
	query.Del("limit")
	for name, values := range query {
		query[name] = slices.Compact(slices.Sorted(slices.Values(values)))
	}
	return fmt.Sprintf("%d %s?%s", p.account, path, query.Encode())
}
