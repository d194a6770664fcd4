package api

import (
	"context"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/casefold"
	"petstore/internal/event"
	"petstore/internal/gate"
	"petstore/internal/groupcommit"
	"petstore/internal/stock"
)

// petStatuses are the values of PetStatus.
var petStatuses = []string{string(stock.Available), string(stock.Pending), string(stock.Sold)}

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

// stockedPet returns the pet of a state.
func stockedPet(p groupcommit.Pet) pet {
	return pet{ID: p.ID, Name: p.Name, CategoryID: p.CategoryID, Status: string(p.Stock.Status)}
}

func (s *Server) createPet(c *gin.Context) error {
	in := s.decode(c, keyed, required("name", "categoryId"), readOnly("id"))
	name, categoryID, status := in.Name(casefold.MaxName), in.ID("categoryId"), in.Enum("status", petStatuses...)
	if err := in.Err(); err != nil {
		return err
	}
	wanted := groupcommit.Pet{Name: *name, NameKey: casefold.Key(*name), CategoryID: *categoryID, Stock: stock.State{Status: stock.Available}}
	if status != nil {
		wanted.Stock.Status = stock.Status(*status)
	}
	return s.post(c, in, groupcommit.Write{Category: wanted.CategoryID, Creates: account.Pets, Decide: func(state *groupcommit.State) (groupcommit.Response, error) {
		if _, known := state.Categories.Get(wanted.CategoryID); !known {
			return refused(errUnknownCategory)
		}
		made := wanted
		made.ID = state.Pets.Create(made)
		path := itemPath("/pets", made.ID)
		if err := emit(state, event.PetCreated, path, affectedPet(groupcommit.Pet{}, made)); err != nil {
			return refused(err)
		}
		return created(path, stockedPet(made))
	}})
}

func (s *Server) getPet(c *gin.Context, id int64) error {
	row, err := s.pets.Do(c.Request.Context(), s.options.DB.NodeOf(gate.Caller(c).AccountID), ownPet{gate.Caller(c).AccountID, id})
	switch {
	case err != nil:
		return err
	case row == nil:
		return errPetNotFound
	}
	return writeResource(c, petFrom(*row))
}

func (s *Server) updatePet(c *gin.Context, id int64) error {
	in := s.decode(c, readOnly("id"))
	name, categoryID, status := in.Name(casefold.MaxName), in.ID("categoryId"), in.Enum("status", petStatuses...)
	if err := in.Err(); err != nil {
		return err
	}
	write := groupcommit.Write{Pet: id}
	if categoryID != nil {
		write.Category = *categoryID
	}
	return s.changePet(c, write, func(state *groupcommit.State, before groupcommit.Pet) (groupcommit.Response, error) {
		changed := before
		if name != nil {
			changed.Name, changed.NameKey = *name, casefold.Key(*name)
		}
		if categoryID != nil {
			if _, known := state.Categories.Get(*categoryID); !known {
				return refused(errUnknownCategory)
			}
			changed.CategoryID = *categoryID
		}
		if status != nil {
			var err error
			if changed.Stock, err = changed.Stock.SetStatus(stock.Status(*status)); err != nil {
				return refused(errInvalidTransition.WithMessage("A sold pet cannot become pending. Make it available first."))
			}
		}
		state.Pets.Set(changed)
		if err := emit(state, event.PetUpdated, itemPath("/pets", changed.ID), affectedPet(before, changed)); err != nil {
			return refused(err)
		}
		return updated(stockedPet(changed))
	})
}

func (s *Server) deletePet(c *gin.Context, id int64) error {
	return s.changePet(c, groupcommit.Write{Pet: id, Alone: true}, func(state *groupcommit.State, before groupcommit.Pet) (groupcommit.Response, error) {
		if state.HasOrders {
			return refused(errPetInUse)
		}
		state.Pets.Delete(id)
		return deleted, emit(state, event.PetDeleted, itemPath("/pets", id), affectedPet(groupcommit.Pet{}, before))
	})
}

// changePet decides on a pet, if it exists and the preconditions hold.
func (s *Server) changePet(c *gin.Context, w groupcommit.Write, decide func(*groupcommit.State, groupcommit.Pet) (groupcommit.Response, error)) error {
	request := c.Request
	w.Decide = func(state *groupcommit.State) (groupcommit.Response, error) {
		current, known := state.Pets.Get(w.Pet)
		if !known {
			return refused(errPetNotFound)
		}
		if err := checkTag(request, stockedPet(current)); err != nil {
			return refused(err)
		}
		return decide(state, current)
	}
	return s.commit(c, w)
}

// maxPetsPerRead is the maximum number of single pets whose reads share a round trip.
const maxPetsPerRead = 100

// ownPet identifies a pet of an account.
type ownPet struct{ account, id int64 }

// newPetReader returns a coalescer of reads of single pets, by node. A pet that does not
// exist is nil. The pets of an account share a statement, and the statements of all accounts
// on a node share a round trip.
func newPetReader(queries *db.Queries) *sharedRead[any, ownPet, *db.Pet] {
	limits := sharedLimits
	limits.Inputs = maxPetsPerRead
	return shareReads(limits, func(ctx context.Context, _ any, wanted []ownPet) ([]*db.Pet, error) {
		params := byAccount(wanted)
		perAccount, err := results(len(params), queries.PetGetMany(ctx, params).Query)
		if err != nil {
			return nil, err
		}
		found := make(map[ownPet]*db.Pet, len(wanted))
		for _, rows := range perAccount {
			for i := range rows {
				found[ownPet{rows[i].AccountID, rows[i].ID}] = &rows[i]
			}
		}
		pets := make([]*db.Pet, len(wanted))
		for i, one := range wanted {
			pets[i] = found[one]
		}
		return pets, nil
	})
}

// byAccount returns a statement for each account, with the ids of its pets.
func byAccount(wanted []ownPet) []db.PetGetManyParams {
	var params []db.PetGetManyParams
	index := make(map[int64]int) // by account
	for _, one := range wanted {
		at, known := index[one.account]
		if !known {
			at = len(params)
			index[one.account] = at
			params = append(params, db.PetGetManyParams{AccountID: one.account})
		}
		params[at].Ids = append(params[at].Ids, one.id)
	}
	return params
}
