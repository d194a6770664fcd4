// Package ratelimit limits the rate of requests per key, for many keys. It does not
// depend on HTTP.
package ratelimit

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxBuckets is the maximum number of buckets of a Limiter, about 150 bytes each.
// The least recently used bucket is evicted, and its key then starts with a full
// bucket. This gains a key nothing unless more than maxBuckets keys are used within
// the refill time.
const maxBuckets = 65_536

// maxDebt is the number of times its capacity that a bucket may owe. The requests of a burst each need
// a token when they begin, and each may turn out to be an expensive one. A shorter debt would forgive
// most of that, and a longer one would lock out a client for minutes.
const maxDebt = 10

// Limit is a rate: PerMinute in the long run, with bursts of up to Burst. The zero
// Limit means unlimited.
type Limit struct{ PerMinute, Burst int }

// Limiter has a token bucket for each key. A nil Limiter is unlimited. It is safe
// for concurrent use.
type Limiter[K comparable] struct {
	interval time.Duration // to gain one token
	capacity time.Duration // to fill an empty bucket
	now      func() time.Time
	began    time.Time

	mu sync.Mutex
	// fullAt is the time, relative to began, at which each bucket is full. It is
	// the whole state of a bucket (generic cell rate algorithm). Missing buckets
	// are full.
	fullAt *simplelru.LRU[K, time.Duration]
	// queues has the time, relative to began, for which the tokens of each key are promised
	// to requests that were refused.
	queues *simplelru.LRU[K, time.Duration]
}

// New returns a Limiter with full buckets that uses the given clock. It returns nil
// for the zero Limit.
func New[K comparable](limit Limit, now func() time.Time) *Limiter[K] {
	if limit.PerMinute <= 0 {
		return nil
	}
	newStates := func() *simplelru.LRU[K, time.Duration] {
		states, err := simplelru.NewLRU[K, time.Duration](maxBuckets, nil)
		if err != nil {
			panic(err) // the size is not positive
		}
		return states
	}
	interval := time.Minute / time.Duration(limit.PerMinute)
	return &Limiter[K]{
		interval: interval,
		capacity: interval * time.Duration(limit.Burst),
		now:      now,
		began:    now(),
		fullAt:   newStates(),
		queues:   newStates(),
	}
}

// Bucket is the state of a bucket after Take.
type Bucket struct {
	Taken bool          // whether the tokens were there and have been taken
	Left  int           // tokens that are left
	Full  time.Duration // until the bucket is full
	Wait  time.Duration // until the request would be granted; 0 if it was
}

// Take takes cost tokens from the key's bucket, or none. A cost above the capacity
// counts as the capacity.
func (l *Limiter[K]) Take(key K, cost int) Bucket {
	var buckets [1]Bucket
	TakeAll(buckets[:], cost, Claim[K]{Limiter: l, Key: key})
	return buckets[0]
}

// Claim is a key of one of the limiters of [TakeAll].
type Claim[K comparable] struct {
	Limiter *Limiter[K] // nil: unlimited
	Key     K
	now     time.Duration
}

// TakeAll takes cost tokens from a bucket of each claim, or from none if one has too few.
// Then the Wait of a bucket that has enough is 0. It returns the buckets in the given
// slice, which has the length of the claims. The limiters must differ, and all calls must
// pass them in the same order.
func TakeAll[K comparable](buckets []Bucket, cost int, claims ...Claim[K]) {
	enough := true
	for i, claim := range claims {
		if claim.Limiter == nil {
			buckets[i] = Bucket{Taken: true}
			continue
		}
		claim.now = claim.Limiter.elapsed()
		claims[i] = claim
		claim.Limiter.mu.Lock()
		buckets[i] = claim.Limiter.look(claim.Key, cost, claim.now)
		enough = enough && buckets[i].Wait == 0
	}
	for i, claim := range claims {
		if claim.Limiter == nil {
			continue
		}
		if enough {
			buckets[i] = claim.Limiter.take(claim.Key, cost, claim.now)
		}
		claim.Limiter.mu.Unlock()
	}
}

// maxQueue is the maximum time that [Limiter.Queue] returns, unless the bucket owes tokens for longer. A client
// that comes again too early puts off those behind it by no more than this.
const maxQueue = 30 * time.Second

// Queue returns after which time a request that was refused should come again. That is when
// the bucket has tokens for it after those for all requests that were refused before. So
// many clients that wait do not come at once, also after a debt: then they come within the
// time in which the bucket fills up. It takes no token.
func (l *Limiter[K]) Queue(key K, cost int) time.Duration {
	now := l.elapsed()
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := l.look(key, cost, now).Wait
	queue, _ := l.queues.Get(key)
	at, longest := max(now+wait, queue), max(wait, maxQueue)
	if wait > l.price(cost) { // it owes tokens
		longest = max(wait+l.capacity, maxQueue)
	}
	if at > now+longest {
		return longest
	}
	l.queues.Add(key, at+l.price(cost))
	return at - now
}

// Charge takes tokens for work that is done, and returns how many of them the bucket had. If
// it may owe, it owes the others, up to maxDebt times its capacity. A nil Limiter has all of them.
func (l *Limiter[K]) Charge(key K, cost int, mayOwe bool) (had int) {
	if l == nil || cost <= 0 {
		return cost
	}
	now := l.elapsed()
	l.mu.Lock()
	defer l.mu.Unlock()
	had = min(cost, l.left(l.missing(key, now)))
	if !mayOwe {
		cost = had
	}
	l.add(key, l.interval*time.Duration(cost), now)
	return had
}

// Refund gives back what a request has taken beyond another cost, because it did nothing. A nil
// Limiter has taken nothing.
func (l *Limiter[K]) Refund(key K, taken, cost int) {
	if l == nil {
		return
	}
	now := l.elapsed()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(key, l.price(cost)-l.price(taken), now)
}

// elapsed returns the time since the limiter was created.
func (l *Limiter[K]) elapsed() time.Duration { return l.now().Sub(l.began) }

// missing returns the time until the key's bucket is full. That is more than the capacity
// for a bucket that owes tokens. l.mu must be locked.
func (l *Limiter[K]) missing(key K, now time.Duration) time.Duration {
	fullAt, _ := l.fullAt.Get(key)
	// Concurrent calls may read the clock in another order than they get the lock.
	return min(max(fullAt-now, 0), l.mostMissing())
}

// mostMissing returns the time until a bucket is full that owes as much as it can.
func (l *Limiter[K]) mostMissing() time.Duration { return (1 + maxDebt) * l.capacity }

// price returns the time in which a bucket gains the tokens of a request.
func (l *Limiter[K]) price(cost int) time.Duration {
	return min(l.interval*time.Duration(cost), l.capacity)
}

// look returns the state of a bucket before cost tokens are taken. l.mu must be locked.
func (l *Limiter[K]) look(key K, cost int, now time.Duration) Bucket {
	missing := l.missing(key, now)
	return Bucket{Left: l.left(missing), Full: missing, Wait: max(missing+l.price(cost)-l.capacity, 0)}
}

// take takes cost tokens from a bucket that has them. l.mu must be locked.
func (l *Limiter[K]) take(key K, cost int, now time.Duration) Bucket {
	missing := l.add(key, l.price(cost), now)
	return Bucket{Taken: true, Left: l.left(missing), Full: missing}
}

// add adds to the time until a bucket is full, and returns it. l.mu must be locked.
func (l *Limiter[K]) add(key K, price, now time.Duration) (missing time.Duration) {
	missing = min(max(l.missing(key, now)+price, 0), l.mostMissing())
	l.fullAt.Add(key, now+missing)
	return missing
}

// left returns the number of tokens in a bucket that will be full after missing.
func (l *Limiter[K]) left(missing time.Duration) int {
	return int(max(l.capacity-missing, 0) / l.interval)
}

// Empty reports whether the key's bucket has no token. It takes no token.
func (l *Limiter[K]) Empty(key K) bool {
	if l == nil {
		return false
	}
	now := l.elapsed()
	l.mu.Lock()
	defer l.mu.Unlock()
	fullAt, _ := l.fullAt.Get(key)
	return fullAt-now+l.interval > l.capacity
}

// Capacity returns the time in which an empty bucket fills up.
func (l *Limiter[K]) Capacity() time.Duration { return l.capacity }

// Network returns the part of an address that identifies its holder: an IPv4
// address, or the first 64 bits of an IPv6 address, because the holder can choose
// the others.
func Network(addr netip.Addr) netip.Addr {
	const bits = 64
	addr = addr.Unmap().WithZone("")
	if !addr.Is6() {
		return addr
	}
	return netip.PrefixFrom(addr, bits).Masked().Addr()
}
