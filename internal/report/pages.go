package report

import (
	"net/url"
	"strings"
	"time"
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
				link, known := links[cursor]
				switch {
				case !known && r.Incomplete: // the page before may be missing
				case !known && e.Code != "invalid_cursor": // another key may have got it
				case known && sameQuery(link, e.query()):
					f.pass()
				case known && e.Code == "invalid_cursor": // page_filters tells
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
				_, known := links[query.Get("cursor")]
				switch {
				case !query.Has("cursor") || !e.lists() || !known:
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
		judge: func(r *Record, f *finding) {
			for _, e := range r.all {
				if !e.lists() || e.Status != 200 || !e.query().Has("cursor") || nextLink(e.Link) != nil {
					continue
				}
				next := r.next(e)
				const atOnce = 10 * time.Second
				if next != nil && next.Path == e.Path && next.RawQuery == e.RawQuery && next.Began.Sub(e.Ended) < atOnce && !next.Began.Before(e.Ended) {
					f.warn(next.ID)
				} else {
					f.pass()
				}
			}
			f.escalate(2) // one may be a test
		},
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

// links returns the queries of all links to pages in the record, by cursor.
func (r *Record) links() map[string]url.Values {
	links := map[string]url.Values{}
	for _, e := range r.all {
		if next := nextLink(e.Link); next != nil {
			links[next.Query().Get("cursor")] = next.Query()
		}
	}
	return links
}

// nextLink returns the link rel="next" in a header, or nil.
func nextLink(header string) *url.URL {
	for link := range strings.SplitSeq(header, ",") {
		target, parameters, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(link), "<"), ">")
		if strings.Contains(parameters, `rel="next"`) {
			if next, err := url.Parse(target); err == nil {
				return next
			}
		}
	}
	return nil
}

// sameQuery reports whether two queries have the same parameters, in any order.
func sameQuery(a, b url.Values) bool { return a.Encode() == b.Encode() }
