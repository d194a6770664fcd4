package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/casefold"
	"petstore/internal/coalesce"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// petFilter is the filter of a list of pets. An empty field matches all.
type petFilter struct {
	account    int64
	ids        []int64
	categoryID *int64
	statuses   []string
	// Keys of names are in the range [from, until).
	from, until string
	prefixed    bool // whether the range excludes any name
}

func (s *Server) listPets(c *gin.Context) error {
	params := readParams(c)
	prefix := params.Text("name", casefold.MaxName)
	filter := petFilter{
		account:    gate.Caller(c).AccountID,
		ids:        params.IDs("id"),
		categoryID: params.ID("categoryId"),
		statuses:   params.Enums("status", petStatuses...),
		prefixed:   prefix != "",
	}
	filter.from, filter.until = casefold.Range(prefix)
	limit := defaultLimit
	if len(filter.ids) > 0 {
		limit = httpjson.MaxValues // a batch is one page
	}
	p := newPage(c, params, limit, byIDOrName)
	p.startWithin(filter.from, filter.until)
	return writePage(s, c, params, p, list[db.PetListRow, pet]{
		find: func(ctx context.Context) ([]db.PetListRow, error) {
			return s.findPets(ctx, filter, p)
		},
		count: func(ctx context.Context) (int64, error) {
			return s.countPets(ctx, filter)
		},
		perPlace: filter.perPlace(),
		item: func(row db.PetListRow) pet {
			return pet{ID: row.ID, Name: row.Name, CategoryID: row.CategoryID, Status: row.Status}
		},
		cursorOf: petPosition,
	})
}

// petPosition returns the position of a pet in any sort.
func petPosition(row db.PetListRow) httpjson.Position {
	return httpjson.Position{Key: row.NameKey, ID: row.ID}
}

// listedPets returns pets as [db.Queries.PetList] does.
func listedPets(pets []db.Pet) []db.PetListRow {
	return transform(pets, func(p db.Pet) db.PetListRow {
		return db.PetListRow{ID: p.ID, CategoryID: p.CategoryID, Name: p.Name, Status: p.Status, NameKey: p.NameKey}
	})
}

// findPets runs the query that fits the index of the filter.
func (s *Server) findPets(ctx context.Context, f petFilter, p *page) ([]db.PetListRow, error) {
	key, id, size := p.after.Key, p.after.ID, p.queryLimit()
	switch {
	case len(f.ids) > 0:
		return s.findPetsAmong(ctx, f, p)
	case f.categoryID != nil:
		pets, err := s.sorted(p.sort).PetListOfCategory(ctx, db.PetListOfCategoryParams{AccountID: f.account, CategoryID: *f.categoryID, Statuses: orAllStatuses(f.statuses), AfterKey: key, AfterID: id, FromKey: f.from, UntilKey: f.until, PageSize: size})
		return listedPets(pets), err
	case len(f.statuses) > 0:
		pets, err := s.sorted(p.sort).PetListOfStatus(ctx, db.PetListOfStatusParams{AccountID: f.account, Statuses: f.statuses, AfterKey: key, AfterID: id, FromKey: f.from, UntilKey: f.until, PageSize: size})
		return listedPets(pets), err
	default:
		return s.pagesOfPets.Do(ctx, s.options.DB.NodeOf(f.account), pageOfPets{p.sort, db.PetListParams{AccountID: f.account, AfterKey: key, AfterID: id, FromKey: f.from, UntilKey: f.until, PageSize: size}})
	}
}

// perPlace returns how many pages of a filter share a place, because they share a round trip in findPets
// or gather for the next one. A single pet takes no part of a place.
func (f petFilter) perPlace() int64 {
	switch {
	case len(f.ids) == 1:
		return maxPetsPerRead
	case len(f.ids) > 1, f.categoryID != nil, len(f.statuses) > 0:
		return 0
	default:
		return admission.ReadParts
	}
}

// orAllStatuses returns all statuses if the filter has none, so that Postgres can use an
// index that begins with the status.
func orAllStatuses(statuses []string) []string {
	if len(statuses) == 0 {
		return petStatuses
	}
	return statuses
}

// findPetsAmong reads the pets of a batch, at most [httpjson.MaxValues], and sorts them.
func (s *Server) findPetsAmong(ctx context.Context, f petFilter, p *page) ([]db.PetListRow, error) {
	among, err := s.petsAmong(ctx, f)
	if err != nil {
		return nil, err
	}
	pets := listedPets(among)
	order := func(a, b httpjson.Position) int {
		c := cmp.Compare(a.ID, b.ID)
		if p.byName() {
			c = cmp.Or(strings.Compare(a.Key, b.Key), c)
		}
		if p.descending() {
			return -c
		}
		return c
	}
	pets = slices.DeleteFunc(pets, func(row db.PetListRow) bool { return order(petPosition(row), p.after) <= 0 })
	slices.SortFunc(pets, func(a, b db.PetListRow) int { return order(petPosition(a), petPosition(b)) })
	return pets[:min(len(pets), int(p.queryLimit()))], nil
}

// petsAmong reads the pets of a batch that match the filter.
func (s *Server) petsAmong(ctx context.Context, f petFilter) ([]db.Pet, error) {
	pets, err := s.getPets(ctx, f.account, f.ids)
	return slices.DeleteFunc(pets, func(row db.Pet) bool {
		return row.NameKey < f.from || row.NameKey >= f.until ||
			(len(f.statuses) > 0 && !slices.Contains(f.statuses, row.Status)) ||
			(f.categoryID != nil && row.CategoryID != *f.categoryID)
	}), err
}

// countPets counts the pets of all pages.
func (s *Server) countPets(ctx context.Context, f petFilter) (int64, error) {
	if len(f.ids) > 0 {
		pets, err := s.petsAmong(ctx, f)
		return int64(len(pets)), err
	}
	params := db.PetCountParams{AccountID: f.account, CategoryID: f.categoryID, Statuses: f.statuses}
	if f.prefixed {
		params.FromKey, params.UntilKey = &f.from, &f.until
	}
	return s.planned.PetCount(ctx, params)
}

// getPets reads the pets of a batch. A batch of one shares its query with other reads of
// single pets.
func (s *Server) getPets(ctx context.Context, accountID int64, ids []int64) ([]db.Pet, error) {
	if len(ids) > 1 {
		pets, err := results(1, s.reads.PetGetMany(ctx, []db.PetGetManyParams{{AccountID: accountID, Ids: ids}}).Query)
		return pets[0], err
	}
	row, err := s.pets.Do(ctx, s.options.DB.NodeOf(accountID), ownPet{accountID, ids[0]})
	if err != nil || row == nil {
		return nil, err
	}
	return []db.Pet{*row}, nil
}

// maxPagesPerRead is the maximum number of pages whose reads share a round trip.
const maxPagesPerRead = 16

// pageOfPets is a page of pets in a sort.
type pageOfPets struct {
	sort   string
	params db.PetListParams
}

// newPageOfPetsReader returns a coalescer of reads of different pages, by node. Their
// statements share a round trip. Postgres works longer on a page than on a pet, so it
// gets more of these at a time: as many as one payer may have, and one beside runs that hang.
func (s *Server) newPageOfPetsReader(parallel int) *sharedRead[any, pageOfPets, []db.PetListRow] {
	limits := coalesce.Limits{Parallel: parallel, Spare: 1, Inputs: maxPagesPerRead}
	return shareReads(limits, func(ctx context.Context, _ any, pages []pageOfPets) ([][]db.PetListRow, error) {
		postgres.ReaderOf(ctx).ReadEnds()
		sorts, params := make([]string, len(pages)), make([]db.PetListParams, len(pages))
		for i, page := range pages {
			sorts[i], params[i] = page.sort, page.params
		}
		return results(len(pages), s.sorted(sorts...).PetList(ctx, params).Query)
	})
}
