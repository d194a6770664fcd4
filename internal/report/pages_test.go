package report_test

import (
	"testing"

	"petstore/internal/report"
)

func TestPages(t *testing.T) {
	t.Parallel()
	first := x(0, "GET /pets?limit=2&status=sold 200", link("/pets?cursor=a&limit=2&status=sold"))
	last := x(1, "GET /pets?limit=2&status=sold&cursor=a 200")
	incomplete := about("page_link", "page before is missing", NotSeen, x(0, "GET /pets?cursor=a 400 invalid_cursor"))
	incomplete.record.Incomplete = true
	reset := about("page_link", "link of before a reset", NotSeen, first, x(2, "GET /pets?limit=2&status=sold&cursor=a 400 invalid_cursor"))
	reset.record.Events = []Event{{At: at(1), Type: report.StoreReset}}
	lastAgain := func(after float64, changes ...change) Exchange {
		return x(after, "GET /pets?limit=2&status=sold&cursor=a 200", changes...)
	}
	run(t, []test{
		about("page_link", "as given", Passed, first, x(1, "GET /pets?cursor=a&limit=2&status=sold 200")),
		about("page_link", "in another order", Passed, first, last),
		about("page_link", "without limit", Warning, first, x(1, "GET /pets?cursor=a&status=sold 200")),
		about("page_link", "invented", Warning, first, x(1, "GET /pets?cursor=page-2 400 invalid_cursor")),
		about("page_link", "two values of limit", Passed, first, x(1, "GET /pets?limit=9&status=sold 200", link("/pets?cursor=a&limit=9&status=sold")), lastAgain(2)),
		reset,
		about("page_link", "one page", NotSeen, first),
		about("page_link", "of another key", NotSeen, x(1, "GET /pets?cursor=b 200")),
		incomplete,

		about("page_filters", "others, twice", Failed, first, x(1, "GET /pets?cursor=a&status=pending 400 invalid_cursor"), x(2, "GET /pets?cursor=a&limit=2 400 invalid_cursor")),
		about("page_filters", "others, once", Warning, first, x(1, "GET /pets?cursor=a&status=pending 400 invalid_cursor")),
		about("page_filters", "others, once, with a lost response", Warning, first, x(1, "GET /pets?cursor=a&status=pending 0 invalid_cursor"), x(2, "GET /pets?cursor=a&status=pending 400 invalid_cursor")),
		about("page_filters", "same", Passed, first, last),
		about("page_filters", "no cursor", NotSeen, first),

		about("page_end", "ends", Passed, first, last, x(2, "GET /pets/1 200")),
		about("page_end", "once more", Warning, first, last, x(2, "GET /pets?limit=2&status=sold&cursor=a 200")),
		about("page_end", "loops", Failed, first, last, x(2, "GET /pets?limit=2&status=sold&cursor=a 200"), x(3, "GET /pets?limit=2&status=sold&cursor=a 200")),
		about("page_end", "two walkers", Passed, first, first, last, lastAgain(2)),
		about("page_end", "checks for a change", Passed, first, last, lastAgain(2, func(e *Exchange) { e.IfNoneMatch = `"a"` })),
		about("page_end", "one page", NotSeen, x(0, "GET /pets 200"), x(1, "GET /pets 200")),

		about("page_size", "always", Failed, x(0, "GET /pets?limit=500 400", violates("limit", "out_of_range")), x(1, "GET /pets?limit=500 400", violates("limit", "out_of_range")), x(2, "GET /pets?limit=500 400", violates("limit", "out_of_range"))),
		about("page_size", "once", Warning, first, x(0, "GET /pets?limit=500 400", violates("limit", "out_of_range"))),
		about("page_size", "allowed", Passed, first),
		about("page_size", "none", NotSeen, x(0, "GET /pets 200")),
	})
}
