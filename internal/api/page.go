package api

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gin-gonic/gin"

	"petstore/internal/casefold"
)

const (
	defaultLimit = 50
	maxLimit     = 200
)

// position is a place in the order of a list: of ids, or of keys and then ids. The
// key is that of a name, or a ship date as [keyOfTime] writes it.
type position struct {
	key string
	id  int64
}

// last is where every descending order begins; the zero position is its end.
var last = position{key: casefold.Beyond, id: math.MaxInt64}

// page is the part of a list that is asked for.
type page struct {
	limit  int
	sort   string
	cursor string
	// after is the place where the page before this one ended, or the end from
	// which the order begins.
	after position
	// account is whose list it is; 0: the list is the same for all.
	account int64
	caller  int64 // the account that asks
	// counted is whether the client prefers to be told how many items all pages
	// hold together.
	counted bool
}

// page reads limit, cursor and sort, and whether to count.
func (r *request) page(defaultLimit int, s sorts) *page {
	p := &page{limit: defaultLimit, caller: caller(r.c).AccountID, counted: prefersCount(r.c.Request.Header.Values("Prefer"))}
	if limit := r.queryInteger("limit", 1, maxLimit); limit != nil {
		p.limit = int(*limit)
	}
	p.cursor, _ = r.value("cursor")
	p.sort = r.sort(s)
	if p.descending() {
		p.after = last
	}
	return p
}

// descending reports whether the order runs from the last to the first.
func (p *page) descending() bool { return strings.HasPrefix(p.sort, "-") }

// byName reports whether the order is that of names.
func (p *page) byName() bool { return strings.HasSuffix(p.sort, "name") }

// byID reports whether the order is that of ids.
func (p *page) byID() bool { return strings.HasSuffix(p.sort, "id") }

// within begins an order by keys at the bounds of a range.
func (p *page) within(from, until string) {
	switch {
	case p.byID():
	case p.descending():
		p.after = position{key: until} // which is outside, and ids are positive
	default:
		p.after = position{key: from}
	}
}

// size is how many rows to ask for: one more than the page holds tells whether
// another page follows.
func (p *page) size() int32 { return int32(p.limit) + 1 } //nolint:gosec // at most maxLimit

// turn moves the page to where its cursor points, if it has one. It is the last
// check of a request, and the only one that may need the database.
func (s *Server) turn(c *gin.Context, p *page) error {
	if p.cursor == "" {
		return nil
	}
	key, err := s.cursorKey.get(c.Request.Context())
	if err != nil {
		return err
	}
	after, ok := openCursor(key, p.listing(c.FullPath(), c.Request.URL.Query()), p.cursor)
	if !ok {
		return errInvalidCursor
	}
	p.after = after
	return nil
}

// list is a list, as far as lists differ.
type list[Row, Item any] struct {
	// find gives the rows of a page and, if there is one, the row after it.
	find func(context.Context) ([]Row, error)
	// count counts the rows of all pages.
	count func(context.Context) (int64, error)
	item  func(Row) Item
	place func(Row) position
}

// answerPage sends a page of a list. Requests for the same page that would wait
// for each other share one.
func answerPage[Row, Item any](s *Server, c *gin.Context, p *page, l list[Row, Item]) error {
	if err := s.turn(c, p); err != nil {
		return err
	}
	// The context of gin is another request's when this one has left.
	request, pattern := c.Request, c.FullPath()
	var total int64
	if p.counted { // first, since a count may have to wait
		var err error
		if total, err = s.countOf(request, p, l.count); err != nil {
			return err
		}
	}
	key := fmt.Sprintf("%d %s", p.account, request.URL.RequestURI())
	made, err := s.pages.Do(request.Context(), key, func(ctx context.Context) (madePage, error) {
		return makePage(ctx, s, request, pattern, p, l)
	})
	if err != nil {
		return err
	}
	made.total = total
	return s.answerList(c, made, p.counted)
}

// countOf returns how many items all pages of a list hold. Requests of an account that
// differ in limit, cursor and sort alone share a count, if they would wait for each
// other. It begins when it is the turn of the account.
func (s *Server) countOf(request *http.Request, p *page, count func(context.Context) (int64, error)) (int64, error) {
	query := request.URL.Query()
	query.Del("sort")
	key := fmt.Sprintf("%d %s", p.caller, p.items(request.URL.Path, query))
	return s.counts.Do(request.Context(), key, func(ctx context.Context) (int64, error) {
		end, err := s.limits.expensive.begin(ctx, p.caller)
		if err != nil {
			return 0, err
		}
		defer end()
		return count(ctx)
	})
}

// madePage is a page as it is sent.
type madePage struct {
	items []byte
	links string
	total int64 // set by answerPage, for requests that prefer a count
}

// makePage reads a page and links to the next one, if there is one.
func makePage[Row, Item any](ctx context.Context, s *Server, request *http.Request, pattern string, p *page, l list[Row, Item]) (made madePage, err error) {
	rows, err := l.find(ctx)
	if err != nil {
		return made, err
	}
	made.links = s.link(request, "first", "")
	items, count, err := encodeItems(rows[:min(len(rows), p.limit)], l.item)
	if err != nil {
		return made, err
	}
	made.items = items
	if count < len(rows) {
		key, err := s.cursorKey.get(ctx)
		if err != nil {
			return made, err
		}
		cursor := sealCursor(key, p.listing(pattern, request.URL.Query()), l.place(rows[count-1]))
		made.links = s.link(request, "next", cursor) + ", " + made.links
	}
	return made, nil
}

// maxPageBytes is the maximum size of a page of several items: one of messages could
// otherwise have 3 MB.
const maxPageBytes = 512 << 10

// encodeItems encodes as many of the rows as fit into a page, at least one if there
// is any, and returns how many.
func encodeItems[Row, Item any](rows []Row, item func(Row) Item) (encoded []byte, count int, err error) {
	items := make([]Item, len(rows))
	for i, row := range rows {
		items[i] = item(row)
	}
	for {
		encoded, err = encode(items)
		if err != nil || len(encoded) <= maxPageBytes || len(items) <= 1 {
			return encoded, len(items), err
		}
		items = items[:max(1, len(items)*maxPageBytes/len(encoded))]
	}
}

// link is a link (RFC 8288) to the same list at a cursor, every other parameter kept.
// Without a base URL the target is a relative reference (RFC 3986, section 4.2).
func (s *Server) link(request *http.Request, rel, cursor string) string {
	query := request.URL.Query()
	query.Del("cursor")
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	target := url.URL{Path: request.URL.Path, RawQuery: query.Encode()}
	return fmt.Sprintf(`<%s%s>; rel=%q`, s.base, target.RequestURI(), rel)
}

// listing names the list at a path and whose it is, its filters and its sort, to
// which a cursor is bound. The limit may change from page to page.
func (p *page) listing(path string, query url.Values) string {
	query.Set("sort", p.sort)
	return p.items(path, query)
}

// items names the items of the list at a path: whose they are and the filters that
// they match, whatever the limit and the cursor of the request.
func (p *page) items(path string, query url.Values) string {
	query.Del("cursor")
	query.Del("limit")
	for name, values := range query {
		query[name] = slices.Compact(slices.Sorted(slices.Values(values)))
	}
	return fmt.Sprintf("%d %s?%s", p.account, path, query.Encode())
}

// A cursor is a position and its HMAC-SHA-256 together with the listing, in
// base64 for URLs: 16 bytes of HMAC, the id as a varint, and the key.
const cursorMACLength = 16

func sealCursor(key []byte, listing string, at position) string {
	payload := append(binary.AppendVarint(nil, at.id), at.key...)
	return base64.RawURLEncoding.EncodeToString(append(cursorMAC(key, listing, payload), payload...))
}

// openCursor gives the position of a cursor that sealCursor made for the same listing.
func openCursor(key []byte, listing, cursor string) (at position, ok bool) {
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(sealed) < cursorMACLength || strings.ContainsAny(cursor, "\r\n") { // which decoding skips
		return position{}, false
	}
	mac, payload := sealed[:cursorMACLength], sealed[cursorMACLength:]
	if !hmac.Equal(mac, cursorMAC(key, listing, payload)) {
		return position{}, false
	}
	id, length := binary.Varint(payload)
	if length <= 0 {
		return position{}, false
	}
	return position{key: string(payload[length:]), id: id}, true
}

func cursorMAC(key []byte, listing string, payload []byte) []byte {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%d:%s", len(listing), listing)
	mac.Write(payload)
	return mac.Sum(nil)[:cursorMACLength]
}

// sharedKey is a key that the migration made, read from the database once.
type sharedKey struct {
	read  func(context.Context) ([]byte, error)
	known atomic.Pointer[[]byte]
}

func (k *sharedKey) get(ctx context.Context) ([]byte, error) {
	if key := k.known.Load(); key != nil {
		return *key, nil
	}
	key, err := k.read(ctx)
	if err != nil {
		return nil, err
	}
	k.known.Store(&key)
	return key, nil
}
