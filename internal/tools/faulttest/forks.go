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

	"petstore/internal/tools/must"
)

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
		sleep(ctx, loadPause)
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
