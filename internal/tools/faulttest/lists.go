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

// nextLink matches the URL of the next page in a Link header (RFC 8288).
var nextLink = regexp.MustCompile(`<([^>]*)>; rel="next"`)

// pagingUnderWrites is row 18: a walk over the pages of a list sees every pet that stays,
// exactly once and in order, while other pets are added and deleted.
func pagingUnderWrites(ctx context.Context, f *fixture) (string, error) {
	const stay, writers, during = 120, 3, 3 * time.Second
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	staying := map[int64]bool{}
	for i := range stay {
		created, err := s.addPet(ctx, fmt.Sprintf("page %03d", i*7919%stay))
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
				created, err := s.addPet(ctx, fmt.Sprintf("page %03d passing %d", changes[writer]*31%stay, writer))
				if err == nil {
					_, err = s.want(ctx, http.StatusNoContent, "DELETE", fmt.Sprint("/pets/", created.ID), "")
				}
				failures[writer] = err
			}
		})
	}
	walks, pages := 0, 0
	for ; walks < len(listOrders) || writing.Err() == nil; walks++ {
		o := listOrders[walks%len(listOrders)]
		seen, count, err := s.walk(ctx, "/pets?limit=7&"+o.query)
		if err == nil {
			err = o.check(seen, staying)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", o.query, err)
		}
		pages += count
	}
	group.Wait()
	total := 0
	for _, count := range changes {
		total += count
	}
	return fmt.Sprintf("%d walks of %d pages in 4 orders during %d changes: %d of %d seen, each once", walks, pages, total, stay, stay), errors.Join(failures...)
}

// listedPet is a Pet in a list.
type listedPet struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
}

func (c *client) addPet(ctx context.Context, name string) (created listedPet, err error) {
	resp, err := c.want(ctx, http.StatusCreated, "POST", "/pets", fmt.Sprintf(`{"name": %q, "categoryId": 1}`, name))
	if err == nil {
		err = resp.decode(&created)
	}
	return created, err
}

// walk follows the links of a list from its first page, and returns the pets and the
// number of pages.
func (c *client) walk(ctx context.Context, target string) (seen []listedPet, pages int, err error) {
	for ; target != ""; pages++ {
		resp, err := c.want(ctx, http.StatusOK, "GET", target, "")
		if err != nil {
			return nil, pages, err
		}
		var page []listedPet
		if err := resp.decode(&page); err != nil {
			return nil, pages, err
		}
		seen, target = append(seen, page...), resp.next()
	}
	return seen, pages, nil
}

// listOrder is a query of a list of pets and the order that it must have.
type listOrder struct {
	query   string
	compare func(a, b listedPet) int
}

// listOrders are the orders that pets can be sorted by.
var listOrders = []listOrder{
	{"categoryId=1&sort=id", compareID},
	{"categoryId=1&sort=-id", func(a, b listedPet) int { return compareID(b, a) }},
	{"name=page&sort=name", compareName},
	{"name=page&sort=-name", func(a, b listedPet) int { return compareName(b, a) }},
}

func compareID(a, b listedPet) int { return cmp.Compare(a.ID, b.ID) }

func compareName(a, b listedPet) int { return cmp.Or(cmp.Compare(a.Name, b.Name), compareID(a, b)) }

// check returns an error unless the pets are in order and each pet that stays occurs
// exactly once.
func (o listOrder) check(seen []listedPet, staying map[int64]bool) error {
	if !slices.IsSortedFunc(seen, o.compare) {
		return errors.New("the pets are not in order")
	}
	times, distinct := 0, map[int64]bool{}
	for _, pet := range seen {
		if staying[pet.ID] {
			times++
			distinct[pet.ID] = true
		}
	}
	if len(distinct) != len(staying) || times != len(staying) {
		return fmt.Errorf("%d of %d remaining pets were seen, %d times in total", len(distinct), len(staying), times)
	}
	return nil
}
