package auth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
)

// MaxGrace is the longest time for which a secret may work on after it was rotated.
const MaxGrace = 24 * time.Hour

// ErrNoKey says that an account has no such key, or that it is revoked.
var ErrNoKey = errors.New("auth: no such API key")

// NewKey is what an API key is made from.
type NewKey struct {
	AccountID int64
	Name      string // 1 to 100 code points
	Scope     Scope
	ExpiresAt *time.Time // nil: never
}

// Issue stores a new key and returns it with the secret, which is nowhere else.
func Issue(ctx context.Context, queries *db.Queries, key NewKey) (db.APIKeyCreateRow, Secret, error) {
	secret := NewSecret()
	hash := secret.Hash()
	row, err := queries.APIKeyCreate(ctx, db.APIKeyCreateParams{
		AccountID:    key.AccountID,
		Name:         key.Name,
		Scope:        key.Scope.String(),
		Prefix:       secret.Prefix(),
		SecretSha256: hash[:],
		ExpiresAt:    key.ExpiresAt,
	})
	if err != nil {
		return db.APIKeyCreateRow{}, Secret{}, fmt.Errorf("auth: storing the key: %w", err)
	}
	return row, secret, nil
}

// Rotate gives a key of the account a new secret and returns both. The secret
// that it had works for the grace, in whole seconds; the one before that ends.
// An expired key stays expired. The error is [ErrNoKey] or one of the database.
func Rotate(ctx context.Context, queries *db.Queries, accountID, keyID int64, grace time.Duration) (db.APIKeyRotateRow, Secret, error) {
	secret := NewSecret()
	hash := secret.Hash()
	row, err := queries.APIKeyRotate(ctx, db.APIKeyRotateParams{
		ID:           keyID,
		AccountID:    accountID,
		Prefix:       secret.Prefix(),
		SecretSha256: hash[:],
		GraceSeconds: int64(grace / time.Second),
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return db.APIKeyRotateRow{}, Secret{}, ErrNoKey
	}
	if err != nil {
		return db.APIKeyRotateRow{}, Secret{}, fmt.Errorf("auth: rotating the key: %w", err)
	}
	return row, secret, nil
}
