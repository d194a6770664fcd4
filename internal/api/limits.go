package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/httpjson"
	"petstore/internal/ratelimit"
)

// Limits of all requests together, and the share of one account.
const (
	// One account may have at most 1/placesShare of the places for requests and of the
	// bodies being received.
	placesShare = 4

	maxArrivingBodies = 512
	maxHeldBodyBytes  = 32 << 20 // of all requests, from the start of the body to the response

	// The page of a client that reads slowly stays in memory.
	maxSendingBytes = 64 << 20
	sendingShare    = 8
)

// limits stop a few clients from using all resources. The key of a budget is the id of
// an account.
type limits struct {
	inProgress  *ratelimit.Budget[int64] // requests in progress
	arriving    *ratelimit.Budget[int64] // bodies being received
	bodyBytes   *ratelimit.Budget[int64] // of the bodies of requests in progress
	sending     *ratelimit.Budget[int64] // bytes of pages being sent
	expensive   *expensiveQueries
	keys        *ratelimit.Limiter[int64]
	failures    *ratelimit.Limiter[netip.Addr]
	rateHeaders *rateHeaders // nil if keys have no limit
}

func newLimits(options Options) *limits {
	places := int64(options.MaxInFlight)
	l := &limits{
		inProgress: ratelimit.NewBudget[int64](places, max(1, places/placesShare)),
		arriving:   ratelimit.NewBudget[int64](maxArrivingBodies, maxArrivingBodies/placesShare),
		bodyBytes:  ratelimit.NewBudget[int64](maxHeldBodyBytes, maxHeldBodyBytes/placesShare),
		sending:    ratelimit.NewBudget[int64](maxSendingBytes, maxSendingBytes/sendingShare),
		expensive:  newExpensiveQueries(),
		keys:       ratelimit.New[int64](options.KeyLimit, options.Now),
		failures:   ratelimit.New[netip.Addr](options.FailureLimit, options.Now),
	}
	if l.keys != nil {
		l.rateHeaders = newRateHeaders(options.KeyLimit.Burst, l.keys.Capacity())
	}
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
	h := reservationOf(c)
	if err := grantError(s.limits.inProgress.Take(h.account, 1)); err != nil {
		return err
	}
	h.places++
	return nil
}

// reserveBody reserves memory for a body of up to size bytes. Call arrived after
// reading the body.
func (l *limits) reserveBody(h *reservation, size int64) (arrived func(), err error) {
	if err := grantError(l.arriving.Take(h.account, 1)); err != nil {
		return nil, err
	}
	if err := grantError(l.bodyBytes.Take(h.account, size)); err != nil {
		l.arriving.Give(h.account, 1)
		return nil, err
	}
	h.bodyBytes += size
	return func() { l.arriving.Give(h.account, 1) }, nil
}

// release returns everything that a request has reserved.
func (l *limits) release(h *reservation) {
	l.inProgress.Give(h.account, h.places)
	l.bodyBytes.Give(h.account, h.bodyBytes)
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

// countRequest counts a request of a key and sets the rate limit headers. The error is
// [errRateLimited].
func (l *limits) countRequest(header http.Header, key auth.Identity, cost int) error {
	bucket := l.keys.Take(key.KeyID, cost)
	if l.rateHeaders != nil {
		l.rateHeaders.write(header, bucket)
	}
	if !bucket.Taken {
		return errRateLimited.WithRetryAfter(bucket.Wait)
	}
	return nil
}

// countFailure counts a failed authentication. It returns the failure, or
// [errTooManyFailures] if the address has exceeded its limit.
func (l *limits) countFailure(c *gin.Context, failure *httpjson.Error) error {
	if l.failures == nil {
		return failure
	}
	if bucket := l.failures.Take(clientNetwork(c), 1); !bucket.Taken {
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

// rateHeaders writes the headers RateLimit-Policy and RateLimit of a key
// (draft-ietf-httpapi-ratelimit-headers-11).
type rateHeaders struct{ policy string }

func newRateHeaders(burst int, capacity time.Duration) *rateHeaders {
	return &rateHeaders{policy: fmt.Sprintf(`"key";q=%d;w=%d`, burst, wholeSeconds(capacity))}
}

func (r *rateHeaders) write(header http.Header, bucket ratelimit.Bucket) {
	header.Set("RateLimit-Policy", r.policy)
	header.Set("RateLimit", `"key";r=`+strconv.Itoa(bucket.Left)+`;t=`+strconv.Itoa(wholeSeconds(bucket.Full)))
}

// wholeSeconds returns a duration in seconds, rounded up.
func wholeSeconds(d time.Duration) int {
	return int((d + time.Second - 1) / time.Second)
}
