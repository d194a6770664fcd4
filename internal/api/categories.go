package api

import (
	"context"
	"reflect"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/casefold"
	"petstore/internal/event"
	"petstore/internal/gate"
	"petstore/internal/groupcommit"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// category is the Category schema of the spec.
type category struct {
	ID          int64   `json:"id"`
	Name        string  `json:"name"`
	Description *string `json:"description,omitzero"`
}

func categoryFrom(row db.Category) category {
	return category{ID: row.ID, Name: row.Name, Description: row.Description}
}

func (s *Server) createCategory(c *gin.Context) error {
	in := s.decode(c, keyed, required("name"), readOnly("id"))
	name, description := in.Name(casefold.MaxName), in.Text("description", 0, maxDescriptionLength)
	if err := in.Err(); err != nil {
		return err
	}
	wanted := db.Category{Name: *name, NameKey: casefold.Key(*name), Description: description}
	return uniqueCategory(s.post(c, in, groupcommit.Write{Alone: true, Creates: account.Categories, Decide: func(state *groupcommit.State) (groupcommit.Response, error) {
		made := wanted
		made.ID = state.Categories.Create(made)
		path, resource := itemPath("/categories", made.ID), categoryFrom(made)
		if err := emit(state, event.CategoryCreated, path, affected{Category: &resource}); err != nil {
			return refused(err)
		}
		return created(path, resource)
	}}))
}

// uniqueCategory returns the error of the API for a name that another category has.
func uniqueCategory(err error) error {
	if postgres.IsUniqueViolation(err) {
		return errCategoryExists
	}
	return err
}

func (s *Server) getCategory(c *gin.Context, id int64) error {
	row, err := s.reads.CategoryGet(c.Request.Context(), db.CategoryGetParams{AccountID: gate.Caller(c).AccountID, ID: id})
	if err != nil {
		return orNotFound(err, errCategoryNotFound)
	}
	return writeResource(c, categoryFrom(row))
}

func (s *Server) updateCategory(c *gin.Context, id int64) error {
	in := s.decode(c, readOnly("id"))
	name := in.Name(casefold.MaxName)
	description, cleared := in.NullableText("description", maxDescriptionLength)
	if err := in.Err(); err != nil {
		return err
	}
	return uniqueCategory(s.changeCategory(c, id, func(state *groupcommit.State, before db.Category) (groupcommit.Response, error) {
		changed := before
		if name != nil {
			changed.Name, changed.NameKey = *name, casefold.Key(*name)
		}
		if description != nil || cleared {
			changed.Description = description
		}
		state.Categories.Set(changed)
		resource := categoryFrom(changed)
		if !reflect.DeepEqual(resource, categoryFrom(before)) {
			if err := emit(state, event.CategoryUpdated, itemPath("/categories", changed.ID), affected{Category: &resource}); err != nil {
				return refused(err)
			}
		}
		return updated(resource)
	}))
}

func (s *Server) deleteCategory(c *gin.Context, id int64) error {
	return s.changeCategory(c, id, func(state *groupcommit.State, before db.Category) (groupcommit.Response, error) {
		if state.HasPets {
			return refused(errCategoryInUse)
		}
		state.Categories.Delete(id)
		resource := categoryFrom(before)
		return deleted, emit(state, event.CategoryDeleted, itemPath("/categories", id), affected{Category: &resource})
	})
}

// changeCategory decides on a category, if it exists and the preconditions hold.
func (s *Server) changeCategory(c *gin.Context, id int64, decide func(*groupcommit.State, db.Category) (groupcommit.Response, error)) error {
	request := c.Request
	return s.commit(c, groupcommit.Write{Category: id, Alone: true, Decide: func(state *groupcommit.State) (groupcommit.Response, error) {
		current, known := state.Categories.Get(id)
		if !known {
			return refused(errCategoryNotFound)
		}
		if err := checkTag(request, categoryFrom(current)); err != nil {
			return refused(err)
		}
		return decide(state, current)
	}})
}

func (s *Server) listCategories(c *gin.Context) error {
	params := readParams(c)
	prefix := params.Text("name", casefold.MaxName)
	from, until := casefold.Range(prefix)
	p := newPage(c, params, defaultLimit, byIDOrName)
	p.startWithin(from, until)
	return writePage(s, c, params, p, list[db.Category, category]{
		find: func(ctx context.Context) ([]db.Category, error) {
			return s.sorted(p.sort).CategoryList(ctx, db.CategoryListParams{AccountID: p.account, AfterKey: p.after.Key, AfterID: p.after.ID, FromKey: from, UntilKey: until, PageSize: p.queryLimit()})
		},
		count: func(ctx context.Context) (int64, error) {
			return s.reads.CategoryCount(ctx, db.CategoryCountParams{AccountID: p.account, FromKey: from, UntilKey: until})
		},
		item:     categoryFrom,
		cursorOf: func(row db.Category) httpjson.Position { return httpjson.Position{Key: row.NameKey, ID: row.ID} },
	})
}
