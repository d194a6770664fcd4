package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"
)

// nextLink finds where a list goes on (RFC 8288).
var nextLink = regexp.MustCompile(`<([^>]*)>; rel="next"`)

// Row 18. Who walks the pages of a list sees everything that stays exactly once
// and in order, whatever is added and deleted meanwhile.
func pagingUnderWrites(ctx context.Context, b *bench) (string, error) {
	const stay, writers, during = 120, 3, 3 * time.Second
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	type pet struct {
		ID   int64  `json:"id"`
		Name string `json:"name"`
	}
	staying := map[int64]bool{}
	addPet := func(name string) (created pet, err error) {
		a, err := s.want(ctx, http.StatusCreated, "POST", "/pets", fmt.Sprintf(`{"name": %q, "categoryId": 1}`, name))
		if err == nil {
			err = a.decode(&created)
		}
		return created, err
	}
	for i := range stay {
		created, err := addPet(fmt.Sprintf("page %03d", i*7919%stay))
		if err != nil {
			return "", err
		}
		staying[created.ID] = true
	}

	writing, stop := context.WithTimeout(ctx, during)
	defer stop()
	var group sync.WaitGroup
	changes, failures := make([]int, writers), make([]error, writers)
	for writer := range writers {
		group.Go(func() {
			for ; writing.Err() == nil && failures[writer] == nil; changes[writer] += 2 {
				created, err := addPet(fmt.Sprintf("page %03d passing %d", changes[writer]*31%stay, writer))
				if err == nil {
					_, err = s.want(ctx, http.StatusNoContent, "DELETE", fmt.Sprint("/pets/", created.ID), "")
				}
				failures[writer] = err
			}
		})
	}
	byID := func(a, b pet) int { return cmp.Compare(a.ID, b.ID) }
	byName := func(a, b pet) int { return cmp.Or(cmp.Compare(a.Name, b.Name), byID(a, b)) }
	walks, pages := 0, 0
	for walks < 4 || writing.Err() == nil {
		sort, order := []string{"id", "-id", "name", "-name"}[walks%4], [](func(a, b pet) int){byID, byID, byName, byName}[walks%4]
		filter := []string{"categoryId=1", "categoryId=1", "name=page", "name=page"}[walks%4]
		if walks%2 == 1 {
			ascending := order
			order = func(a, b pet) int { return -ascending(a, b) }
		}
		var seen []pet
		for target := "/pets?limit=7&" + filter + "&sort=" + sort; target != ""; pages++ {
			a, err := s.want(ctx, http.StatusOK, "GET", target, "")
			if err != nil {
				return "", err
			}
			var page []pet
			if err := a.decode(&page); err != nil {
				return "", err
			}
			seen = append(seen, page...)
			target = ""
			if match := nextLink.FindStringSubmatch(a.header.Get("Link")); match != nil {
				target = match[1]
			}
		}
		if !slices.IsSortedFunc(seen, order) {
			return "", fmt.Errorf("sort=%s: not in order", sort)
		}
		stayed := slices.DeleteFunc(seen, func(p pet) bool { return !staying[p.ID] })
		if distinct := slices.CompactFunc(slices.Clone(stayed), func(a, b pet) bool { return a.ID == b.ID }); len(distinct) != stay || len(stayed) != stay {
			return "", fmt.Errorf("sort=%s: %d of %d pets that stayed were seen, %d times", sort, len(distinct), stay, len(stayed))
		}
		walks++
	}
	group.Wait()
	total := 0
	for _, count := range changes {
		total += count
	}
	return fmt.Sprintf("%d walks of %d pages in 4 orders during %d changes: %d of %d seen, each once", walks, pages, total, stay, stay), errors.Join(failures...)
}
