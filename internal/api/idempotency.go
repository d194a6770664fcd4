package api

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"strings"
	"time"

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

// fingerprint distinguishes requests with the same key by their path and body.
func fingerprint(r *http.Request, body []byte) []byte {
	hash := sha256.New()
	hash.Write([]byte(r.URL.EscapedPath() + "\n"))
	hash.Write(body)
	return hash.Sum(nil)
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
		swept, err := postgres.Transact(ctx, s.db, func(ctx context.Context, tx pgx.Tx) (int64, error) {
			queries := db.New(tx)
			locked, err := queries.IdempotencyKeysTryLockSweep(ctx)
			if err != nil || !locked { // another process sweeps
				return 0, err
			}
			return queries.IdempotencyKeySweep(ctx, sweepBatch)
		})
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
