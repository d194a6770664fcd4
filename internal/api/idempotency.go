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

// created is what a POST made, and its answer.
type created struct {
	status   int
	location string
	value    any // the representation
}

// create runs what a POST does, a single statement, and answers. Under an
// Idempotency-Key the statement and its answer are stored in one transaction, so
// that after a crash there are both or neither, and the next request under the
// key gets the same answer. An error frees the key. The preconditions are those of
// the path, a list without a tag.
func (s *Server) create(c *gin.Context, in *input, effect func(context.Context, *db.Queries) (created, error)) error {
	if err := checkUntagged(c.Request); err != nil {
		return err
	}
	ctx := c.Request.Context()
	if in.idempotencyKey == "" {
		made, err := postgres.Retry(ctx, effect, s.writes)
		if err != nil {
			return err
		}
		representation, err := httpjson.Encode(made.value)
		if err != nil {
			return err
		}
		sendCreated(c, made.status, made.location, representation)
		return nil
	}
	answer, err := postgres.Transact(ctx, s.db, func(ctx context.Context, tx pgx.Tx) (storedResponse, error) {
		return runOnce(ctx, db.New(tx), caller(c).KeyID, in.idempotencyKey, fingerprint(c.Request, in.body), effect)
	})
	if err != nil {
		return err
	}
	if answer.replayed {
		c.Header("Idempotent-Replayed", "true")
		s.metrics.Replayed()
	}
	sendCreated(c, answer.status, answer.location, answer.representation)
	return nil
}

// storedResponse is an answer as it is kept under its Idempotency-Key.
type storedResponse struct {
	status         int
	location       string
	representation []byte
	replayed       bool
}

// runOnce returns the answer stored under a key, or makes it and stores it.
func runOnce(ctx context.Context, queries *db.Queries, apiKeyID int64, key string, fingerprint []byte,
	effect func(context.Context, *db.Queries) (created, error),
) (storedResponse, error) {
	// The lock comes in a statement of its own, so that the next one sees what
	// the request that held it before has committed.
	locked, err := queries.IdempotencyKeyLock(ctx, db.IdempotencyKeyLockParams{Key: key, APIKeyID: apiKeyID})
	if err != nil {
		return storedResponse{}, err
	}
	if !locked {
		return storedResponse{}, errIdempotencyInProgress
	}
	kept, err := queries.IdempotencyKeyGet(ctx, db.IdempotencyKeyGetParams{APIKeyID: apiKeyID, Key: key})
	switch {
	case err == nil && !bytes.Equal(kept.Fingerprint, fingerprint):
		return storedResponse{}, errIdempotencyKeyReused
	case err == nil:
		// The first request may have committed without the standby having it.
		replay := storedResponse{status: int(kept.Status), location: kept.Location, representation: kept.Body, replayed: true}
		return replay, queries.AwaitStandby(ctx)
	case !errors.Is(err, pgx.ErrNoRows):
		return storedResponse{}, err
	}
	made, err := effect(ctx, queries)
	if err != nil {
		return storedResponse{}, err
	}
	answer := storedResponse{status: made.status, location: made.location}
	if answer.representation, err = httpjson.Encode(made.value); err != nil {
		return storedResponse{}, err
	}
	return answer, queries.IdempotencyKeyKeep(ctx, db.IdempotencyKeyKeepParams{
		APIKeyID:    apiKeyID,
		Key:         key,
		Fingerprint: fingerprint,
		Status:      int32(answer.status), //nolint:gosec // an HTTP status
		Location:    answer.location,
		Body:        answer.representation,
	})
}

// fingerprint tells requests under one key apart, by their path and body.
func fingerprint(r *http.Request, body []byte) []byte {
	hash := sha256.New()
	hash.Write([]byte(r.URL.EscapedPath() + "\n"))
	hash.Write(body)
	return hash.Sum(nil)
}

// sendCreated sends what a POST made, and where it is. A message is answered 202,
// which is no representation of the message as it is later, so it has no tag.
func sendCreated(c *gin.Context, status int, location string, representation []byte) {
	c.Header("Location", location)
	if status == http.StatusCreated {
		httpjson.SendTagged(c.Writer, status, representation)
		return
	}
	c.Header("Cache-Control", "private, no-cache")
	httpjson.Send(c.Writer, status, httpjson.ContentType, representation)
}

const (
	sweepInterval = 10 * time.Minute
	sweepBatch    = 1000
)

// SweepIdempotencyKeys deletes stored answers that have expired, a batch at a
// time, until the context ends.
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

// sweep deletes the stored responses that have expired by now. It logs errors, unless
// the schema is behind, of which serve warns.
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
