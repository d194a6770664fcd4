package report

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"petstore/internal/follow"
)

var pageRules = []Rule{
	{
		ID: "page_link", Subject: "Pages", Title: "Follow the URL in Link as it is", Guide: "lists#pages",
		situation: "a page with a cursor",
		mistake:   "the client built the URL of a page instead of following Link",
		judge: func(r *Record, f *finding) {
			links := r.links()
			for _, e := range r.all {
				cursor := e.query().Get("cursor")
				if cursor == "" || !e.lists() {
					continue
				}
				known := links.of(e)
				switch {
				case known == nil && links.has(cursor): // before or after a reset
				case known == nil && r.Incomplete: // the page before may be missing
				case known == nil && e.Code != "invalid_cursor": // another key may have got it
				case slices.ContainsFunc(known, func(query url.Values) bool { return sameQuery(query, e.query()) }):
					f.pass()
				case known != nil && e.Code == "invalid_cursor": // page_filters tells
				default:
					f.warn(e.ID)
				}
			}
		},
	},
	{
		ID: "page_filters", Subject: "Pages", Title: "Use a cursor with the filters that it is for", Guide: "lists#pages",
		situation: "a page with a cursor and filters",
		mistake:   "the client sent a cursor with other filters or another sort",
		judge: func(r *Record, f *finding) {
			links := r.links()
			for _, e := range r.all {
				query := e.query()
				switch {
				case !query.Has("cursor") || !e.lists() || links.of(e) == nil:
				case e.Code == "invalid_cursor":
					f.warn(e.ID)
				case len(query) > 1 && e.succeeded():
					f.pass()
				}
			}
			f.escalate(2) // one may be a test
		},
	},
	{
		ID: "page_end", Subject: "Pages", Title: "End at the page without a next link", Guide: "lists#pages",
		situation: "the last page of a list with several",
		mistake:   "the client read the last page again instead of ending",
		judge:     judgeEnds,
	},
	{
		ID: "page_size", Subject: "Pages", Title: "Ask for at most as many items as a page can have", Guide: "lists#pages",
		situation: "a list with limit",
		mistake:   "the client sent a limit that the server does not accept",
		judge: func(r *Record, f *finding) {
			r.judgeHabit(f, func(e *Exchange) (relevant, wrong bool) { return e.query().Has("limit"), e.rejectsParameter("limit") })
		},
	},
}

// judgeEnds finds last pages that a client read again at once. Several parts of the client may walk
// through a list. So the page may be read as often as the client got a link to it.
func judgeEnds(r *Record, f *finding) {
	type page struct {
		client client
		place  cursorPlace
		path   string
	}
	links, reads := map[page]int{}, map[page]int{}
	for _, e := range r.all {
		if !e.lists() || e.Status != 200 || e.IfNoneMatch != "" { // with it, the client checks for a change
			continue
		}
		if next := e.next(); next != nil {
			links[page{e.client(), cursorPlace{e.episode, next.Query().Get("cursor")}, e.Path}]++
			continue
		}
		if !e.query().Has("cursor") {
			continue
		}
		last := page{e.client(), e.cursorPlace(), e.Path}
		reads[last]++
		const atOnce = 10 * time.Second
		before := r.at(e, -1)
		if before != nil && before.Path == e.Path && before.RawQuery == e.RawQuery && before.episode == e.episode &&
			e.Began.Sub(before.Ended) < atOnce && !e.Began.Before(before.Ended) && reads[last] > max(links[last], 1) {
			f.warn(e.ID)
		} else {
			f.pass()
		}
	}
	f.escalate(2) // one may be a test
}

// cursorPlace is a cursor between two resets.
type cursorPlace struct {
	episode int
	cursor  string
}

func (e *Exchange) cursorPlace() cursorPlace { return cursorPlace{e.episode, e.query().Get("cursor")} }

// pageLinks has the queries of the links to pages. Links with other values of limit may have the
// same cursor.
type pageLinks map[cursorPlace][]url.Values

// links returns all links to pages in the record.
func (r *Record) links() pageLinks {
	links := pageLinks{}
	for _, e := range r.all {
		if next := e.next(); next != nil {
			at := cursorPlace{e.episode, next.Query().Get("cursor")}
			links[at] = append(links[at], next.Query())
		}
	}
	return links
}

// of returns the queries of the links with the cursor of a request, or nil.
func (l pageLinks) of(e *Exchange) []url.Values { return l[e.cursorPlace()] }

// has reports whether there was a link with a cursor at any time.
func (l pageLinks) has(cursor string) bool {
	for at := range l {
		if at.cursor == cursor {
			return true
		}
	}
	return false
}

// next returns the link to the page after the one that an exchange got, or nil.
func (e *Exchange) next() *url.URL { return follow.NextLink(http.Header{"Link": {e.Link}}) }

// sameQuery reports whether two queries have the same parameters, in any order.
func sameQuery(a, b url.Values) bool { return a.Encode() == b.Encode() }
