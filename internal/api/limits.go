package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/httpjson"
	"petstore/internal/ratelimit"
	"petstore/internal/telemetry"
)

// Limits of all requests together, and the share of one account.
const (
	// One account may have at most 1/placesShare of the places for requests, of the
	// bodies being received and of the delayed requests.
	placesShare = 4

	maxArrivingBodies = 512
	maxHeldBodyBytes  = 32 << 20 // of all requests, from the start of the body to the response
	maxDelays         = 512      // requests that wait for an injected delay

	// The page of a client that reads slowly stays in memory.
	maxSendingBytes = 64 << 20
	sendingShare    = 8
)

// limits stop a few clients from using all resources. The key of a budget is the id of
// an account, unless it says otherwise.
type limits struct {
	inProgress *ratelimit.Budget[int64] // requests in progress
	arriving   *ratelimit.Budget[int64] // bodies being received
	bodyBytes  *ratelimit.Budget[int64] // of the bodies of requests in progress
	sending    *ratelimit.Budget[int64] // bytes of pages being sent
	delays     *ratelimit.Budget[int64] // requests that wait for an injected delay
	waits      *ratelimit.Budget[int64] // requests that wait for a change
	streams    *ratelimit.Budget[int64] // streams of events, by API key
	expensive  *expensiveQueries
	keys       *ratelimit.Limiter[int64]
	accounts   *ratelimit.Limiter[int64]
	failures   *ratelimit.Limiter[netip.Addr]
	policy     string // RateLimit-Policy; empty if keys and accounts have no limit
}

func newLimits(options Options) *limits {
	places := int64(options.MaxInFlight)
	l := &limits{
		inProgress: ratelimit.NewBudget[int64](places, max(1, places/placesShare)),
		arriving:   ratelimit.NewBudget[int64](maxArrivingBodies, maxArrivingBodies/placesShare),
		bodyBytes:  ratelimit.NewBudget[int64](maxHeldBodyBytes, maxHeldBodyBytes/placesShare),
		sending:    ratelimit.NewBudget[int64](maxSendingBytes, maxSendingBytes/sendingShare),
		delays:     ratelimit.NewBudget[int64](maxDelays, maxDelays/placesShare),
		waits:      ratelimit.NewBudget[int64](maxWaits, maxWaitsPerAccount),
		streams:    ratelimit.NewBudget[int64](maxStreams, maxStreamsPerKey),
		expensive:  newExpensiveQueries(),
		keys:       ratelimit.New[int64](options.KeyLimit, options.Now),
		accounts:   ratelimit.New[int64](options.AccountLimit, options.Now),
		failures:   ratelimit.New[netip.Addr](options.FailureLimit, options.Now),
	}
	l.policy = l.policyHeader(options)
	return l
}

// reservation is the part of the share of its account that a request uses until it ends.
type reservation struct {
	account   int64
	places    int64
	bodyBytes int64
}

// reservationOf returns the reservation of a request with an API key.
func reservationOf(c *gin.Context) *reservation {
	return c.MustGet(reservationKey).(*reservation) //nolint:forcetypeassert // only authorize sets it
}

// reservePlace counts a request among those in progress.
func (s *Server) reservePlace(c *gin.Context) error {
	r := reservationOf(c)
	if err := grantError(s.limits.inProgress.Take(r.account, 1)); err != nil {
		return err
	}
	r.places++
	return nil
}

// reserveBody reserves memory for a body of up to size bytes. Call arrived after
// reading the body.
func (l *limits) reserveBody(r *reservation, size int64) (arrived func(), err error) {
	if err := grantError(l.arriving.Take(r.account, 1)); err != nil {
		return nil, err
	}
	if err := grantError(l.bodyBytes.Take(r.account, size)); err != nil {
		l.arriving.Give(r.account, 1)
		return nil, err
	}
	r.bodyBytes += size
	return func() { l.arriving.Give(r.account, 1) }, nil
}

// release returns everything that a request has reserved. It may reserve again.
func (l *limits) release(r *reservation) {
	l.inProgress.Give(r.account, r.places)
	l.bodyBytes.Give(r.account, r.bodyBytes)
	r.places, r.bodyBytes = 0, 0
}

// grantError returns the error of a request whose reservation was not granted, or nil.
func grantError(grant ratelimit.Grant) error {
	switch grant {
	case ratelimit.ShareExhausted:
		return errTooManyConcurrent
	case ratelimit.Exhausted:
		return errOverloaded
	default:
		return nil
	}
}

// countRequest counts a request against the limits of its key and its account, or against
// neither, and sets the rate limit headers. The error is [errRateLimited] or
// [errAccountRateLimited]. It is of the limit that the request must wait longer for, which
// countRequest returns too.
func (l *limits) countRequest(header http.Header, identity auth.Identity, cost int) (telemetry.Limit, error) {
	key, account := ratelimit.TakeBoth(l.keys, identity.KeyID, l.accounts, identity.Payer(), cost)
	l.writeRateHeaders(header, key, account)
	switch {
	case account.Wait > key.Wait:
		return telemetry.AccountLimit, errAccountRateLimited.WithRetryAfter(account.Wait)
	case key.Wait > 0:
		return telemetry.KeyLimit, errRateLimited.WithRetryAfter(key.Wait)
	default:
		return "", nil
	}
}

// countFailure counts a failed authentication. It returns the failure, or
// [errTooManyFailures] if the address has exceeded its limit.
func (l *limits) countFailure(c *gin.Context, failure *httpjson.Error) error {
	if l.failures == nil {
		return failure
	}
	if bucket := l.failures.Take(clientNetwork(c), 1); !bucket.Taken {
		c.Set(limitKey, telemetry.AddressLimit)
		return errTooManyFailures.WithRetryAfter(bucket.Wait)
	}
	return failure
}

// overFailureLimit is an [auth.OverLimit].
func (l *limits) overFailureLimit(c *gin.Context) (network netip.Addr, over bool) {
	if l.failures == nil {
		return netip.Addr{}, false
	}
	network = clientNetwork(c)
	return network, l.failures.Empty(network)
}

// clientNetwork returns the network of the client's address. Unparsable addresses
// share one network.
func clientNetwork(c *gin.Context) netip.Addr {
	address, _ := netip.ParseAddr(c.ClientIP())
	return ratelimit.Network(address)
}

// The names of the policies in the rate limit headers.
const (
	keyPolicy     = "key"
	accountPolicy = "account"
)

// policyHeader returns the value of the header RateLimit-Policy
// (draft-ietf-httpapi-ratelimit-headers-11), or "" if there is no limit.
func (l *limits) policyHeader(options Options) string {
	var items []string
	for _, policy := range []struct {
		name    string
		limit   ratelimit.Limit
		limiter *ratelimit.Limiter[int64]
	}{
		{keyPolicy, options.KeyLimit, l.keys},
		{accountPolicy, options.AccountLimit, l.accounts},
	} {
		if policy.limiter != nil {
			items = append(items, fmt.Sprintf("%q;q=%d;w=%d", policy.name, policy.limit.Burst, httpjson.WholeSeconds(policy.limiter.Capacity())))
		}
	}
	return strings.Join(items, ", ")
}

// writeRateHeaders sets the headers RateLimit-Policy and RateLimit, with the limits that
// the server has.
func (l *limits) writeRateHeaders(header http.Header, key, account ratelimit.Bucket) {
	if l.policy == "" {
		return
	}
	const longest = len(`"key";r=1000000;t=1000000, "account";r=1000000;t=1000000`)
	state := make([]byte, 0, longest)
	if l.keys != nil {
		state = appendState(state, keyPolicy, key)
	}
	if l.accounts != nil {
		state = appendState(state, accountPolicy, account)
	}
	header.Set("RateLimit-Policy", l.policy)
	header.Set("RateLimit", string(state))
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
