package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/casefold"
	"petstore/internal/coalesce"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// The values of PetStatus.
const (
	statusAvailable = "available"
	statusPending   = "pending"
	statusSold      = "sold"
)

var petStatuses = []string{statusAvailable, statusPending, statusSold}

// pet is the Pet schema of the spec.
type pet struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	CategoryID int64  `json:"categoryId"`
	Status     string `json:"status"`
}

func petFrom(row db.Pet) pet {
	return pet{ID: row.ID, Name: row.Name, CategoryID: row.CategoryID, Status: row.Status}
}

func (s *Server) createPet(c *gin.Context) error {
	in := s.decode(c, required("name", "categoryId"), readOnly("id"))
	params, err := petParams(in)
	if err != nil {
		return err
	}
	params.AccountID = caller(c).AccountID
	made, err := runOnce(s, c, in, effect[int64]{
		creates: account.Pets,
		statement: func(ctx context.Context, queries *db.Queries) (int64, error) {
			id, err := queries.PetCreate(ctx, params)
			if postgres.IsForeignKeyViolation(err) {
				err = errUnknownCategory
			}
			return id, err
		},
		respond: func(id int64) (created, error) {
			return created{status: http.StatusCreated, location: itemPath("/pets", id), value: pet{ID: id, Name: params.Name, CategoryID: params.CategoryID, Status: params.Status}}, nil
		},
	})
	if err != nil {
		return err
	}
	writeCreated(c, made)
	return nil
}

// petParams reads the fields of a new pet.
func petParams(in *input) (db.PetCreateParams, error) {
	name, categoryID, status := in.Name(maxNameLength), in.ID("categoryId"), in.Enum("status", petStatuses...)
	if err := in.Err(); err != nil {
		return db.PetCreateParams{}, err
	}
	params := db.PetCreateParams{CategoryID: *categoryID, Name: *name, NameKey: casefold.Key(*name), Status: statusAvailable}
	if status != nil {
		params.Status = *status
	}
	return params, nil
}

func (s *Server) getPet(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("petId")
	if err := params.Err(); err != nil {
		return err
	}
	row, err := s.pets.Do(c.Request.Context(), caller(c).AccountID, id)
	switch {
	case err != nil:
		return err
	case row == nil:
		return errPetNotFound
	}
	return httpjson.WriteResource(c.Writer, c.Request, petFrom(*row))
}

func (s *Server) updatePet(c *gin.Context) error {
	in := s.decode(c, pathID("petId"), readOnly("id"))
	name, categoryID, status := in.Name(maxNameLength), in.ID("categoryId"), in.Enum("status", petStatuses...)
	if err := in.Err(); err != nil {
		return err
	}
	row, err := updateIfMatch(s, c, lockPet(caller(c).AccountID, in.pathID), func(ctx context.Context, queries *db.Queries) (db.PetUpdateRow, error) {
		return queries.PetUpdate(ctx, db.PetUpdateParams{
			AccountID:  caller(c).AccountID,
			ID:         in.pathID,
			CategoryID: categoryID,
			Name:       name,
			NameKey:    keyOf(name),
			Status:     status,
		})
	})
	switch {
	case postgres.IsForeignKeyViolation(err): // the category was deleted meanwhile
		return errUnknownCategory
	case err != nil:
		return orNotFound(err, errPetNotFound)
	case !row.CategoryKnown:
		return errUnknownCategory
	case !row.TransitionAllowed:
		return errInvalidTransition.WithMessage("A sold pet cannot become pending. Make it available first.")
	}
	return httpjson.WriteResource(c.Writer, c.Request, pet{ID: in.pathID, Name: row.Name, CategoryID: row.CategoryID, Status: row.Status})
}

func (s *Server) deletePet(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("petId")
	if err := params.Err(); err != nil {
		return err
	}
	deleted, err := updateIfMatch(s, c, lockPet(caller(c).AccountID, id), func(ctx context.Context, queries *db.Queries) (int64, error) {
		return queries.PetDelete(ctx, db.PetDeleteParams{AccountID: caller(c).AccountID, ID: id})
	})
	switch {
	case postgres.IsForeignKeyViolation(err):
		return errPetInUse
	case err != nil:
		return orNotFound(err, errPetNotFound)
	case deleted == 0:
		return errPetNotFound
	}
	c.Status(http.StatusNoContent)
	return nil
}

// lockPet locks a pet for If-Match.
func lockPet(accountID, id int64) func(context.Context, *db.Queries) (any, error) {
	return func(ctx context.Context, queries *db.Queries) (any, error) {
		row, err := queries.PetLock(ctx, db.PetLockParams{AccountID: accountID, ID: id})
		return petFrom(row), err
	}
}

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
	prefix := params.Prefix("name", maxNameLength)
	filter := petFilter{
		account:    caller(c).AccountID,
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
	if err := params.Err(); err != nil {
		return err
	}
	return writePage(s, c, p, list[db.Pet, pet]{
		find: func(ctx context.Context) ([]db.Pet, error) {
			return s.findPets(ctx, filter, p)
		},
		count: func(ctx context.Context) (int64, error) {
			return s.countPets(ctx, filter)
		},
		item:     petFrom,
		cursorOf: petPosition,
	})
}

// petPosition returns the position of a pet in any sort.
func petPosition(row db.Pet) httpjson.Position {
	return httpjson.Position{Key: row.NameKey, ID: row.ID}
}

// findPets runs the query that fits the index of the filter.
func (s *Server) findPets(ctx context.Context, f petFilter, p *page) ([]db.Pet, error) {
	key, id, size := p.after.Key, p.after.ID, p.queryLimit()
	switch {
	case len(f.ids) > 0:
		return s.findPetsAmong(ctx, f, p)
	case f.categoryID != nil:
		return s.sorted(p).PetListOfCategory(ctx, db.PetListOfCategoryParams{AccountID: f.account, CategoryID: *f.categoryID, Statuses: orAllStatuses(f.statuses), AfterKey: key, AfterID: id, FromKey: f.from, UntilKey: f.until, PageSize: size})
	case len(f.statuses) > 0:
		return s.sorted(p).PetListOfStatus(ctx, db.PetListOfStatusParams{AccountID: f.account, Statuses: f.statuses, AfterKey: key, AfterID: id, FromKey: f.from, UntilKey: f.until, PageSize: size})
	default:
		return s.sorted(p).PetList(ctx, db.PetListParams{AccountID: f.account, AfterKey: key, AfterID: id, FromKey: f.from, UntilKey: f.until, PageSize: size})
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
func (s *Server) findPetsAmong(ctx context.Context, f petFilter, p *page) ([]db.Pet, error) {
	pets, err := s.petsAmong(ctx, f)
	if err != nil {
		return nil, err
	}
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
	pets = slices.DeleteFunc(pets, func(row db.Pet) bool { return order(petPosition(row), p.after) <= 0 })
	slices.SortFunc(pets, func(a, b db.Pet) int { return order(petPosition(a), petPosition(b)) })
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
// the same pet.
func (s *Server) getPets(ctx context.Context, accountID int64, ids []int64) ([]db.Pet, error) {
	if len(ids) > 1 {
		return s.queries.PetGetMany(ctx, db.PetGetManyParams{AccountID: accountID, Ids: ids})
	}
	row, err := s.pets.Do(ctx, accountID, ids[0])
	if err != nil || row == nil {
		return nil, err
	}
	return []db.Pet{*row}, nil
}

// maxPetsPerRead is the maximum number of pets that one statement reads.
const maxPetsPerRead = 100

// newPetReader returns a coalescer of reads of single pets of an account. A pet that does
// not exist is nil.
func newPetReader(queries *db.Queries) *coalesce.Coalescer[int64, int64, *db.Pet] {
	limits := sharedReads
	limits.Inputs = maxPetsPerRead
	return coalesce.New(limits, func(ctx context.Context, accountID int64, ids []int64) ([]*db.Pet, error) {
		rows, err := queries.PetGetMany(ctx, db.PetGetManyParams{AccountID: accountID, Ids: ids})
		if err != nil {
			return nil, err
		}
		pets := make([]*db.Pet, len(ids))
		for i, id := range ids {
			if at := slices.IndexFunc(rows, func(row db.Pet) bool { return row.ID == id }); at >= 0 {
				pets[i] = &rows[at]
			}
		}
		return pets, nil
	})
}

// keyOf returns the key of a name, or nil for nil.
func keyOf(name *string) *string {
	if name == nil {
		return nil
	}
	key := casefold.Key(*name)
	return &key
}

// orNotFound returns notFound instead of [pgx.ErrNoRows].
func orNotFound(err error, notFound *httpjson.Error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return notFound
	}
	return err
}
