package auth

import (
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// cacheSize is the maximum number of cached keys, about 500 bytes each. Only existing keys
	// that have not ended are cached, so guesses do not fill the cache.
	cacheSize = 10_000

	// cacheShare is the maximum number of cached keys of one payer. It can have more keys, and
	// would evict those of all others if it used them in turn.
	cacheShare = cacheSize / 4
)

// keyCache has keys by the hashes of their secrets. A payer with its share loses the key that
// was read first.
type keyCache struct {
	*lru.Cache[hash, *cachedKey]

	mu     sync.Mutex                               // held to add and remove keys, but not to get them
	payers map[int64]*simplelru.LRU[hash, struct{}] // the cached keys of each payer
}

func newKeyCache() *keyCache {
	c := &keyCache{payers: map[int64]*simplelru.LRU[hash, struct{}]{}}
	var err error
	if c.Cache, err = lru.NewWithEvict(cacheSize, c.removed); err != nil {
		panic(err) // the size is not positive
	}
	return c
}

// Add adds a key.
func (c *keyCache) Add(secret hash, key *cachedKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	payer := key.identity.Payer()
	own := c.payers[payer]
	if own == nil {
		var err error
		if own, err = simplelru.NewLRU(cacheShare, func(oldest hash, _ struct{}) { c.Cache.Remove(oldest) }); err != nil {
			panic(err) // the size is not positive
		}
		c.payers[payer] = own
	}
	own.Add(secret, struct{}{})
	c.Cache.Add(secret, key)
}

// Remove removes a key.
func (c *keyCache) Remove(secret hash) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Cache.Remove(secret)
}

// removed removes a key from those of its payer. c.mu must be locked.
func (c *keyCache) removed(secret hash, key *cachedKey) {
	payer := key.identity.Payer()
	own := c.payers[payer]
	own.Remove(secret)
	if own.Len() == 0 {
		delete(c.payers, payer)
	}
}
