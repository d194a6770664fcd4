package api

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/casefold"
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
	in := s.decode(c, required("name"), readOnly("id"))
	params, err := categoryParams(in)
	if err != nil {
		return err
	}
	params.AccountID = caller(c).AccountID
	made, err := runOnce(s, c, in, effect[db.Category]{
		creates: account.Categories,
		statement: func(ctx context.Context, queries *db.Queries) (db.Category, error) {
			row, err := queries.CategoryCreate(ctx, params)
			if postgres.IsUniqueViolation(err) {
				err = errCategoryExists
			}
			return row, err
		},
		respond: func(row db.Category) (created, error) {
			return created{status: http.StatusCreated, location: itemPath("/categories", row.ID), value: categoryFrom(row)}, nil
		},
	})
	if err != nil {
		return err
	}
	writeCreated(c, made)
	return nil
}

// categoryParams reads the fields of a new category.
func categoryParams(in *input) (db.CategoryCreateParams, error) {
	name, description := in.Name(maxNameLength), in.Text("description", 0, maxDescriptionLength)
	if err := in.Err(); err != nil {
		return db.CategoryCreateParams{}, err
	}
	return db.CategoryCreateParams{Name: *name, NameKey: casefold.Key(*name), Description: description}, nil
}

func (s *Server) getCategory(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("categoryId")
	if err := params.Err(); err != nil {
		return err
	}
	row, err := s.queries.CategoryGet(c.Request.Context(), db.CategoryGetParams{AccountID: caller(c).AccountID, ID: id})
	if err != nil {
		return orNotFound(err, errCategoryNotFound)
	}
	return httpjson.WriteResource(c.Writer, c.Request, categoryFrom(row))
}

func (s *Server) updateCategory(c *gin.Context) error {
	in := s.decode(c, pathID("categoryId"), readOnly("id"))
	name := in.Name(maxNameLength)
	description, cleared := in.NullableText("description", maxDescriptionLength)
	if err := in.Err(); err != nil {
		return err
	}
	row, err := updateIfMatch(s, c, lockCategory(caller(c).AccountID, in.pathID), func(ctx context.Context, queries *db.Queries) (db.Category, error) {
		return queries.CategoryUpdate(ctx, db.CategoryUpdateParams{
			AccountID:      caller(c).AccountID,
			ID:             in.pathID,
			Name:           name,
			NameKey:        keyOf(name),
			SetDescription: description != nil || cleared,
			Description:    description,
		})
	})
	if postgres.IsUniqueViolation(err) {
		return errCategoryExists
	}
	if err != nil {
		return orNotFound(err, errCategoryNotFound)
	}
	return httpjson.WriteResource(c.Writer, c.Request, categoryFrom(row))
}

func (s *Server) deleteCategory(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("categoryId")
	if err := params.Err(); err != nil {
		return err
	}
	deleted, err := updateIfMatch(s, c, lockCategory(caller(c).AccountID, id), func(ctx context.Context, queries *db.Queries) (int64, error) {
		return queries.CategoryDelete(ctx, db.CategoryDeleteParams{AccountID: caller(c).AccountID, ID: id})
	})
	switch {
	case postgres.IsForeignKeyViolation(err):
		return errCategoryInUse
	case err != nil:
		return orNotFound(err, errCategoryNotFound)
	case deleted == 0:
		return errCategoryNotFound
	}
	c.Status(http.StatusNoContent)
	return nil
}

// lockCategory locks a category for If-Match.
func lockCategory(accountID, id int64) func(context.Context, *db.Queries) (any, error) {
	return func(ctx context.Context, queries *db.Queries) (any, error) {
		row, err := queries.CategoryLock(ctx, db.CategoryLockParams{AccountID: accountID, ID: id})
		return categoryFrom(row), err
	}
}

func (s *Server) listCategories(c *gin.Context) error {
	params := readParams(c)
	prefix := params.Prefix("name", maxNameLength)
	from, until := casefold.Range(prefix)
	p := newPage(c, params, defaultLimit, byIDOrName)
	p.startWithin(from, until)
	if err := params.Err(); err != nil {
		return err
	}
	return writePage(s, c, p, list[db.Category, category]{
		find: func(ctx context.Context) ([]db.Category, error) {
			return s.sorted(p).CategoryList(ctx, db.CategoryListParams{AccountID: p.account, AfterKey: p.after.Key, AfterID: p.after.ID, FromKey: from, UntilKey: until, PageSize: p.queryLimit()})
		},
		count: func(ctx context.Context) (int64, error) {
			return s.queries.CategoryCount(ctx, db.CategoryCountParams{AccountID: p.account, FromKey: from, UntilKey: until})
		},
		item:     categoryFrom,
		cursorOf: func(row db.Category) httpjson.Position { return httpjson.Position{Key: row.NameKey, ID: row.ID} },
	})
}
