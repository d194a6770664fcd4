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

// limits are what keeps a few clients from taking all there is (sections 3 and
// 7 of the contract).
type limits struct {
	inFlight chan struct{} // nil: as many as come
	sending  atomic.Int64  // bytes of pages that are being sent
	keys     *ratelimit.Limiter[int64]
	failures *ratelimit.Limiter[netip.Addr]
	told     *toldLimit // of keys; nil when they have none
}

func newLimits(options Options) *limits {
	l := &limits{
		keys:     ratelimit.New[int64](options.KeyLimit, options.Now),
		failures: ratelimit.New[netip.Addr](options.FailureLimit, options.Now),
	}
	if options.MaxInFlight > 0 {
		l.inFlight = make(chan struct{}, options.MaxInFlight)
	}
	if l.keys != nil {
		l.told = tell(options.KeyLimit.Burst, l.keys.Capacity())
	}
	return l
}

// enter takes a place among the requests in flight, which leave gives back, or
// says that there is none.
func (l *limits) enter() error {
	if l.inFlight == nil {
		return nil
	}
	select {
	case l.inFlight <- struct{}{}:
		return nil
	default:
		return errOverloaded
	}
}

func (l *limits) leave() {
	if l.inFlight != nil {
		<-l.inFlight
	}
}

// maxSending bounds the bytes of pages that are being sent. A client that reads
// slowly or not at all holds its page in memory, and a page may have 3 MB.
const maxSending = 64 << 20

// send makes room for a page that is to be sent, which sent gives back, or says
// that there is none.
func (l *limits) send(bytes int) error {
	if l.sending.Add(int64(bytes)) > maxSending {
		l.sent(bytes)
		return errOverloaded
	}
	return nil
}

func (l *limits) sent(bytes int) { l.sending.Add(-int64(bytes)) }

// count counts a request of a key, and tells in the header how many more it may send.
func (l *limits) count(header http.Header, key auth.Identity) error {
	bucket := l.keys.Take(key.KeyID)
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
	if bucket := l.failures.Take(clientNetwork(c)); !bucket.Taken {
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
