package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"petstore/internal/sleep"
	"petstore/internal/tools/must"
)

// pairs are clients that write to one instance, and then read at the other one with the
// consistency token of the write. A read is stale if it does not show that write.
type pairs struct {
	ledger // of all requests

	instances [2]*service
	clients   []*pairClient

	done, pages atomic.Int64 // pairs, and responses that were read in them
}

// pairClient is a client with a pet of its own, which it renames.
type pairClient struct {
	*pairs
	pet     int
	number  int    // counts the pairs
	version int    // of the last write to the pet
	token   string // of the last acknowledged write
	shown   int    // the version that every read with the token must show
}

// newPairs returns clients for the pets from 2 on.
func newPairs(instances [2]*service, clients int) *pairs {
	p := &pairs{instances: instances}
	for number := range clients {
		p.clients = append(p.clients, &pairClient{pairs: p, pet: 2 + number, number: number})
	}
	return p
}

// run has the clients make pairs until they have made that many in total. It fails the row
// if one of them fails, for example because of a stale read.
func (p *pairs) run(ctx context.Context, count int) {
	until := p.done.Load() + int64(count)
	var calls []func(context.Context)
	for _, c := range p.clients {
		calls = append(calls, func(ctx context.Context) {
			for p.done.Load() < until && ctx.Err() == nil {
				c.pair(ctx)
			}
		})
	}
	must.Together(ctx, calls...)
}

// pair renames the pet and reads it once: itself, or in a list. First, every tenth time, it reads
// it with the last token, which may be from before a failover. Each client makes two pairs of a
// kind in turn, so that both kinds write at both instances.
func (c *pairClient) pair(ctx context.Context) {
	c.number++
	if c.number%10 == 0 && c.token != "" {
		c.readPet(ctx)
	}
	if !c.rename(ctx) {
		sleep.For(ctx, loadPause)
		return
	}
	if c.number/2%2 == 0 {
		c.readPet(ctx)
	} else {
		c.readList(ctx)
	}
	c.done.Add(1)
}

// rename renames the pet to the next version, and remembers the token. It reports whether the
// write was acknowledged.
func (c *pairClient) rename(ctx context.Context) bool {
	c.version++
	resp, err := c.instances[c.number%2].do(ctx, "PATCH", fmt.Sprint("/pets/", c.pet), fmt.Sprintf(`{"name": "version %d"}`, c.version))
	c.record(resp, err)
	if err != nil || resp.status != http.StatusOK {
		return false
	}
	c.token, c.shown = resp.token(), c.version
	return true
}

// readPet reads the pet with the token.
func (c *pairClient) readPet(ctx context.Context) {
	resp := c.read(ctx, fmt.Sprint("/pets/", c.pet), "consistency="+c.token).check(http.StatusOK)
	c.checkName(resp, decode[listedPet](resp).Name)
}

// readList finds the pet in a list of several pages. Only the request for the first page has the
// token: the cursors must keep the promise.
func (c *pairClient) readList(ctx context.Context) {
	prefer := "consistency=" + c.token
	for target := "/pets?sort=id&limit=10"; target != ""; prefer = "consistency=eventual" {
		resp := c.read(ctx, target, prefer).check(http.StatusOK)
		for _, pet := range decode[[]listedPet](resp) {
			if pet.ID == int64(c.pet) {
				c.checkName(resp, pet.Name)
				return
			}
		}
		target = resp.next()
	}
	must.Hold(false, "the list does not have pet %d", c.pet)
}

// checkName fails the row unless a name has the version that the token promises, or a later one.
func (c *pairClient) checkName(resp response, name string) {
	var got int
	_, err := fmt.Sscanf(name, "version %d", &got)
	must.Hold(err == nil && got >= c.shown, "stale read: %s, want version %d of pet %d", resp, c.shown, c.pet)
}

// read reads at another instance than the write, three times of four. It repeats
// the read while the service is unavailable.
func (c *pairClient) read(ctx context.Context, target, prefer string) response {
	must.Hold(prefer != "consistency=", "a successful write has no Petstore-Consistency header")
	instance := c.number + 1
	if c.number/4%4 == 0 {
		instance = c.number
	}
	for ; ; sleep.For(ctx, loadPause) {
		resp, err := c.instances[instance%2].do(ctx, "GET", target, "", "Prefer", prefer)
		must.OK(context.Cause(ctx))
		c.record(resp, err)
		if err == nil && resp.status != http.StatusServiceUnavailable {
			c.pages.Add(1)
			return resp
		}
	}
}

// location returns the path of a new resource.
func (resp response) location() string { return resp.header.Get("Location") }

// token returns the consistency token of a write.
func (resp response) token() string { return resp.header.Get("Petstore-Consistency") }

// longForks is row 53: two writers change a pet each at two instances. Readers read both pets
// from the primary and from two replicas that lag. They use one list, and walks over two pages in
// both directions. No reader sees two changes in another order than the feed. So two readers
// never disagree on the order (a long fork), on whatever server.
func longForks(ctx context.Context, f *fixture) string {
	const during, leastShare = 8 * time.Second, 0.2
	r := f.openReplicas(ctx)
	for i, delay := range []string{"200ms", "20ms"} {
		r.standbys[i].delay(ctx, delay)
	}
	s := &forkSearch{replicated: r}
	running, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	share := r.share(ctx, func() { s.search(running, "", "consistency=eventual", "token") })
	figures := fmt.Sprintf("%s, replicas served %.0f%% of those that allow it", s.check(ctx), 100*share)
	must.Hold(share >= leastShare, "%s, want at least %.0f%%", figures, 100*leastShare)
	return figures + ", all in the order of the feed"
}

// forkSearch are two writers and their readers.
type forkSearch struct {
	*replicated

	versions [2]int       // of the first and the second pet, written by one goroutine each
	token    atomic.Value // of the latest write
	requests atomic.Int64
	mu       sync.Mutex
	seen     []sighting
}

// search writes and reads until the context ends. There is a reader for each way to read both pets
// with each preference.
func (s *forkSearch) search(ctx context.Context, preferences ...string) {
	s.token.Store("eventual") // until there is one
	must.Parallel(2+len(readsOfBoth)*len(preferences), func(number int) {
		for number -= 2; ctx.Err() == nil; {
			if number < 0 {
				s.write(ctx, number+2)
			} else {
				s.read(ctx, readsOfBoth[number/len(preferences)], preferences[number%len(preferences)])
			}
		}
	})
}

// check fails the row if a reader saw two changes in another order than the feed.
func (s *forkSearch) check(ctx context.Context) (figures string) {
	figures = fmt.Sprintf("%d and %d changes, %d reads", s.versions[0], s.versions[1], len(s.seen))
	if one, other, found := findFork(append(s.orderOfFeed(ctx), s.seen...)); found {
		must.Hold(false, "%s: %+v contradicts %+v", figures, one, other)
	}
	return figures
}

// sighting has the versions of the two pets that a reader saw. The second one may be from a
// later state than the first one, or the reverse.
type sighting struct {
	Versions         [2]int
	SecondMayBeLater bool
	FirstMayBeLater  bool
}

// findFork returns two sightings that have no common order of the changes of the two pets.
//
// A sighting of versions i and j has two meanings. Version i of the first pet is before version
// j+1 of the second one, unless the first one may be later. Version j is before version i+1,
// unless the second one may be later. Two of them contradict each other when they make a cycle.
func findFork(all []sighting) (one, other sighting, found bool) {
	for _, one := range all {
		for _, other := range all {
			if !one.SecondMayBeLater && !other.FirstMayBeLater && one.Versions[0] < other.Versions[0] && one.Versions[1] > other.Versions[1] {
				return one, other, true
			}
		}
	}
	return one, other, false
}

// The pets of the writers are the first and the last one, on different pages.
var forkPets = [2]int64{1, pets}

// write writes the next version of a pet, or repeats it.
func (s *forkSearch) write(ctx context.Context, writer int) {
	next := s.versions[writer] + 1
	resp, err := s.instances[writer].do(ctx, "PATCH", fmt.Sprint("/pets/", forkPets[writer]), fmt.Sprintf(`{"name": "version %d of %d"}`, next, writer))
	if err != nil || resp.status != http.StatusOK {
		sleep.For(ctx, loadPause)
		return
	}
	s.versions[writer] = next
	s.token.Store(resp.token())
}

// bothPets is a way to read both pets: the pages of a list.
type bothPets struct {
	target string
	seen   sighting // without versions
}

var readsOfBoth = []bothPets{
	{fmt.Sprintf("/pets?sort=id&limit=%d", pets), sighting{}},
	{fmt.Sprintf("/pets?sort=id&limit=%d", pets/2), sighting{SecondMayBeLater: true}},
	{fmt.Sprintf("/pets?sort=-id&limit=%d", pets/2), sighting{FirstMayBeLater: true}},
}

// read reads both pets at the instances in turn.
func (s *forkSearch) read(ctx context.Context, how bothPets, preference string) {
	prefer := strings.Replace(preference, "token", fmt.Sprint("consistency=", s.token.Load()), 1)
	seen := how.seen
	for target := how.target; target != ""; {
		resp, err := s.instances[s.requests.Add(1)%2].do(ctx, "GET", target, "", "Prefer", prefer)
		if err != nil || resp.status == http.StatusServiceUnavailable {
			return
		}
		for _, pet := range decode[[]listedPet](resp.check(http.StatusOK)) {
			if writer := slices.Index(forkPets[:], pet.ID); writer >= 0 {
				_, _ = fmt.Sscanf(pet.Name, "version %d", &seen.Versions[writer]) // 0 before the first one
			}
		}
		if target = resp.next(); preference != "" {
			prefer = "consistency=eventual" // the link has the state of its page
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, seen)
}

// orderOfFeed returns what a reader saw that looked after each event.
func (s *forkSearch) orderOfFeed(ctx context.Context) (order []sighting) {
	var now sighting
	for _, event := range s.api.readFeed(ctx) {
		var pet listedPet
		if event.Type == "pet.updated" {
			must.OK(json.Unmarshal(event.Data["pet"], &pet))
		}
		if writer := slices.Index(forkPets[:], pet.ID); writer >= 0 {
			_ = must.Get(fmt.Sscanf(pet.Name, "version %d", &now.Versions[writer]))
			order = append(order, now)
		}
	}
	return order
}
