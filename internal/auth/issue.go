package auth

import (
	"context"
	"fmt"
	"time"

	"petstore/db"
)

// NewKey is what an API key is made from.
type NewKey struct {
	AccountID int64
	Name      string // 1 to 100 code points
	Scope     Scope
	ExpiresAt *time.Time // nil: never
}

// Issue stores a new key and returns its id and the secret, which is nowhere else.
func Issue(ctx context.Context, queries *db.Queries, key NewKey) (id int64, secret Secret, err error) {
	secret = NewSecret()
	hash := secret.Hash()
	id, err = queries.APIKeyCreate(ctx, db.APIKeyCreateParams{
		AccountID:    key.AccountID,
		Name:         key.Name,
		Scope:        key.Scope.String(),
		Prefix:       secret.Prefix(),
		SecretSha256: hash[:],
		ExpiresAt:    key.ExpiresAt,
	})
	if err != nil {
		return 0, Secret{}, fmt.Errorf("auth: storing the key: %w", err)
	}
	return id, secret, nil
}
