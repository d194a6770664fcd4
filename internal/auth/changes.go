package auth

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Channel is the notification channel that announces every change of a key. The payload
// is the id of the key, or accountPayload and the id of an account whose keys all ended or
// whose fault rules changed.
const (
	Channel        = "api_keys"
	accountPayload = "account "
)

// changeSlots is the number of slots for the changes of keys, and of accounts. Keys that
// share a slot are read again together. It is a power of two above cacheSize.
const changeSlots = 1 << 14

// changes numbers the changes of keys. A key that was read before its latest change, or
// while that was announced, must be read again. The memory is constant, however many keys
// change.
type changes struct {
	mu             sync.Mutex
	count          atomic.Uint64
	every          atomic.Uint64 // the latest change of all keys
	keys, accounts [changeSlots]atomic.Uint64
}

// add numbers a change and stores the number.
func (c *changes) add(latest *atomic.Uint64) {
	c.mu.Lock() // the numbers of a slot only grow
	defer c.mu.Unlock()
	latest.Store(c.count.Add(1))
}

func (c *changes) ofKey(id int64) *atomic.Uint64     { return &c.keys[uint64(id)%changeSlots] }     //nolint:gosec // ids are positive
func (c *changes) ofAccount(id int64) *atomic.Uint64 { return &c.accounts[uint64(id)%changeSlots] } //nolint:gosec // ids are positive

// since reports whether a key has changed since the change with the number.
func (c *changes) since(number uint64, key Identity) bool {
	return c.every.Load() > number || c.ofKey(key.KeyID).Load() > number || c.ofAccount(key.AccountID).Load() > number
}

// LatestChange returns the number of the latest change, for [Verifier.IsUnchanged].
func (v *Verifier) LatestChange() uint64 { return v.changes.count.Load() }

// IsUnchanged reports whether no change of an account was announced after the change with the
// number. It returns false if announcements may have been lost.
func (v *Verifier) IsUnchanged(account int64, number uint64) bool {
	return v.changes.every.Load() <= number && v.changes.ofAccount(account).Load() <= number && v.isTrusted(v.now())
}

// Forget makes the Verifier read every key again at its next use. Call it when
// notifications may be lost.
func (v *Verifier) Forget() { v.changes.add(&v.changes.every) }

// ForgetKey makes the Verifier read a key again at its next use. Call it when the key has
// changed.
func (v *Verifier) ForgetKey(id int64) { v.changes.add(v.changes.ofKey(id)) }

// ForgetAccount makes the Verifier read all keys of an account again at their next use.
// Call it when the account has been deleted or its fault rules have changed.
func (v *Verifier) ForgetAccount(id int64) { v.changes.add(v.changes.ofAccount(id)) }

// Heard forgets the keys that the payload of a notification names. It forgets every key
// after any other payload.
func (v *Verifier) Heard(payload string) {
	text, isAccount := strings.CutPrefix(payload, accountPayload)
	id, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		v.Forget()
	case isAccount:
		v.ForgetAccount(id)
	default:
		v.ForgetKey(id)
	}
}
