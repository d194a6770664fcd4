// Package ratelimit limits how often each of very many may do something. It
// knows no HTTP.
package ratelimit

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// maxBuckets bounds the buckets of a Limiter, some 150 bytes each. The one least
// recently asked is forgotten first, which gives its tokens back; so that this
// helps anybody, more than these must ask within the time that a bucket takes
// to fill up.
const maxBuckets = 65_536

// Limit is how often something may be done: Burst times at once, and PerMinute
// times a minute in the long run. The zero Limit is none.
type Limit struct{ PerMinute, Burst int }

// Limiter has a token bucket for each key. Nil limits nothing. It is safe for
// concurrent use.
type Limiter[K comparable] struct {
	interval time.Duration // in which a bucket gains a token
	capacity time.Duration // in which an empty bucket fills up
	now      func() time.Time
	began    time.Time

	mu sync.Mutex
	// fullAt is when each bucket is full, counted from the beginning: all that
	// there is to know of one (the generic cell rate algorithm). A bucket that is
	// not here is full.
	fullAt *simplelru.LRU[K, time.Duration]
}

// New returns a Limiter by this clock; nil for the zero Limit. All buckets are full.
func New[K comparable](limit Limit, now func() time.Time) *Limiter[K] {
	if limit.PerMinute <= 0 {
		return nil
	}
	fullAt, err := simplelru.NewLRU[K, time.Duration](maxBuckets, nil)
	if err != nil {
		panic(err) // the size is not positive
	}
	interval := time.Minute / time.Duration(limit.PerMinute)
	return &Limiter[K]{
		interval: interval,
		capacity: interval * time.Duration(limit.Burst),
		now:      now,
		began:    now(),
		fullAt:   fullAt,
	}
}

// Bucket is the state of a bucket after Take.
type Bucket struct {
	Taken bool          // whether the tokens were there and have been taken
	Left  int           // tokens that are left
	Full  time.Duration // until the bucket is full
	Wait  time.Duration // until the tokens are there, where they were not
}

// Take takes a number of tokens out of the key's bucket, all of them or none. A
// cost above the capacity is the capacity.
func (l *Limiter[K]) Take(key K, cost int) Bucket {
	if l == nil {
		return Bucket{Taken: true}
	}
	now := l.now().Sub(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	fullAt, _ := l.fullAt.Get(key)
	// Who read the clock before another, and comes after, is a moment behind.
	missing := min(max(fullAt-now, 0), l.capacity)
	price := min(l.interval*time.Duration(cost), l.capacity)
	if wait := missing + price - l.capacity; wait > 0 {
		return Bucket{Left: int((l.capacity - missing) / l.interval), Full: missing, Wait: wait}
	}
	missing += price
	l.fullAt.Add(key, now+missing)
	return Bucket{Taken: true, Left: int((l.capacity - missing) / l.interval), Full: missing}
}

// Empty reports whether the key's bucket has no token to take, and takes none.
func (l *Limiter[K]) Empty(key K) bool {
	if l == nil {
		return false
	}
	now := l.now().Sub(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	fullAt, _ := l.fullAt.Get(key)
	return fullAt-now+l.interval > l.capacity
}

// Capacity is the time in which an empty bucket fills up.
func (l *Limiter[K]) Capacity() time.Duration { return l.capacity }

// Network is by what the holder of an address is known: an IPv4 address itself,
// and of an IPv6 address the 64 bits that its holder cannot choose.
func Network(addr netip.Addr) netip.Addr {
	const bits = 64
	addr = addr.Unmap().WithZone("")
	if !addr.Is6() {
		return addr
	}
	return netip.PrefixFrom(addr, bits).Masked().Addr()
}
