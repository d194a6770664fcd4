package api

import (
	"context"
	"errors"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/auth"
)

// enterStore begins a write to the store of the caller. It must come first in the
// transaction of the write. It does nothing unless the account is a sandbox: no other
// account can be reset. When one is deleted, the sweep waits a minute for its writes.
func enterStore(ctx context.Context, queries *db.Queries, caller auth.Identity, creates account.Kind) error {
	if !caller.IsSandbox() {
		return nil
	}
	return storeError(account.Enter(ctx, queries, caller.AccountID, creates != account.NoRows))
}

// storeError returns the error of the API for an error of [account].
func storeError(err error) error {
	switch {
	case errors.Is(err, account.ErrClosed): // its keys are revoked or expired
		return errInvalidAPIKey
	case errors.Is(err, account.ErrFull):
		return errSandboxFull
	default:
		return err
	}
}
