package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

const maxIdempotencyKey = 255 // bytes

// idempotencyKey returns the Idempotency-Key of a POST, or "" if it has none. A request
// whose response has a secret must not have one. The error is
// [errInvalidIdempotencyKey].
func idempotencyKey(r *http.Request, secret bool) (string, error) {
	fields := r.Header.Values("Idempotency-Key")
	if len(fields) == 0 {
		return "", nil
	}
	if secret {
		return "", errInvalidIdempotencyKey.WithViolations([]httpjson.Violation{{
			Header: "Idempotency-Key", Code: "not_allowed", Message: "`Idempotency-Key` is not allowed, because the server never stores a response with a secret. Remove the header.",
		}})
	}
	key := fields[0]
	invisible := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(fields) > 1 || key == "" || len(key) > maxIdempotencyKey || strings.ContainsFunc(key, invisible) {
		return "", errInvalidIdempotencyKey.WithViolations([]httpjson.Violation{{
			Header: "Idempotency-Key", Code: "invalid_format", Message: "`Idempotency-Key` must have 1 to 255 visible ASCII characters and appear once.",
		}})
	}
	return key, nil
}

// effect is the statement of a POST, which is safe to retry, and its response.
type effect[Row any] struct {
	// statement runs on the queries, in a transaction or not. The transaction of a request
	// with an Idempotency-Key also stores the response.
	statement func(context.Context, *db.Queries) (Row, error)
	// coalesced runs the statement together with those of other requests, without a
	// transaction. If it is nil, statement does it.
	coalesced func(context.Context) (Row, error)
	// multiple is whether statement needs a transaction, because it runs several ones. It
	// may wait for a lock of the account, so it takes one of its turns.
	multiple bool
	// creates is the kind of rows that the statement creates, for the limits of a sandbox.
	creates account.Kind
	// respond returns the response, or why the statement had no effect.
	respond func(Row) (created, error)
}

// created is the response of a POST.
type created struct {
	status   int
	location string
	value    any
	id       int64 // of the new row, for the log; 0 if nothing logs it
}

// response is the response of a POST in the form in which the server stores it.
type response struct {
	status   int
	location string
	body     []byte
	id       int64 // as in created; 0 for a stored response
}

// runOnce runs the effect of a POST and retries it. Under an Idempotency-Key it runs the
// effect once: the statement and its response commit in one transaction, and later
// requests with the key get the same response. An error stores nothing. The request must
// not have a precondition, because a collection has no entity tag.
func runOnce[Row any](s *Server, c *gin.Context, in *input, e effect[Row]) (response, error) {
	if err := checkUntagged(c.Request); err != nil {
		return response{}, err
	}
	ctx, identity := c.Request.Context(), caller(c)
	if in.idempotencyKey == "" && !e.multiple && !identity.IsSandbox() {
		row, err := postgres.Retry(ctx, e.runOutside, s.writes)
		if err != nil {
			return response{}, err
		}
		return e.responseTo(row)
	}
	if e.multiple || identity.IsSandbox() {
		number := oneTurn
		if identity.IsSandbox() && e.creates != account.NoRows {
			number = allTurns // as enterStore does
		}
		end, err := s.turns.take(ctx, identity.AccountID, number)
		if err != nil {
			return response{}, err
		}
		defer end()
	}
	request := keyedRequest{caller: identity, key: in.idempotencyKey, fingerprint: fingerprint(c.Request, in.body)}
	var replayed bool
	made, err := postgres.Transact(ctx, s.db, func(ctx context.Context, tx pgx.Tx) (made response, err error) {
		queries := db.New(tx)
		if err := enterStore(ctx, queries, identity, e.creates); err != nil {
			return response{}, err
		}
		if in.idempotencyKey == "" {
			return e.run(ctx, queries, identity)
		}
		made, replayed, err = replayOrRun(ctx, queries, request, e)
		return made, err
	})
	if err == nil && replayed {
		c.Header("Idempotent-Replayed", "true")
		s.metrics.Replayed()
	}
	return made, err
}

// runOutside runs the effect outside of a transaction.
func (e effect[Row]) runOutside(ctx context.Context, writes *db.Queries) (Row, error) {
	if e.coalesced != nil {
		return e.coalesced(ctx)
	}
	return e.statement(ctx, writes)
}

// run runs the effect in a transaction.
func (e effect[Row]) run(ctx context.Context, queries *db.Queries, caller auth.Identity) (response, error) {
	if caller.IsSandbox() && e.creates != account.NoRows {
		if err := account.CheckRoom(ctx, queries, caller.AccountID, e.creates); err != nil {
			return response{}, storeError(err)
		}
	}
	row, err := e.statement(ctx, queries)
	if err != nil {
		return response{}, err
	}
	return e.responseTo(row)
}

// responseTo returns the encoded response to a request whose statement returned row.
func (e effect[Row]) responseTo(row Row) (response, error) {
	made, err := e.respond(row)
	if err != nil {
		return response{}, err
	}
	body, err := httpjson.Encode(made.value)
	return response{made.status, made.location, body, made.id}, err
}

// keyedRequest identifies a request with an Idempotency-Key.
type keyedRequest struct {
	caller      auth.Identity
	key         string
	fingerprint []byte
}

// replayOrRun returns the response stored under an Idempotency-Key, or runs the effect
// and stores its response. The error is [errIdempotencyInProgress],
// [errIdempotencyKeyReused] or that of the effect.
func replayOrRun[Row any](ctx context.Context, queries *db.Queries, r keyedRequest, e effect[Row]) (made response, replayed bool, err error) {
	// A separate statement takes the lock, so that the next one sees what the previous
	// holder has committed.
	locked, err := queries.IdempotencyKeyLock(ctx, db.IdempotencyKeyLockParams{AccountID: r.caller.AccountID, Key: r.key, APIKeyID: r.caller.KeyID})
	if err != nil {
		return response{}, false, err
	}
	if !locked {
		return response{}, false, errIdempotencyInProgress
	}
	stored, err := queries.IdempotencyKeyGet(ctx, db.IdempotencyKeyGetParams{AccountID: r.caller.AccountID, APIKeyID: r.caller.KeyID, Key: r.key})
	switch {
	case err == nil && !bytes.Equal(stored.Fingerprint, r.fingerprint):
		return response{}, false, errIdempotencyKeyReused
	case err == nil:
		// The first request may have committed before the standby had it.
		replay := response{status: int(stored.Status), location: stored.Location, body: stored.Body}
		return replay, true, queries.AwaitStandby(ctx)
	case !errors.Is(err, pgx.ErrNoRows):
		return response{}, false, err
	}
	if made, err = e.run(ctx, queries, r.caller); err != nil {
		return response{}, false, err
	}
	return made, false, queries.IdempotencyKeyKeep(ctx, db.IdempotencyKeyKeepParams{
		AccountID:   r.caller.AccountID,
		APIKeyID:    r.caller.KeyID,
		Key:         r.key,
		Fingerprint: r.fingerprint,
		Status:      int32(made.status), //nolint:gosec // an HTTP status
		Location:    made.location,
		Body:        made.body,
	})
}

// fingerprint distinguishes requests with the same key by their path and body.
func fingerprint(r *http.Request, body []byte) []byte {
	hash := sha256.New()
	hash.Write([]byte(r.URL.EscapedPath() + "\n"))
	hash.Write(body)
	return hash.Sum(nil)
}

// writeCreated sends the response of a POST. Only a 201 has an entity tag: a 202 does not
// represent the resource as a later GET returns it.
func writeCreated(c *gin.Context, made response) {
	c.Header("Location", made.location)
	if made.status == http.StatusCreated {
		httpjson.SendTagged(c.Writer, made.status, made.body)
		return
	}
	c.Header("Cache-Control", "private, no-cache")
	httpjson.Send(c.Writer, made.status, httpjson.ContentType, made.body)
}

const (
	sweepInterval = 10 * time.Minute
	sweepBatch    = 1000
)

// SweepIdempotencyKeys deletes expired responses, in batches, until the context ends.
func (s *Server) SweepIdempotencyKeys(ctx context.Context) {
	for ticker := time.NewTicker(sweepInterval); ; {
		s.sweep(ctx)
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
		}
	}
}

// sweep deletes the responses that have expired by now. It logs errors, unless the
// schema is behind, because serve already warns about that.
func (s *Server) sweep(ctx context.Context) {
	for {
		swept, err := s.writes.IdempotencyKeySweep(ctx, sweepBatch)
		if err != nil && ctx.Err() == nil && !s.schemaIsBehind(ctx) {
			s.log.LogAttrs(ctx, slog.LevelWarn, "could not sweep expired idempotency keys", slog.Any("error", err))
		}
		if err != nil || swept < sweepBatch {
			return
		}
	}
}

func (s *Server) schemaIsBehind(ctx context.Context) bool {
	current, err := s.db.SchemaIsCurrent(ctx)
	return err == nil && !current
}
