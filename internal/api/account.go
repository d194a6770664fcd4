package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// Key is the ApiKey schema of the spec.
type Key struct {
	ID         int64      `json:"id"`
	Name       string     `json:"name"`
	Scope      string     `json:"scope"`
	Prefix     string     `json:"prefix"`
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty"`
	RevokedAt  *time.Time `json:"revokedAt,omitempty"`
}

// KeyWithSecret is the ApiKeyWithSecret schema of the spec.
type KeyWithSecret struct {
	Key

	Secret string `json:"secret"`
}

// KeyFrom returns the representation of an API key.
func KeyFrom(row db.APIKeyListRow) Key {
	return Key{
		ID: row.ID, Name: row.Name, Scope: row.Scope, Prefix: row.Prefix, CreatedAt: row.CreatedAt.UTC(),
		ExpiresAt: inUTC(row.ExpiresAt), LastUsedAt: inUTC(row.LastUsedAt), RevokedAt: inUTC(row.RevokedAt),
	}
}

// newAPIKeyFrom returns a key that was just created, with its secret.
func newAPIKeyFrom(row db.APIKeyCreateRow, secret auth.Secret) KeyWithSecret {
	return KeyWithSecret{KeyFrom(db.APIKeyListRow{
		ID: row.ID, Name: row.Name, Scope: row.Scope, Prefix: row.Prefix, CreatedAt: row.CreatedAt, ExpiresAt: row.ExpiresAt,
	}), secret.Reveal()}
}

// getAccount returns the account and the API key of the request.
func (s *Server) getAccount(c *gin.Context) error {
	ctx := c.Request.Context()
	row, err := s.reads.APIKeyGetWithAccount(ctx, db.APIKeyGetWithAccountParams{AccountID: gate.Caller(c).AccountID, APIKeyID: gate.Caller(c).KeyID})
	if errors.Is(err, pgx.ErrNoRows) {
		// The key works, so a replica without it is behind.
		err = cmp.Or(postgres.ReaderOf(ctx).Require(postgres.Position{}), err)
	}
	if err != nil {
		return orNotFound(err, gate.ErrInvalidAPIKey)
	}
	return httpjson.WriteUntagged(c.Writer, c.Request, struct {
		ID        string    `json:"id"`
		Name      string    `json:"name"`
		CreatedAt time.Time `json:"createdAt"`
		APIKey    Key       `json:"apiKey"`
	}{account.PublicID(row.ID, gate.Caller(c).IsSandbox()), row.Name, row.CreatedAt.UTC(), KeyFrom(db.APIKeyListRow{
		ID: row.KeyID, Name: row.KeyName, Scope: row.KeyScope, Prefix: row.KeyPrefix, CreatedAt: row.KeyCreatedAt,
		ExpiresAt: row.ExpiresAt, LastUsedAt: row.LastUsedAt, RevokedAt: row.RevokedAt,
	})})
}

// listAPIKeys lists the keys of the caller's account by id.
func (s *Server) listAPIKeys(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, byIDOnly)
	return writePage(s, c, params, p, list[db.APIKeyListRow, Key]{
		find: func(ctx context.Context) ([]db.APIKeyListRow, error) {
			return s.reads.APIKeyList(ctx, db.APIKeyListParams{AccountID: p.account, AfterID: p.after.ID, PageSize: p.queryLimit()})
		},
		count: func(ctx context.Context) (int64, error) {
			count, err := s.reads.APIKeyCountStored(ctx, p.account)
			return count.Stored, err
		},
		item:     KeyFrom,
		cursorOf: func(row db.APIKeyListRow) httpjson.Position { return httpjson.Position{ID: row.ID} },
	})
}

// getAPIKey sends a key of the caller's account.
func (s *Server) getAPIKey(c *gin.Context, id int64) error {
	row, err := s.reads.APIKeyGetRecent(c.Request.Context(), db.APIKeyGetRecentParams{AccountID: gate.Caller(c).AccountID, ID: id})
	if err != nil {
		return orNotFound(err, errAPIKeyNotFound)
	}
	return httpjson.WriteUntagged(c.Writer, c.Request, KeyFrom(db.APIKeyListRow(row)))
}

func (s *Server) createAPIKey(c *gin.Context) error {
	in := s.decode(c, secret, required("name", "scope"), readOnly("id", "prefix", "createdAt", "lastUsedAt", "revokedAt", "secret"))
	key, err := s.apiKeyParams(in, gate.Caller(c))
	if err != nil {
		return err
	}
	made, err := transact(s, c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries) (KeyWithSecret, error) {
		row, secret, err := auth.Issue(ctx, queries, key)
		return newAPIKeyFrom(row, secret), err
	})
	if err != nil {
		return err
	}
	gate.Record(c, "api_key_created", slog.Int64("target_key_id", made.ID))
	return writeNew(c, itemPath("/account/api-keys", made.ID), made)
}

// apiKeyParams reads the fields of a new API key. It expires no later than the key of
// its creator. The error is [errExpiryBeyondCreator] or a violation.
func (s *Server) apiKeyParams(in *input, creator auth.Identity) (auth.NewKey, error) {
	name := in.Name(maxAPIKeyNameLength)
	scopeName := in.Enum("scope", auth.Read.String(), auth.Write.String(), auth.Admin.String())
	expiresAt := in.FutureTime("expiresAt", s.options.Now())
	if err := in.Err(); err != nil {
		return auth.NewKey{}, err
	}
	if expiresAt == nil {
		expiresAt = creator.ExpiresAt
	}
	if err := checkExpiry(expiresAt, creator); err != nil {
		return auth.NewKey{}, err
	}
	scope, err := auth.ParseScope(*scopeName)
	return auth.NewKey{AccountID: creator.AccountID, Name: *name, Scope: scope, ExpiresAt: expiresAt}, err
}

// checkExpiry returns [errExpiryBeyondCreator] if a secret would work longer than the key
// of the caller who receives it. Nil means forever.
func checkExpiry(expiresAt *time.Time, caller auth.Identity) error {
	if caller.ExpiresAt != nil && (expiresAt == nil || expiresAt.After(*caller.ExpiresAt)) {
		return errExpiryBeyondCreator
	}
	return nil
}

// rotateAPIKey gives a key a new secret. This process forgets the old one before it
// responds, and the others within a second.
func (s *Server) rotateAPIKey(c *gin.Context, id int64) error {
	in := s.decode(c, secret)
	grace := in.grace()
	if err := in.Err(); err != nil {
		return err
	}
	made, err := transact(s, c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries) (KeyWithSecret, error) {
		row, secret, err := auth.Rotate(ctx, queries, gate.Caller(c).AccountID, id, grace)
		if err == nil {
			err = checkExpiry(row.ExpiresAt, gate.Caller(c)) // which rolls the rotation back
		}
		return KeyWithSecret{KeyFrom(db.APIKeyListRow{
			ID: row.ID, Name: row.Name, Scope: row.Scope, Prefix: row.Prefix, CreatedAt: row.CreatedAt,
			ExpiresAt: row.ExpiresAt, LastUsedAt: row.LastUsedAt, RevokedAt: row.RevokedAt,
		}), secret.Reveal()}, err
	})
	if err != nil {
		return err
	}
	s.options.Verifier.ForgetKey(id)
	gate.Record(c, "api_key_rotated", slog.Int64("target_key_id", id))
	return writeNew(c, itemPath("/account/api-keys", made.ID), made)
}

// revokeAPIKey revokes all secrets of a key. The request may revoke its own key, unless
// it is the last live admin key of the account.
func (s *Server) revokeAPIKey(c *gin.Context, id int64) error {
	revoked, err := transact(s, c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries) (bool, error) {
		return auth.Revoke(ctx, queries, gate.Caller(c).AccountID, id)
	})
	if err != nil {
		return err
	}
	if revoked {
		s.options.Verifier.ForgetKey(id)
		gate.Record(c, "api_key_revoked", slog.Int64("target_key_id", id))
	}
	c.Status(http.StatusNoContent)
	return nil
}

// writeNew sends a new resource that has no entity tag, such as one with its secret, which
// nobody may store.
func writeNew(c *gin.Context, location string, value any) error {
	body, err := httpjson.Encode(value)
	if err != nil {
		return err
	}
	c.Header("Location", location)
	c.Header("Cache-Control", "no-store")
	httpjson.Send(c.Writer, http.StatusCreated, httpjson.ContentType, body)
	return nil
}
