package report

import (
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"petstore/internal/httpjson"
)

var limitRules = []Rule{
	{
		ID: "limit_slows", Subject: "Limits", Title: "Slow down when RateLimit says that little is left", Guide: "limits#rate",
		situation: "a response whose RateLimit has less than a tenth of the requests left",
		mistake:   "the client got a 429 although RateLimit had said that little was left",
		judge: func(r *Record, f *finding) {
			warned := map[int64]*Exchange{} // by API key: the first of the responses in a row with little left
			for _, e := range r.all {
				switch low := warned[e.APIKeyID]; {
				case e.Code == "rate_limited" && e.isNearLimit():
					if low != nil && low.Ended.Before(e.Began) {
						f.warn(e.ID)
					}
					delete(warned, e.APIKeyID)
				case e.Status == 0: // the response is not there
				case !e.isNearLimit():
					if low != nil {
						f.pass()
					}
					delete(warned, e.APIKeyID)
				case low == nil:
					warned[e.APIKeyID] = e
				}
			}
			f.good += len(warned)
		},
	},
	{
		ID: "limit_no_burst", Subject: "Limits", Title: "Send nothing more while Retry-After of a 429 runs", Guide: "limits#rate",
		situation: "a 429 response with Retry-After",
		mistake:   "the client went on and got more 429 responses",
		judge: func(r *Record, f *finding) {
			refused := map[*client][]*Exchange{}
			for _, e := range r.all {
				if e.Status == 429 {
					refused[e.client] = append(refused[e.client], e)
				}
			}
			for by, all := range refused {
				inProgress := countInProgress(by.all)
				for _, e := range all {
					switch {
					case e.RetryAfter == 0:
					case refusedAfter(all, e) <= mostAround(inProgress, e.index)+tolerableRefusals:
						f.pass()
					default:
						f.warn(e.ID)
					}
				}
			}
			f.escalate(3) // a few parts of the client may each have sent one request
		},
	},
	{
		ID: "limit_count_once", Subject: "Limits", Title: "Count a list once and not with every page", Guide: "lists#counts",
		situation: "a list with Prefer: count=exact",
		mistake:   "the client asked for the count with a later page, which costs ten requests",
		judge: func(r *Record, f *finding) {
			for _, e := range r.all {
				switch {
				case !e.lists() || !httpjson.PrefersCount(http.Header{"Prefer": {e.Prefer}}):
				case e.cursor != "":
					f.warn(e.ID)
				default:
					f.pass()
				}
			}
		},
	},
}

// tolerableRefusals is the number of 429 responses that a client may get after the first: it has
// had a few requests to send already.
const tolerableRefusals = 2

// refusedAfter counts the requests that were refused while Retry-After of one of them ran.
func refusedAfter(refused []*Exchange, e *Exchange) int {
	from := sort.Search(len(refused), func(i int) bool { return refused[i].Began.After(e.Ended) })
	until := sort.Search(len(refused), func(i int) bool { return !refused[i].Began.Before(e.Ended.Add(tolerated(e.RetryAfter))) })
	return until - from
}

// neighbors is the number of requests before and after a 429 that show how parallel the client is.
const neighbors = 50

// countInProgress counts, for each request of a client, the earlier ones that ran when it began.
func countInProgress(all []*Exchange) []int {
	counts := make([]int, len(all))
	for i, e := range all {
		for _, other := range all[max(0, i-2*neighbors):i] {
			if other.Ended.After(e.Began) {
				counts[i]++
			}
		}
	}
	return counts
}

// mostAround returns how many other parts of the client may not know of a 429 yet: the number
// of requests that ran at the same time as one of the requests around it.
func mostAround(inProgress []int, index int) int {
	return slices.Max(inProgress[max(0, index-neighbors):min(len(inProgress), index+neighbors)])
}

// isNearLimit reports whether the API key had less than a tenth left after the request. The other limits
// count the requests of other clients too.
func (e *Exchange) isNearLimit() bool {
	const part, policy = 10, `"key"`
	return parameters(e.RateLimit, "r")[policy]*part < parameters(e.RateLimitPolicy, "q")[policy]
}

// parameters returns a parameter of each element of a structured list, such as "key";r=99;t=1.
func parameters(list, name string) map[string]int {
	values := map[string]int{}
	for element := range strings.SplitSeq(list, ",") {
		label, rest, _ := strings.Cut(strings.TrimSpace(element), ";")
		for parameter := range strings.SplitSeq(rest, ";") {
			if text, found := strings.CutPrefix(strings.TrimSpace(parameter), name+"="); found {
				values[label], _ = strconv.Atoi(text)
			}
		}
	}
	return values
}

// parseRetryAfter reads the header Retry-After of the server, which is in seconds; 0: none.
func parseRetryAfter(text string) time.Duration {
	seconds, _ := strconv.Atoi(text)
	return time.Duration(seconds) * time.Second
}
