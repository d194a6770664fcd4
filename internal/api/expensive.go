package api

import (
	"net/http"
	"slices"

	"petstore/internal/httpjson"
)

// expensiveCost is the number of requests that an expensive one counts as. Exact counts
// and the inventory summary read an index entry for every matching row. For 400,000 rows
// that takes 0.33 s of CPU time. A new sandbox and a reset load a sample.
const expensiveCost = 10

const summaryPath = "/store/inventory/summary"

// countedPaths are the lists that support Prefer: count=exact.
var countedPaths = []string{"/categories", "/pets", "/store/orders", "/store/inventory", "/messages", "/account/api-keys", "/sandboxes", webhooksPath, deliveriesPath}

// cost returns the number of requests that a request counts as in the limits of its key
// and its account. Replays and pages of the feed cost more by their size, which
// [limits.charge] takes afterwards.
func (r route) cost(request *http.Request) int {
	switch counted := r.method == http.MethodGet && slices.Contains(countedPaths, r.path); {
	case r.path == summaryPath, counted && httpjson.PrefersCount(request.Header):
		return expensiveCost
	case r.path == resetPath, r.path == sandboxesPath && r.method == http.MethodPost:
		return expensiveCost
	default:
		return 1
	}
}
