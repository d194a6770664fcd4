package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// apiKey is the ApiKey schema of the spec.
type apiKey struct {
	ID         int64      `json:"id"`
	Name       string     `json:"name"`
	Scope      string     `json:"scope"`
	Prefix     string     `json:"prefix"`
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty"`
	RevokedAt  *time.Time `json:"revokedAt,omitempty"`
}

// apiKeyWithSecret is the ApiKeyWithSecret schema of the spec.
type apiKeyWithSecret struct {
	apiKey

	Secret string `json:"secret"`
}

func apiKeyFrom(row db.APIKeyListRecentRow) apiKey {
	return apiKey{
		ID: row.ID, Name: row.Name, Scope: row.Scope, Prefix: row.Prefix, CreatedAt: row.CreatedAt.UTC(),
		ExpiresAt: inUTC(row.ExpiresAt), LastUsedAt: inUTC(row.LastUsedAt), RevokedAt: inUTC(row.RevokedAt),
	}
}

// getAccount answers whose key the request carries, and the key.
func (s *Server) getAccount(c *gin.Context) error {
	if err := readParams(c).Err(); err != nil {
		return err
	}
	row, err := s.queries.AccountGet(c.Request.Context(), caller(c).KeyID)
	if err != nil {
		return orNotFound(err, errInvalidAPIKey)
	}
	c.Header("Cache-Control", "private, no-store")
	return httpjson.WriteUntagged(c.Writer, c.Request, struct {
		ID        int64     `json:"id"`
		Name      string    `json:"name"`
		CreatedAt time.Time `json:"createdAt"`
		APIKey    apiKey    `json:"apiKey"`
	}{row.ID, row.Name, row.CreatedAt.UTC(), apiKeyFrom(db.APIKeyListRecentRow{
		ID: row.KeyID, Name: row.KeyName, Scope: row.KeyScope, Prefix: row.KeyPrefix, CreatedAt: row.KeyCreatedAt,
		ExpiresAt: row.ExpiresAt, LastUsedAt: row.LastUsedAt, RevokedAt: row.RevokedAt,
	})})
}

// listAPIKeys lists the keys of the caller's account by id.
func (s *Server) listAPIKeys(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, byIDOnly)
	p.account = caller(c).AccountID
	if err := params.Err(); err != nil {
		return err
	}
	return writePage(s, c, p, list[db.APIKeyListRecentRow, apiKey]{
		find: func(ctx context.Context) ([]db.APIKeyListRecentRow, error) {
			return s.queries.APIKeyListRecent(ctx, db.APIKeyListRecentParams{AccountID: p.account, AfterID: p.after.ID, PageSize: p.queryLimit()})
		},
		count: func(ctx context.Context) (int64, error) {
			return s.queries.APIKeyCountRecent(ctx, p.account)
		},
		item:     apiKeyFrom,
		cursorOf: func(row db.APIKeyListRecentRow) httpjson.Position { return httpjson.Position{ID: row.ID} },
	})
}

func (s *Server) createAPIKey(c *gin.Context) error {
	in := s.decode(c, secret, required("name", "scope"), readOnly("id", "prefix", "createdAt", "lastUsedAt", "revokedAt", "secret"))
	name := in.Name(maxAPIKeyNameLength)
	scopeName := in.Enum("scope", auth.Read.String(), auth.Write.String(), auth.Admin.String())
	expiresAt := in.FutureTime("expiresAt", s.now())
	if err := in.Err(); err != nil {
		return err
	}
	if err := checkUntagged(c.Request); err != nil {
		return err
	}
	scope, err := auth.ParseScope(*scopeName)
	if err != nil {
		return err
	}
	key := auth.NewKey{AccountID: caller(c).AccountID, Name: *name, Scope: scope, ExpiresAt: expiresAt}
	var secret auth.Secret
	row, err := postgres.Retry(c.Request.Context(), func(ctx context.Context, key auth.NewKey) (row db.APIKeyCreateRow, err error) {
		row, secret, err = auth.Issue(ctx, s.writes, key)
		return row, err
	}, key)
	if err != nil {
		return err
	}
	recordKeyEvent(c, eventKeyCreated, row.ID)
	return writeSecret(c, db.APIKeyListRecentRow(row), secret)
}

// rotateAPIKey gives a key a new secret. All processes hear of it; this one
// forgets the old secret before it answers.
func (s *Server) rotateAPIKey(c *gin.Context) error {
	in := s.decode(c, pathID("apiKeyId"), secret, optionalBody)
	seconds := in.Integer("graceSeconds", 0, int64(auth.MaxGrace/time.Second))
	if err := in.Err(); err != nil {
		return err
	}
	if err := checkUntagged(c.Request); err != nil {
		return err
	}
	var grace time.Duration
	if seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}
	var secret auth.Secret
	row, err := postgres.Retry(c.Request.Context(), func(ctx context.Context, id int64) (row db.APIKeyRotateRow, err error) {
		row, secret, err = auth.Rotate(ctx, s.writes, caller(c).AccountID, in.pathID, grace)
		return row, err
	}, in.pathID)
	if errors.Is(err, auth.ErrNoKey) {
		return errAPIKeyNotFound
	}
	if err != nil {
		return err
	}
	s.verifier.Forget()
	recordKeyEvent(c, eventKeyRotated, row.ID)
	return writeSecret(c, db.APIKeyListRecentRow{
		ID: row.ID, Name: row.Name, Scope: row.Scope, Prefix: row.Prefix, CreatedAt: row.CreatedAt,
		ExpiresAt: row.ExpiresAt, LastUsedAt: row.LastUsedAt, RevokedAt: row.RevokedAt,
	}, secret)
}

// revokeAPIKey ends every secret of a key. The key may be that of the request
// itself, unless it is the last live admin key of the account.
func (s *Server) revokeAPIKey(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("apiKeyId")
	if err := params.Err(); err != nil {
		return err
	}
	if err := checkUntagged(c.Request); err != nil {
		return err
	}
	revoked, err := postgres.Transact(c.Request.Context(), s.db, func(ctx context.Context, tx pgx.Tx) (bool, error) {
		return auth.Revoke(ctx, db.New(tx), caller(c).AccountID, id)
	})
	switch {
	case errors.Is(err, auth.ErrNoKey):
		return errAPIKeyNotFound
	case errors.Is(err, auth.ErrLastAdminKey):
		return errLastAdminKey
	case err != nil:
		return err
	}
	if revoked {
		s.verifier.Forget()
		recordKeyEvent(c, eventKeyRevoked, id)
	}
	c.Status(http.StatusNoContent)
	return nil
}

// writeSecret is the one answer that holds a secret. It has no tag, since no GET
// gives this representation, and nobody may store it.
func writeSecret(c *gin.Context, row db.APIKeyListRecentRow, secret auth.Secret) error {
	representation, err := httpjson.Encode(apiKeyWithSecret{apiKeyFrom(row), secret.Reveal()})
	if err != nil {
		return err
	}
	c.Header("Location", itemPath("/account/api-keys", row.ID))
	c.Header("Cache-Control", "no-store")
	httpjson.Send(c.Writer, http.StatusCreated, httpjson.ContentType, representation)
	return nil
}
