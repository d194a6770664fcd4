package gate

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/admission"
	"petstore/internal/auth"
	"petstore/internal/httpjson"
	"petstore/internal/ratelimit"
	"petstore/internal/telemetry"
)

// Limits stop a few clients from using all resources. The payer of a pool is an account
// with its sandboxes. Handlers take places of the exported pools.
type Limits struct {
	Counts *admission.Pool // exact counts and other expensive queries
	Locks  *admission.Pool // transactions that may wait for a lock
	Loads  *admission.Pool // new sandboxes and samples, resets and replays
	// Decodings are large bodies that are decoded. Only the gate and tests take these places.
	Decodings *admission.Pool

	requests  *admission.Pool
	bodies    *admission.Pool
	bodyBytes *admission.Pool
	pageBytes *admission.Pool
	delays    *admission.Pool
	longPolls *admission.Pool
	streams   *admission.Pool

	keys      *ratelimit.Limiter[int64]
	accounts  *ratelimit.Limiter[int64] // by payer
	sandboxes *ratelimit.Limiter[int64] // all sandboxes of a payer together
	failures  *ratelimit.Limiter[netip.Addr]
	// The header RateLimit-Policy of requests with a key of an account and of a sandbox. They
	// are nil if nothing is limited. Requests share them: do not modify.
	policy, sandboxPolicy []string
}

// newLimits returns the limits of a server.
func newLimits(options Options, locks *admission.Pool) *Limits {
	ofSandboxes := ratelimit.Limit{PerMinute: halfOf(options.AccountLimit.PerMinute), Burst: halfOf(options.AccountLimit.Burst)}
	l := &Limits{
		requests:  admission.New(admission.Requests.Of(options.MaxInFlight)),
		bodies:    admission.New(ofConnections(admission.Bodies, options.MaxConnections)),
		bodyBytes: admission.New(admission.BodyBytes),
		pageBytes: admission.New(admission.PageBytes),
		delays:    admission.New(ofConnections(admission.Delays, options.MaxConnections)),
		longPolls: admission.New(ofConnections(admission.LongPolls, options.MaxConnections)),
		streams:   admission.New(ofConnections(admission.Streams, options.MaxConnections)),
		Counts:    admission.New(admission.Counts),
		Locks:     locks,
		Loads:     admission.New(admission.Loads),
		Decodings: admission.New(admission.Decodings),
		keys:      ratelimit.New[int64](options.KeyLimit, options.Now),
		accounts:  ratelimit.New[int64](options.AccountLimit, options.Now),
		sandboxes: ratelimit.New[int64](ofSandboxes, options.Now),
		failures:  ratelimit.New[netip.Addr](options.FailureLimit, options.Now),
	}
	l.policy = l.policyHeader(options.KeyLimit, options.AccountLimit)
	l.sandboxPolicy = l.policyHeader(options.KeyLimit, options.AccountLimit, ofSandboxes)
	return l
}

// defaultConnections is the number of connections for which the totals of resources are made.
const defaultConnections = 2000

// ofConnections returns a resource whose parts hold a connection each, for a number of connections. With
// fewer than by default, it has less, so that one payer leaves connections to others.
func ofConnections(r admission.Resource, connections int) admission.Resource {
	return r.Of(max(1, int(r.Total)*min(connections, defaultConnections)/defaultConnections))
}

// halfOf returns half of a number, but not 0 for a positive one, which would mean
// unlimited.
func halfOf(number int) int { return (number + 1) / 2 }

// reservation has the parts of pools that a request holds until it ends.
type reservation struct {
	payer int64
	parts []part
}

// part is a part of a pool.
type part struct {
	pool   *admission.Pool
	weight int64
}

// take takes a part of a pool for the payer of the request.
func (r *reservation) take(ctx context.Context, pool *admission.Pool, weight int64) error {
	if err := pool.Take(ctx, r.payer, weight); err != nil {
		return err
	}
	r.parts = append(r.parts, part{pool, weight})
	return nil
}

// Enter takes a place of a pool for a transaction of a request, and returns what gives the place back. The
// wait for a place of [Limits.Loads] does not count in the time of the request, which a transaction that
// writes many rows may need.
func (g *Gate) Enter(c *gin.Context, pool *admission.Pool) (leave func(), err error) {
	payer, began := requestOf(c).reserved.payer, time.Now()
	if err := pool.Take(c.Request.Context(), payer, 1); err != nil {
		return nil, err
	}
	if pool == g.Limits.Loads { // which also limits the wait
		g.extendDeadline(c, time.Since(began))
	}
	return func() { pool.Give(payer, 1) }, nil
}

// reduce returns what each part of a pool has beyond a weight.
func (r *reservation) reduce(pool *admission.Pool, weight int64) {
	for i := range r.parts {
		if p := &r.parts[i]; p.pool == pool && p.weight > weight {
			pool.Give(r.payer, p.weight-weight)
			p.weight = weight
		}
	}
}

// release returns all parts. The request may take others.
func (r *reservation) release() {
	for _, p := range r.parts {
		p.pool.Give(r.payer, p.weight)
	}
	r.parts = r.parts[:0]
}

// policy is a rate limit that counts requests with a key.
type policy struct {
	name   string // in the headers RateLimit and RateLimit-Policy
	metric telemetry.Limit
	err    *httpjson.Error
}

// policies are the rate limits, in the order of [Limits.claims].
var policies = [...]policy{
	{"key", telemetry.KeyLimit, ErrRateLimited},
	{"account", telemetry.AccountLimit, errAccountRateLimited},
	{"sandboxes", telemetry.SandboxesLimit, errSandboxesRateLimited},
}

// claims returns the buckets against which requests of a caller count.
func (l *Limits) claims(identity auth.Identity) (claims [len(policies)]ratelimit.Claim[int64]) {
	claims[0] = ratelimit.Claim[int64]{Limiter: l.keys, Key: identity.KeyID}
	claims[1] = ratelimit.Claim[int64]{Limiter: l.accounts, Key: identity.Payer()}
	if identity.IsSandbox() {
		claims[2] = ratelimit.Claim[int64]{Limiter: l.sandboxes, Key: identity.Payer()}
	}
	return claims
}

// countRequest counts a request against all limits of its caller, or against none, and sets
// the rate limit headers. The error is of the limit that the request must wait longest
// for, which countRequest returns too.
func (l *Limits) countRequest(header http.Header, identity auth.Identity, cost int) (telemetry.Limit, error) {
	var buckets [len(policies)]ratelimit.Bucket
	claims := l.claims(identity)
	ratelimit.TakeAll(buckets[:], cost, claims[:]...)
	l.writeRateHeaders(header, claims, buckets)
	var refusal policy
	var longest time.Duration
	for i, bucket := range buckets {
		if bucket.Wait == 0 {
			continue
		}
		if wait := max(claims[i].Limiter.Queue(claims[i].Key, cost), bucket.Wait); wait > longest {
			refusal, longest = policies[i], wait
		}
	}
	if longest > 0 {
		return refusal.metric, refusal.err.WithRetryAfter(longest)
	}
	return "", nil
}

// Pay counts work that a request of a caller is about to cause, against all limits of its
// caller or against none. It reports false if the caller must wait, also because it owes tokens.
func (l *Limits) Pay(identity auth.Identity, cost int) bool {
	var buckets [len(policies)]ratelimit.Bucket
	claims := l.claims(identity)
	ratelimit.TakeAll(buckets[:], cost, claims[:]...)
	return buckets[0].Taken && buckets[1].Taken && buckets[2].Taken
}

// Charge counts work that a request has caused, beyond its cost, in the limits of its caller. The headers
// of a response that has not begun include it.
func (g *Gate) Charge(c *gin.Context, cost int) {
	if cost <= 0 {
		return
	}
	g.Limits.charge(Caller(c), cost)
	g.updateRateHeaders(c)
}

// Refund lets an expensive request, which did nothing, cost as much as another one.
func (g *Gate) Refund(c *gin.Context) {
	state := requestOf(c)
	for _, claim := range g.Limits.claims(state.identity) {
		claim.Limiter.Refund(claim.Key, state.route.cost(c.Request), 1)
	}
	g.updateRateHeaders(c)
}

// updateRateHeaders sets the rate limit headers to the present state, unless the response has begun.
func (g *Gate) updateRateHeaders(c *gin.Context) {
	if c.Writer.Written() {
		return
	}
	var buckets [len(policies)]ratelimit.Bucket
	claims := g.Limits.claims(Caller(c))
	ratelimit.TakeAll(buckets[:], 0, claims[:]...)
	g.Limits.writeRateHeaders(c.Writer.Header(), claims, buckets)
}

// charge counts work against all limits of a caller. A bucket that has too few tokens owes them.
// A sandbox makes its account owe nothing, and costs it no more than the sandboxes had, so that
// a test key does not stop production.
func (l *Limits) charge(identity auth.Identity, cost int) {
	l.keys.Charge(identity.KeyID, cost, true)
	if identity.IsSandbox() {
		cost = l.sandboxes.Charge(identity.Payer(), cost, true)
	}
	l.accounts.Charge(identity.Payer(), cost, !identity.IsSandbox())
}

// countFailure counts a failed authentication. It returns the failure, or
// [errTooManyFailures] if the address has exceeded its limit.
func (l *Limits) countFailure(c *gin.Context, failure *httpjson.Error) error {
	if bucket := l.failures.Take(clientNetwork(c), 1); !bucket.Taken {
		requestOf(c).limitReached = telemetry.AddressLimit
		return errTooManyFailures.WithRetryAfter(bucket.Wait)
	}
	return failure
}

// overFailureLimit is an [auth.OverLimit].
func (l *Limits) overFailureLimit(c *gin.Context) (network netip.Addr, over bool) {
	network = clientNetwork(c)
	return network, l.failures.Empty(network)
}

// clientNetwork returns the network of the client's address. Unparsable addresses
// share one network.
func clientNetwork(c *gin.Context) netip.Addr {
	address, _ := netip.ParseAddr(clientIP(c))
	return ratelimit.Network(address)
}

// clientIP returns the address of the client. Of X-Forwarded-For it reads the end, which proxies have
// added.
func clientIP(c *gin.Context) string {
	const name, most = "X-Forwarded-For", 1 << 10
	header := c.Request.Header
	whole := header[name]
	if list := strings.Join(whole, ","); len(list) > most {
		header[name] = []string{list[len(list)-most:]}
		defer func() { header[name] = whole }() // for the record
	}
	return c.ClientIP()
}

// policyHeader returns the value of the header RateLimit-Policy
// (draft-ietf-httpapi-ratelimit-headers-11) for the first policies, or nil if none of them
// limits anything.
func (l *Limits) policyHeader(limits ...ratelimit.Limit) []string {
	var items []string
	for i, limiter := range []*ratelimit.Limiter[int64]{l.keys, l.accounts, l.sandboxes}[:len(limits)] {
		if limiter != nil {
			items = append(items, fmt.Sprintf("%q;q=%d;w=%d", policies[i].name, limits[i].Burst, httpjson.WholeSeconds(limiter.Capacity())))
		}
	}
	if items == nil {
		return nil
	}
	return []string{strings.Join(items, ", ")}
}

// writeRateHeaders sets the headers RateLimit-Policy and RateLimit, with the limits that
// count the request.
func (l *Limits) writeRateHeaders(header http.Header, claims [len(policies)]ratelimit.Claim[int64], buckets [len(policies)]ratelimit.Bucket) {
	policy := l.policy
	if claims[len(claims)-1].Limiter != nil {
		policy = l.sandboxPolicy
	}
	if policy == nil {
		return
	}
	const longest = len(`"key";r=1000000;t=1000000, "account";r=1000000;t=1000000, "sandboxes";r=1000000;t=1000000`)
	state := make([]byte, 0, longest)
	for i, claim := range claims {
		if claim.Limiter != nil {
			state = appendState(state, policies[i].name, buckets[i])
		}
	}
	header["Ratelimit-Policy"] = policy
	header["Ratelimit"] = []string{string(state)}
}

// appendState appends the state of a bucket to a value of the header RateLimit.
func appendState(value []byte, policy string, bucket ratelimit.Bucket) []byte {
	if len(value) > 0 {
		value = append(value, ", "...)
	}
	value = append(value, '"')
	value = append(value, policy...)
	value = append(value, `";r=`...)
	value = strconv.AppendInt(value, int64(bucket.Left), 10)
	value = append(value, ";t="...)
	return strconv.AppendInt(value, int64(httpjson.WholeSeconds(bucket.Full)), 10)
}
