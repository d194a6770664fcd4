package ratelimit_test

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"petstore/internal/ratelimit"
	"petstore/internal/tools/need"
)

// clock is a stopped clock that the test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func (c *clock) move(by time.Duration) { c.at = c.at.Add(by) }

func startClock() *clock { return &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

// TestBucket steps through requests, and through charges before them.
func TestBucket(t *testing.T) {
	t.Parallel()
	const s = time.Second
	type step struct {
		after        time.Duration
		charge, cost int
		want         ratelimit.Bucket
	}
	for name, test := range map[string]struct {
		limit ratelimit.Limit
		steps []step
	}{
		"a burst of three, then one every ten seconds": {ratelimit.Limit{PerMinute: 6, Burst: 3}, []step{
			{0, 0, 1, ratelimit.Bucket{Taken: true, Left: 2, Full: 10 * s}},
			{0, 0, 1, ratelimit.Bucket{Taken: true, Left: 1, Full: 20 * s}},
			{0, 0, 1, ratelimit.Bucket{Taken: true, Left: 0, Full: 30 * s}},
			{0, 0, 1, ratelimit.Bucket{Full: 30 * s, Wait: 10 * s}},
			{4 * s, 0, 1, ratelimit.Bucket{Full: 26 * s, Wait: 6 * s}}, // a rejected request costs nothing
			{6*s - 1, 0, 1, ratelimit.Bucket{Full: 20*s + 1, Wait: 1}},
			{1, 0, 1, ratelimit.Bucket{Taken: true, Left: 0, Full: 30 * s}},
			{15 * s, 0, 1, ratelimit.Bucket{Taken: true, Left: 0, Full: 25 * s}}, // and half a token
			{5 * s, 0, 1, ratelimit.Bucket{Taken: true, Left: 0, Full: 30 * s}},
			{time.Hour, 0, 1, ratelimit.Bucket{Taken: true, Left: 2, Full: 10 * s}}, // never above the capacity
			{-time.Hour, 0, 1, ratelimit.Bucket{Full: 330 * s, Wait: 310 * s}},      // a clock that moves back adds nothing, and takes at most what a bucket can owe
		}},
		"requests that cost several tokens": {ratelimit.Limit{PerMinute: 60, Burst: 10}, []step{
			{0, 0, 4, ratelimit.Bucket{Taken: true, Left: 6, Full: 4 * s}},
			{0, 0, 7, ratelimit.Bucket{Left: 6, Full: 4 * s, Wait: s}},
			{0, 0, 6, ratelimit.Bucket{Taken: true, Left: 0, Full: 10 * s}},
			{3 * s, 0, 50, ratelimit.Bucket{Left: 3, Full: 7 * s, Wait: 7 * s}}, // more than the capacity costs the whole capacity
			{7 * s, 0, 50, ratelimit.Bucket{Taken: true, Left: 0, Full: 10 * s}},
		}},
		"charges, which a bucket may owe up to ten times its capacity": {ratelimit.Limit{PerMinute: 60, Burst: 10}, []step{
			{0, 4, 1, ratelimit.Bucket{Taken: true, Left: 5, Full: 5 * s}},
			{0, 9, 1, ratelimit.Bucket{Full: 14 * s, Wait: 5 * s}},
			{5 * s, 0, 1, ratelimit.Bucket{Taken: true, Full: 10 * s}},
			{0, 35, 1, ratelimit.Bucket{Full: 45 * s, Wait: 36 * s}},
			{0, 1000, 1, ratelimit.Bucket{Full: 110 * s, Wait: 101 * s}},
			{0, 1000, 1, ratelimit.Bucket{Full: 110 * s, Wait: 101 * s}},
			{102 * s, 0, 1, ratelimit.Bucket{Taken: true, Left: 1, Full: 9 * s}},
		}},
	} {
		clock := startClock()
		limiter := ratelimit.New[string](test.limit, clock.now)
		for i, step := range test.steps {
			clock.move(step.after)
			limiter.Charge("a", step.charge, true)
			if step.cost == 1 && limiter.Empty("a") == step.want.Taken {
				t.Errorf("%s: step %d: wrong result of Empty", name, i)
			}
			need.Same(t, step.want, limiter.Take("a", step.cost), "%s: step %d", name, i)
		}
		if limiter.Empty("b") || !limiter.Take("b", 1).Taken {
			t.Errorf("%s: another key was rejected", name)
		}
		if got, want := limiter.Capacity(), time.Minute*time.Duration(test.limit.Burst)/time.Duration(test.limit.PerMinute); got != want {
			t.Errorf("%s: an empty bucket fills up in %s, want %s", name, got, want)
		}
	}
}

// TestChargeWithoutDebt checks that a bucket that may not owe gives what it has.
func TestChargeWithoutDebt(t *testing.T) {
	t.Parallel()
	limiter := ratelimit.New[string](ratelimit.Limit{PerMinute: 60, Burst: 10}, startClock().now)
	var none *ratelimit.Limiter[string]
	for cost, test := range map[int]struct {
		limiter *ratelimit.Limiter[string]
		had     int
		left    int
	}{4: {limiter, 4, 5}, 40: {limiter, 10, 0}, 400: {none, 400, 0}} {
		key := strconv.Itoa(cost)
		if had := test.limiter.Charge(key, cost, false); had != test.had {
			t.Errorf("a bucket that may not owe had %d tokens for %d, want %d", had, cost, test.had)
		}
		if left := test.limiter.Take(key, 1).Left; left != test.left {
			t.Errorf("%d tokens are left after a charge of %d, want %d", left, cost, test.left)
		}
	}
}

// TestRefund checks that a request that did nothing gets back what it has taken beyond a cost, and no more than
// the capacity.
func TestRefund(t *testing.T) {
	t.Parallel()
	for burst, want := range map[int]int{20: 19, 5: 4} { // 10 tokens count as the capacity
		clock := startClock()
		limiter := ratelimit.New[string](ratelimit.Limit{PerMinute: 60, Burst: burst}, clock.now)
		limiter.Take("a", 10)
		limiter.Refund("a", 10, 1)
		if left := limiter.Take("a", 0).Left; left != want {
			t.Errorf("%d of %d tokens are left, want %d", left, burst, want)
		}
		limiter.Take("a", 4)
		clock.move(time.Hour)
		limiter.Refund("a", 4, 1)
		if left := limiter.Take("a", 0).Left; left != burst {
			t.Errorf("a full bucket of %d has %d tokens after a refund", burst, left)
		}
	}
	var none *ratelimit.Limiter[string]
	none.Refund("a", 10, 1)
}

// takeBoth takes tokens from a bucket of each of two limiters.
func takeBoth(keys *ratelimit.Limiter[string], key string, accounts *ratelimit.Limiter[string], account string, cost int) (ofKey, ofAccount ratelimit.Bucket) {
	var buckets [2]ratelimit.Bucket
	ratelimit.TakeAll(buckets[:], cost, ratelimit.Claim[string]{Limiter: keys, Key: key}, ratelimit.Claim[string]{Limiter: accounts, Key: account})
	return buckets[0], buckets[1]
}

// TestTakeAll checks that a call takes from all buckets or from none.
func TestTakeAll(t *testing.T) {
	t.Parallel()
	clock := startClock()
	keys := ratelimit.New[string](ratelimit.Limit{PerMinute: 60, Burst: 3}, clock.now)
	accounts := ratelimit.New[string](ratelimit.Limit{PerMinute: 120, Burst: 5}, clock.now)
	const s = time.Second
	type buckets struct{ Key, Account ratelimit.Bucket }
	for i, step := range []struct {
		after   time.Duration
		key     string
		account string
		cost    int
		want    buckets
	}{
		{0, "a", "1", 2, buckets{ratelimit.Bucket{Taken: true, Left: 1, Full: 2 * s}, ratelimit.Bucket{Taken: true, Left: 3, Full: s}}},
		{0, "a", "1", 2, buckets{ratelimit.Bucket{Left: 1, Full: 2 * s, Wait: s}, ratelimit.Bucket{Left: 3, Full: s}}}, // only the key has too few
		{0, "b", "1", 3, buckets{ratelimit.Bucket{Taken: true, Left: 0, Full: 3 * s}, ratelimit.Bucket{Taken: true, Left: 0, Full: 5 * s / 2}}},
		{0, "c", "1", 1, buckets{ratelimit.Bucket{Left: 3, Full: 0}, ratelimit.Bucket{Left: 0, Full: 5 * s / 2, Wait: s / 2}}}, // only the account has too few
		{0, "b", "1", 1, buckets{ratelimit.Bucket{Left: 0, Full: 3 * s, Wait: s}, ratelimit.Bucket{Left: 0, Full: 5 * s / 2, Wait: s / 2}}},
		{0, "c", "2", 3, buckets{ratelimit.Bucket{Taken: true, Left: 0, Full: 3 * s}, ratelimit.Bucket{Taken: true, Left: 2, Full: 3 * s / 2}}},
		{s, "a", "1", 2, buckets{ratelimit.Bucket{Taken: true, Left: 0, Full: 3 * s}, ratelimit.Bucket{Taken: true, Left: 0, Full: 5 * s / 2}}},
	} {
		clock.move(step.after)
		key, account := takeBoth(keys, step.key, accounts, step.account, step.cost)
		need.Same(t, step.want, buckets{key, account}, "step %d", i)
	}
	var none *ratelimit.Limiter[string]
	if key, account := takeBoth(keys, "new", none, "1", 1); !key.Taken || key.Left != 2 || !account.Taken {
		t.Errorf("without a limit per account: %+v, %+v", key, account)
	}
	if first, account := takeBoth(none, "1", accounts, "3", 1); !first.Taken || account.Left != 4 {
		t.Errorf("without a limit per key: %+v, %+v", first, account)
	}
}

// TestRaceForAll: concurrent callers with different keys of one account get exactly
// the tokens of the account, and a refused call takes no token of its key.
func TestRaceForAll(t *testing.T) {
	t.Parallel()
	const burst, askers, times = 20_000, 8, 10_000
	clock := startClock()
	keys := ratelimit.New[string](ratelimit.Limit{PerMinute: 1, Burst: times}, clock.now)
	accounts := ratelimit.New[string](ratelimit.Limit{PerMinute: 1, Burst: burst}, clock.now)
	var group sync.WaitGroup
	var taken [askers]int
	for asker := range askers {
		group.Go(func() {
			for range times {
				if key, _ := takeBoth(keys, strconv.Itoa(asker), accounts, "1", 1); key.Taken {
					taken[asker]++
				}
			}
		})
	}
	group.Wait()
	total := 0
	for asker, count := range taken {
		total += count
		if left := keys.Take(strconv.Itoa(asker), 0).Left; left != times-count {
			t.Errorf("key %d took %d tokens and has %d left, want %d", asker, count, left, times-count)
		}
	}
	if total != burst {
		t.Errorf("the keys took %d tokens, want %d", total, burst)
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"192.0.2.1":               "192.0.2.1",
		"::ffff:192.0.2.1":        "192.0.2.1",
		"2001:db8:1:2:3:4:5:6":    "2001:db8:1:2::",
		"2001:db8:1:2::":          "2001:db8:1:2::",
		"2001:db8:1:3::1":         "2001:db8:1:3::",
		"fe80::1%eth0":            "fe80::",
		"::1":                     "::",
		"2001:db8:1:2:ffff::%lo0": "2001:db8:1:2::",
	} {
		if got := ratelimit.Network(netip.MustParseAddr(text)); got != netip.MustParseAddr(want) {
			t.Errorf("%s has the key %s, want %s", text, got, want)
		}
	}
	if got := ratelimit.Network(netip.Addr{}); got.IsValid() {
		t.Errorf("an invalid address has the key %s", got)
	}
}

// address returns the i-th of 2^32 addresses in different networks.
func address(i uint32) netip.Addr {
	var bytes [16]byte
	bytes[0] = 0x20
	binary.BigEndian.PutUint32(bytes[4:], i)
	return ratelimit.Network(netip.AddrFrom16(bytes))
}

// TestMemoryIsBounded: a million addresses fit into bounded memory, and the latest
// ones are still known.
func TestMemoryIsBounded(t *testing.T) { //nolint:paralleltest // it measures the heap, which all tests share
	const addresses, megabyte, limit = 1_000_000, 1 << 20, 24
	limiter := ratelimit.New[netip.Addr](ratelimit.Limit{PerMinute: 1, Burst: 1}, startClock().now)
	before := heap()
	for i := range uint32(addresses) {
		if !limiter.Take(address(i), 1).Taken {
			t.Fatalf("the first request of address %d was rejected", i)
		}
	}
	grown := (heap() - before) / megabyte
	t.Logf("the heap grew by %d MB", grown)
	if grown > limit {
		t.Errorf("the heap grew by %d MB, want at most %d", grown, limit)
	}
	const known = 65_536
	for i := uint32(addresses - known); i < addresses; i++ {
		if limiter.Take(address(i), 1).Taken {
			t.Fatalf("address %d of %d was forgotten", i, addresses)
		}
	}
	if !limiter.Take(address(addresses-known-1), 1).Taken {
		t.Error("the limiter knows more addresses than it has room for")
	}
}

// heap returns the size of live objects.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// TestTakingAllocatesNothing checks taking with and without an available token.
func TestTakingAllocatesNothing(t *testing.T) { //nolint:paralleltest // it counts the allocations of all tests
	for what, limit := range map[string]ratelimit.Limit{
		"with a token":    {PerMinute: 1, Burst: 1 << 20},
		"without a token": {PerMinute: 1, Burst: 1},
	} {
		limiter := ratelimit.New[int64](limit, time.Now)
		limiter.Take(1, 1)
		if got := testing.AllocsPerRun(1000, func() { limiter.Take(1, 1) }); got > 0 {
			t.Errorf("%s: taking allocates %v times", what, got)
		}
	}
}

// TestQueue lets 140 clients come at once and again when Queue says, rounded up to seconds as
// in Retry-After. Each must succeed soon, and Queue must not promise more than the bucket has.
func TestQueue(t *testing.T) {
	t.Parallel()
	const clients, mostRetries = 140, 8
	for name, test := range map[string]struct {
		cost  int
		tries int // of the client that tries most often
	}{
		"cheap requests":     {1, 2},
		"expensive requests": {10, 6}, // which need 130 s altogether
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := startClock()
			limiter := ratelimit.New[string](ratelimit.Limit{PerMinute: 600, Burst: 100}, clock.now)
			waiting := make([]time.Duration, clients) // when each client comes
			tries := make([]int, clients)
			most := 0
			for second := time.Duration(0); len(waiting) > 0; second += time.Second {
				var later []time.Duration
				var triesOfLater []int
				for i, at := range waiting {
					if at <= second {
						tries[i]++
						most = max(most, tries[i])
						if limiter.Take("a", test.cost).Taken {
							continue
						}
						at = second + (limiter.Queue("a", test.cost) + time.Second - 1).Truncate(time.Second)
					}
					later, triesOfLater = append(later, at), append(triesOfLater, tries[i])
				}
				waiting, tries = later, triesOfLater
				clock.move(time.Second)
			}
			if most > test.tries || most > 1+mostRetries {
				t.Errorf("a client tried %d times, want at most %d", most, test.tries)
			}
		})
	}
}

// TestQueueIsBounded checks that clients that come again at once put off the others by at most
// half a minute. The queue ends with the time.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	clock := startClock()
	limiter := ratelimit.New[string](ratelimit.Limit{PerMinute: 60, Burst: 1}, clock.now)
	limiter.Take("a", 1)
	for i := range 1000 {
		want := time.Duration(min(i+1, 30)) * time.Second
		if got := limiter.Queue("a", 1); got != want {
			t.Fatalf("request %d should come after %s, want %s", i, got, want)
		}
	}
	if got := limiter.Queue("b", 1); got != 0 {
		t.Errorf("another key should come after %s", got)
	}
	for _, owing := range []struct{ burst, charge, first, last int }{{10, 1000, 101, 111}, {60, 100, 41, 101}} {
		limiter := ratelimit.New[string](ratelimit.Limit{PerMinute: 60, Burst: owing.burst}, clock.now)
		limiter.Charge("a", owing.charge, true)
		for i := range 100 {
			want := time.Duration(min(owing.first+i, owing.last)) * time.Second
			if got := limiter.Queue("a", 1); got != want {
				t.Errorf("burst %d: request %d after a charge should come after %s, want %s", owing.burst, i, got, want)
			}
		}
	}
	clock.move(time.Minute)
	if got := limiter.Queue("a", 1); got != 0 {
		t.Errorf("a minute later, a request should come after %s", got)
	}
}
