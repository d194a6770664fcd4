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

// The maximum number of keys of an account.
const (
	MaxKeys   = 100    // live
	MaxStored = 10_000 // with expired ones, and those that were revoked in the last 30 days
)

// MaxGrace is the maximum time for which a replaced secret keeps working.
const MaxGrace = 24 * time.Hour

// ErrNoKey means that the account has no such key, or that the key is revoked.
var ErrNoKey = errors.New("auth: no such API key")

// ErrLastAdminKey means that the key is the last live admin key of its account.
// Without it, nobody could manage the account's keys through the API.
var ErrLastAdminKey = errors.New("auth: last live admin key of the account")

// ErrTooManyKeys means that the account has [MaxKeys] live keys, or [MaxStored] keys.
var ErrTooManyKeys = errors.New("auth: too many keys of the account")

// NewKey describes an API key to create.
type NewKey struct {
	AccountID int64
	Name      string // 1 to 100 code points
	Scope     Scope
	ExpiresAt *time.Time // nil: never
}

// Issue stores a new key and returns it with its secret. The secret is not stored. The
// queries must run in a transaction, because Issue locks the account while it
// counts the keys. The error is [ErrTooManyKeys] or a database error.
func Issue(ctx context.Context, queries *db.Queries, key NewKey) (db.APIKeyCreateRow, Secret, error) {
	if err := queries.KeysLock(ctx, key.AccountID); err != nil {
		return db.APIKeyCreateRow{}, Secret{}, fmt.Errorf("auth: counting the keys: %w", err)
	}
	keys, err := queries.APIKeyCountStored(ctx, key.AccountID)
	if err != nil {
		return db.APIKeyCreateRow{}, Secret{}, fmt.Errorf("auth: counting the keys: %w", err)
	}
	if keys.Live >= MaxKeys || keys.Stored >= MaxStored {
		return db.APIKeyCreateRow{}, Secret{}, ErrTooManyKeys
	}
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

// Rotate gives a key of the account a new secret and returns both. The current
// secret keeps working for the grace, which is rounded down to seconds. The secret
// before the current one stops. An expired key stays expired. The queries must run in
// a transaction, because Rotate waits for concurrent rotations of the account. The
// error is [ErrNoKey] or a database error.
func Rotate(ctx context.Context, queries *db.Queries, accountID, keyID int64, grace time.Duration) (db.APIKeyRotateRow, Secret, error) {
	if err := queries.KeysLock(ctx, accountID); err != nil {
		return db.APIKeyRotateRow{}, Secret{}, fmt.Errorf("auth: rotating the key: %w", err)
	}
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

// Revoke revokes a key of the account. It reports false if the key was revoked
// before. The queries must run in a transaction, because Revoke locks the
// admin keys of the account: if two admins revoke each other's key concurrently,
// the second gets [ErrLastAdminKey]. Other errors are [ErrNoKey] and database
// errors.
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
	// The id of an expired key may be less than the ids of the live ones. It is not the last live key, so it
	// needs no locks before its own.
	if key.Scope == Admin.String() && !key.IsExpired {
		live, err := queries.APIKeyLockAdmins(ctx, accountID)
		if err != nil {
			return false, fmt.Errorf("auth: revoking the key: %w", err)
		}
		if slices.Equal(live, []int64{keyID}) {
			return false, ErrLastAdminKey
		}
	}
	_, err = queries.APIKeyRevokeOwn(ctx, db.APIKeyRevokeOwnParams{ID: keyID, AccountID: accountID})
	if errors.Is(err, pgx.ErrNoRows) { // revoked concurrently
		return false, awaitStandby(ctx, queries)
	}
	if err != nil {
		return false, fmt.Errorf("auth: revoking the key: %w", err)
	}
	return true, nil
}

// awaitStandby makes a transaction that writes nothing wait for the synchronous
// standby, because the state that it read may be committed on the primary only.
func awaitStandby(ctx context.Context, queries *db.Queries) error {
	if err := queries.StandbyAwaitHere(ctx); err != nil {
		return fmt.Errorf("auth: waiting for the standby: %w", err)
	}
	return nil
}
