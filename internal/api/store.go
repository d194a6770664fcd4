package api

import (
	"cmp"
	"context"
	"errors"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/admission"
	"petstore/internal/gate"
	"petstore/internal/postgres"
)

// transact is [transactTagged] for a resource without an entity tag. The error comes from the action
// or a precondition.
func transact[Result any](s *Server, c *gin.Context, pool *admission.Pool, action func(context.Context, *db.Queries) (Result, error)) (result Result, err error) {
	if err := checkUntagged(c.Request); err != nil {
		return result, err
	}
	return transactTagged(s, c, pool, action)
}

// transactTagged runs a change of what the caller's account has in a transaction, and retries it.
// Such changes may wait for each other, so each counts in a pool. The action checks the
// precondition of a resource with an entity tag.
func transactTagged[Result any](s *Server, c *gin.Context, pool *admission.Pool, action func(context.Context, *db.Queries) (Result, error)) (result Result, err error) {
	identity := gate.Caller(c)
	leave, err := s.gate.Enter(c, pool)
	if err != nil {
		return result, err
	}
	defer leave()
	return transactAt(s, c, func(ctx context.Context, tx pgx.Tx) (result Result, err error) {
		queries := db.New(tx)
		if identity.IsSandbox() {
			if err := account.Enter(ctx, queries, identity.AccountID, false); err != nil {
				return result, err
			}
		}
		return action(ctx, queries)
	})
}

// transactAt runs an action in a transaction, retries it, and reports its position in the
// response. The API key must work until the action has all its locks and only the commit is left.
func transactAt[Result any](s *Server, c *gin.Context, action func(context.Context, pgx.Tx) (Result, error)) (Result, error) {
	result, position, err := postgres.TransactAt(c.Request.Context(), s.options.DB, func(ctx context.Context, tx pgx.Tx) (Result, error) {
		result, err := action(ctx, tx)
		if err == nil {
			err = s.gate.CheckKey(c)
		}
		return result, err
	})
	if err == nil {
		s.gate.ReportPosition(c, position)
	}
	return result, err
}

// confirmGone returns the error of a DELETE. If the error is notFound, an earlier attempt may have
// committed on the primary only, and clients take 404 for success. So the response waits for the
// synchronous standby, as the one to a deletion does.
func (s *Server) confirmGone(c *gin.Context, err, notFound error) error {
	if !errors.Is(err, notFound) {
		return err
	}
	leave, failed := s.gate.Enter(c, s.gate.Limits.Locks)
	if failed != nil {
		return failed
	}
	defer leave()
	_, failed = postgres.Transact(c.Request.Context(), s.options.DB, func(ctx context.Context, tx pgx.Tx) (_ struct{}, err error) {
		db.New(tx).StandbyAwait(ctx, []int64{gate.Caller(c).AccountID}).Exec(func(_ int, failed error) { err = failed })
		return struct{}{}, err
	})
	return cmp.Or(failed, err)
}
