package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
)

// MaxGrace is the longest time for which a secret may work on after it was rotated.
const MaxGrace = 24 * time.Hour

// ErrNoKey says that an account has no such key, or that it is revoked.
var ErrNoKey = errors.New("auth: no such API key")

// ErrLastAdminKey says that a key is the last live admin key of its account, which
// nobody could then manage through the API.
var ErrLastAdminKey = errors.New("auth: last live admin key of the account")

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

// Revoke ends a key of the account and reports whether it was still in force or
// expired before, rather than revoked. The queries must be those of a transaction,
// which holds the account's admin keys: of two admins who revoke each other's key at
// the same time, the second gets [ErrLastAdminKey]. The error is that, [ErrNoKey] or
// one of the database.
func Revoke(ctx context.Context, queries *db.Queries, accountID, keyID int64) (revoked bool, err error) {
	key, err := queries.APIKeyGetOwn(ctx, db.APIKeyGetOwnParams{ID: keyID, AccountID: accountID})
	if errors.Is(err, pgx.ErrNoRows) {
		return false, ErrNoKey
	}
	if err != nil {
		return false, fmt.Errorf("auth: revoking the key: %w", err)
	}
	if key.RevokedAt != nil {
		return false, awaitStandby(ctx, queries)
	}
	if key.Scope == Admin.String() {
		live, err := queries.APIKeyLockAdmins(ctx, accountID)
		if err != nil {
			return false, fmt.Errorf("auth: revoking the key: %w", err)
		}
		if slices.Equal(live, []int64{keyID}) {
			return false, ErrLastAdminKey
		}
	}
	_, err = queries.APIKeyRevokeOwn(ctx, db.APIKeyRevokeOwnParams{ID: keyID, AccountID: accountID})
	if errors.Is(err, pgx.ErrNoRows) { // revoked in the meantime
		return false, awaitStandby(ctx, queries)
	}
	if err != nil {
		return false, fmt.Errorf("auth: revoking the key: %w", err)
	}
	return true, nil
}

// awaitStandby has a transaction wait for the synchronous standby although it writes
// nothing: what it found may have been committed on the primary alone.
func awaitStandby(ctx context.Context, queries *db.Queries) error {
	if err := queries.AwaitStandby(ctx); err != nil {
		return fmt.Errorf("auth: waiting for the standby: %w", err)
	}
	return nil
}
