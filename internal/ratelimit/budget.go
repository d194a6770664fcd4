package ratelimit

import "sync"

// Budget divides a fixed amount, such as places or bytes, among holders. Each
// holder can take at most its share. A nil Budget is unlimited. It is safe for
// concurrent use.
type Budget[K comparable] struct {
	total, share int64

	mu   sync.Mutex
	used int64
	by   map[K]int64 // has no zero entries
}

// NewBudget returns a Budget of the total amount, of which one holder may take at
// most share. A total of 0 means unlimited.
func NewBudget[K comparable](total, share int64) *Budget[K] {
	if total <= 0 {
		return nil
	}
	return &Budget[K]{total: total, share: share, by: make(map[K]int64)}
}

// Grant is the result of [Budget.Take].
type Grant int

// The results of Take.
const (
	Granted        Grant = iota
	ShareExhausted       // the holder would have more than its share
	Exhausted            // all holders together would have more than the total
)

// Take takes an amount for a holder if the result is Granted. Return it with
// [Budget.Give]. A holder with nothing may exceed its share, and any holder may
// exceed the total while nothing is taken. Otherwise one large amount would wait
// forever.
func (b *Budget[K]) Take(holder K, amount int64) Grant {
	if b == nil || amount == 0 {
		return Granted
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.by[holder]
	switch {
	case has > 0 && has+amount > b.share:
		return ShareExhausted
	case b.used > 0 && b.used+amount > b.total:
		return Exhausted
	}
	b.used += amount
	b.by[holder] = has + amount
	return Granted
}

// Give returns an amount that Take has granted.
func (b *Budget[K]) Give(holder K, amount int64) {
	if b == nil || amount == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= amount
	if b.by[holder] -= amount; b.by[holder] <= 0 {
		delete(b.by, holder)
	}
}
