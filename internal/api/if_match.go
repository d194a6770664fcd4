package api

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// checkUntagged evaluates the preconditions of a write to a resource without an entity
// tag. The error is [httpjson.ErrPreconditionFailed].
func checkUntagged(r *http.Request) error {
	_, err := httpjson.CheckPreconditions(r, httpjson.NoTag)
	return err
}

// updateIfMatch runs a write of one statement, and retries it. If the request has
// preconditions, lock reads and locks what the statement changes, and the statement
// follows in the same transaction if they hold. The error is that of lock or write, or
// [httpjson.ErrPreconditionFailed].
func updateIfMatch[Result any](s *Server, c *gin.Context,
	lock func(context.Context, *db.Queries) (current any, err error),
	write func(context.Context, *db.Queries) (Result, error),
) (Result, error) {
	ctx := c.Request.Context()
	identity, conditional := caller(c), httpjson.IsConditional(c.Request)
	if !conditional && !identity.IsSandbox() {
		return postgres.Retry(ctx, write, s.writes)
	}
	if identity.IsSandbox() {
		end, err := s.turns.take(ctx, identity.AccountID, oneTurn)
		if err != nil {
			return *new(Result), err
		}
		defer end()
	}
	return postgres.Transact(ctx, s.db, func(ctx context.Context, tx pgx.Tx) (result Result, err error) {
		queries := db.New(tx)
		if err := enterStore(ctx, queries, identity, account.NoRows); err != nil {
			return result, err
		}
		if !conditional {
			return write(ctx, queries)
		}
		current, err := lock(ctx, queries)
		if err != nil {
			return result, err
		}
		representation, err := httpjson.Encode(current)
		if err != nil {
			return result, err
		}
		if _, err := httpjson.CheckPreconditions(c.Request, httpjson.ETag(representation)); err != nil {
			return result, err
		}
		return write(ctx, queries)
	})
}
