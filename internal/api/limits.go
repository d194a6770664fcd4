package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/ratelimit"
)

// What all requests together may hold, and what one account may hold of it.
const (
	// placesShare of the places belongs to one account at most, and as much of what
	// arrives.
	placesShare = 4

	maxArrivingBodies = 512
	maxHeldBodyBytes  = 32 << 20 // of all requests, from the arrival of the body to the response

	// A client that reads slowly or not at all holds its page in memory.
	maxSendingBytes = 64 << 20
	sendingShare    = 8
)

// limits keep a few clients from taking everything there is. What accounts hold is
// counted by the id of the account.
type limits struct {
	inProgress *ratelimit.Budget[int64] // requests that are being handled
	arriving   *ratelimit.Budget[int64] // bodies that are being received
	bodyBytes  *ratelimit.Budget[int64] // of requests that have not ended
	sending    *ratelimit.Budget[int64] // bytes of pages that are being sent
	expensive  *expensiveQueries
	keys       *ratelimit.Limiter[int64]
	failures   *ratelimit.Limiter[netip.Addr]
	told       *toldLimit // of keys; nil when they have none
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
		l.told = tell(options.KeyLimit.Burst, l.keys.Capacity())
	}
	return l
}

// held is what a request holds of the shares of its account, until it ends.
type held struct {
	account   int64
	places    int64
	bodyBytes int64
}

// heldBy is what a request with an API key holds.
func heldBy(c *gin.Context) *held {
	return c.MustGet(heldKey).(*held) //nolint:forcetypeassert // set by admit alone
}

// enter takes a place among the requests in progress for a request.
func (s *Server) enter(c *gin.Context) error {
	h := heldBy(c)
	if err := refusal(s.limits.inProgress.Take(h.account, 1)); err != nil {
		return err
	}
	h.places++
	return nil
}

// expectBody makes room for a body of up to this size, in bytes. The function that
// it returns must be called when the body is there.
func (l *limits) expectBody(h *held, size int64) (arrived func(), err error) {
	if err := refusal(l.arriving.Take(h.account, 1)); err != nil {
		return nil, err
	}
	if err := refusal(l.bodyBytes.Take(h.account, size)); err != nil {
		l.arriving.Give(h.account, 1)
		return nil, err
	}
	h.bodyBytes += size
	return func() { l.arriving.Give(h.account, 1) }, nil
}

// release gives back everything that a request holds.
func (l *limits) release(h *held) {
	l.inProgress.Give(h.account, h.places)
	l.bodyBytes.Give(h.account, h.bodyBytes)
}

// refusal is the error of a request that gets no share; nil when it gets one.
func refusal(grant ratelimit.Grant) error {
	switch grant {
	case ratelimit.ShareExhausted:
		return errTooManyConcurrent
	case ratelimit.Exhausted:
		return errOverloaded
	default:
		return nil
	}
}

// count counts a request of a key, and tells in the header how many more it may send.
func (l *limits) count(header http.Header, key auth.Identity, cost int) error {
	bucket := l.keys.Take(key.KeyID, cost)
	if l.told != nil {
		l.told.write(header, bucket)
	}
	if !bucket.Taken {
		return errRateLimited.after(bucket.Wait)
	}
	return nil
}

// countFailure counts a failed authentication, and returns what is to be
// answered: the failure, or that there were too many from this address.
func (l *limits) countFailure(c *gin.Context, failure *problem) error {
	if l.failures == nil {
		return failure
	}
	if bucket := l.failures.Take(clientNetwork(c), 1); !bucket.Taken {
		return errTooManyFailures.after(bucket.Wait)
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

// toldLimit tells of the limit of a key in the fields RateLimit-Policy and
// RateLimit (draft-ietf-httpapi-ratelimit-headers-11). Both have few values, and
// each is made once.
type toldLimit struct {
	burst  int
	policy []string
	// states has the RateLimit field of each state of a bucket, by the tokens
	// gone and the seconds until it is full. Both rise together, so their sum
	// stands for one state alone.
	states []atomic.Pointer[[]string]
}

// maxToldStates bounds the fields that are kept; the default limit has 111.
const maxToldStates = 10_000

func tell(burst int, capacity time.Duration) *toldLimit {
	return &toldLimit{
		burst:  burst,
		policy: []string{fmt.Sprintf(`"key";q=%d;w=%d`, burst, wholeSeconds(capacity))},
		states: make([]atomic.Pointer[[]string], min(burst+wholeSeconds(capacity)+1, maxToldStates)),
	}
}

func (t *toldLimit) write(header http.Header, bucket ratelimit.Bucket) {
	// Assigned under their canonical names: Set would allocate.
	header["Ratelimit-Policy"] = t.policy
	header["Ratelimit"] = t.state(bucket.Left, wholeSeconds(bucket.Full))
}

// state is the RateLimit field of a bucket.
func (t *toldLimit) state(left, full int) []string {
	i := t.burst - left + full
	if i < len(t.states) {
		if made := t.states[i].Load(); made != nil {
			return *made
		}
	}
	field := []string{`"key";r=` + strconv.Itoa(left) + `;t=` + strconv.Itoa(full)}
	if i < len(t.states) {
		t.states[i].Store(&field)
	}
	return field
}

// wholeSeconds is a duration in seconds, rounded up.
func wholeSeconds(d time.Duration) int {
	return int((d + time.Second - 1) / time.Second)
}
