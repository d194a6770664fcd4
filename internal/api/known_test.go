package api_test

import (
	"context"
	"sync/atomic"
	"testing"

	"petstore/internal/api"
	"petstore/internal/ratelimit"
	"petstore/internal/tools/need"
)

// TestKnown: the server reports each request with a valid API key and tokens, and no other
// one. A key without tokens would otherwise protect connections that send no body.
func TestKnown(t *testing.T) {
	t.Parallel()
	var known atomic.Int64
	count := func(o *api.Options) { o.Known = func(context.Context) { known.Add(1) } }
	p := start(t).with(count)
	for _, test := range []struct {
		key, target string
		status      int
		known       int64
	}{
		{p.key, "/pets", 200, 1},
		{p.key, "/pets/0", 400, 1},
		{"", "/pets", 401, 0},
		{p.key + "x", "/pets", 401, 0},
		{p.key, "/openapi.json", 200, 0},
		{p.key, "/livez", 200, 0},
		{p.key, "/nowhere", 404, 0},
	} {
		known.Store(0)
		p.as(test.key).get(test.target).want(test.status)
		need.Same(t, test.known, known.Load(), "known requests of GET %s with the key %.8q", test.target, test.key)
	}
	limited, _ := p.limited(ratelimit.Limit{PerMinute: 1, Burst: 1}, ratelimit.Limit{}, count)
	known.Store(0)
	limited.get("/pets").want(200)
	limited.get("/pets").want(429)
	limited.post("/pets", object{}).want(429)
	need.Same(t, 1, known.Load(), "known requests of 3 with one token")
}
