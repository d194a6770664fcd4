package report

import (
	"net/http"
	"net/url"
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
				if e.cursor == "" || !e.lists() {
					continue
				}
				known := links[e.cursorPlace()]
				switch {
				case known == nil && links[cursorPlace{anyEpisode, e.cursor}] != nil: // before or after a reset
				case known == nil && r.Incomplete: // the page before may be missing
				case known == nil && e.Code != "invalid_cursor": // another key may have got it
				case known[e.query().Encode()]:
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
				switch {
				case e.cursor == "" || !e.lists() || links[e.cursorPlace()] == nil:
				case e.Code == "invalid_cursor":
					f.warn(e.ID)
				case e.succeeded() && len(e.query()) > 1:
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
		judge:     judgeHabit(func(e *Exchange) (relevant, wrong bool) { return e.hasLimit, e.rejectsParameter("limit") }),
	},
}

// judgeEnds finds last pages that a client read again at once. Several parts of the client may walk
// through a list. So the page may be read as often as the client got a link to it.
func judgeEnds(r *Record, f *finding) {
	links, reads := map[place]int{}, map[place]int{} // by cursor
	for _, e := range r.all {
		if !e.lists() || e.Status != 200 || e.IfNoneMatch != "" { // with it, the client checks for a change
			continue
		}
		if next := e.next(); next != nil {
			links[e.place(next.Query().Get("cursor"))]++
			continue
		}
		if e.cursor == "" {
			continue
		}
		last := e.place(e.cursor)
		reads[last]++
		const atOnce = 10 * time.Second
		before := e.at(-1)
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

// anyEpisode is the episode of a cursor at any time.
const anyEpisode = -1

func (e *Exchange) cursorPlace() cursorPlace { return cursorPlace{e.episode, e.cursor} }

// links returns the queries of all links to pages in the record, sorted. Links with other values of
// limit may have the same cursor.
func (r *Record) links() map[cursorPlace]map[string]bool {
	links := map[cursorPlace]map[string]bool{}
	for _, e := range r.all {
		next := e.next()
		if next == nil {
			continue
		}
		query := next.Query()
		for _, episode := range []int{e.episode, anyEpisode} {
			at := cursorPlace{episode, query.Get("cursor")}
			if links[at] == nil {
				links[at] = map[string]bool{}
			}
			links[at][query.Encode()] = true
		}
	}
	return links
}

// next returns the link to the page after the one that an exchange got, or nil.
func (e *Exchange) next() *url.URL { return follow.NextLink(http.Header{"Link": {e.Link}}) }
