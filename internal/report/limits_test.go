package report_test

import (
	"strings"
	"testing"
)

// left is a response with these requests left of 100.
func left(requests string) change {
	return func(e *Exchange) {
		e.RateLimitPolicy, e.RateLimit = `"key";q=100;w=10, "account";q=400;w=10`, `"key";r=`+requests+`;t=9, "account";r=390;t=1`
	}
}

// shared is a response with few requests left to all keys of the account together.
func shared(e *Exchange) {
	left("80")(e)
	e.RateLimit = strings.Replace(e.RateLimit, "390", "0", 1)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	var alone, parallel []Exchange
	for i := range 6 {
		alone = append(alone, x(0.05*float64(i), "GET /pets 429 rate_limited", retryAfter(1)))
		parallel = append(parallel, x(0.001*float64(i), "GET /pets 429 rate_limited", retryAfter(1)))
	}
	run(t, []test{
		about("limit_slows", "until 429", Warning, x(0, "GET /pets 200", left("8")), x(1, "GET /pets 200", left("0")), x(2, "GET /pets 429 rate_limited", left("0"))),
		about("limit_slows", "until others cause 429", NotSeen, x(0, "GET /pets 200", shared), x(1, "GET /pets 429 rate_limited", shared)),
		about("limit_slows", "slows until others cause 429", Passed, x(0, "GET /pets 200", left("8")), x(5, "GET /pets 429 rate_limited", shared)),
		about("limit_slows", "slows", Passed, x(0, "GET /pets 200", left("8")), x(5, "GET /pets 200", left("40"))),
		about("limit_slows", "stops", Passed, x(0, "GET /pets 200", left("8"))),
		about("limit_slows", "injected 429", Passed, x(0, "GET /pets 200", left("8")), x(1, "GET /pets 429 injected_fault", left("7"))),
		about("limit_slows", "lost 429", Passed, x(0, "GET /pets 200", left("8")), x(1, "GET /pets 0 rate_limited", left("0"))),
		about("limit_slows", "no warning before", NotSeen, x(0, "GET /pets 200", left("80")), x(1, "GET /pets 429 rate_limited", left("0"))),
		about("limit_slows", "another key", Passed, x(0, "GET /pets 200", left("8")), x(1, "GET /pets 429 rate_limited", left("0"), apiKey(2))),
		about("limit_slows", "no limits", NotSeen, x(0, "GET /pets 200")),

		about("limit_no_burst", "goes on", Failed, alone...),
		about("limit_no_burst", "perhaps in four parts of the client", Warning, alone[:4]...),
		about("limit_no_burst", "in parallel", Passed, parallel...),
		about("limit_no_burst", "waits", Passed, x(0, "GET /pets 429 rate_limited", retryAfter(1)), x(1.1, "GET /pets 200")),
		about("limit_no_burst", "no 429", NotSeen, x(0, "GET /pets 200")),

		about("limit_count_once", "with each page", Warning, x(0, "GET /pets 200", prefer("count=exact")), x(1, "GET /pets?cursor=a 200", prefer("count=exact"))),
		about("limit_count_once", "with a page, in quotes", Warning, x(0, "GET /pets?cursor=a 200", prefer(`respond-async, Count="exact"`))),
		about("limit_count_once", "once", Passed, x(0, "GET /pets 200", prefer("count=exact")), x(1, "GET /pets?cursor=a 200")),
		about("limit_count_once", "never", NotSeen, x(0, "GET /pets 200")),
	})
}
