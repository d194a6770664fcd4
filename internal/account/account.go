// Package account creates, resets and deletes accounts, their sandboxes and their samples.
//
// A sandbox is a temporary account with a parent. Its store is written under an
// advisory lock (queries/sandboxes.sql), so that a reset or a deletion never mixes with
// a write: groups of writes, [Reset] and [Delete] hold it alone, and [Enter] shares it.
//
// A sample is an account without API keys, whose store nobody writes. A sandbox starts as a
// copy of a sample, and [SaveSample] makes a sample of a sandbox.
//
// Every transaction takes its locks in this order, so that none deadlock:
//
//   - the sweep of the account, for which no transaction waits
//   - the creation of built-in samples
//   - the number of sandboxes and samples of the account
//   - the store
//   - the tables api_keys and accounts, on a sharded cluster
//   - rows of accounts
//   - an idempotency key, for which no transaction waits
//   - the number of keys
//   - rows of api_keys
//   - rows of the store
//
// [CreateSandbox] takes the number of sandboxes of the parent last. Until then no other
// transaction sees the rows of the sandbox, so none waits for them. And no transaction that holds
// that number waits for the store of a sample.
package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/event"
)

// Limits of sandboxes.
const (
	// MaxSandboxes is the maximum number of live sandboxes of an account.
	MaxSandboxes = 100
	// MaxStored is the maximum number of sandboxes of an account with those that have
	// ended and whose data is still stored.
	MaxStored = 200
	// MaxRows is the maximum number of rows of each [Kind] of a sandbox.
	MaxRows = 10_000
	// resetBatch is the maximum number of rows that one statement of a reset deletes,
	// which takes less than a second.
	resetBatch = 10_000

	MinExpiry     = time.Minute
	MaxExpiry     = 7 * 24 * time.Hour
	DefaultExpiry = 24 * time.Hour
)

// DefaultName is the name of a sandbox whose client gives none.
const DefaultName = "sandbox"

var (
	// ErrTooManySandboxes means that the account has [MaxSandboxes] live sandboxes, or
	// [MaxStored] with those that the sweep has not deleted yet.
	ErrTooManySandboxes = errors.New("account: too many live sandboxes of the account")
	// ErrFull means that the sandbox has [MaxRows] rows of the kind to create.
	ErrFull = errors.New("account: the sandbox is full")
	// ErrClosed means that the account is deleted.
	ErrClosed = errors.New("account: the account is deleted")
)

// Source returns an account as the source of events.
func Source(id int64, isSandbox bool) event.Source {
	return event.Source{AccountID: PublicID(id, isSandbox), Sandbox: isSandbox}
}

// Ensure returns the account with the name, and creates it if it does not exist. The
// queries must run in a transaction.
func Ensure(ctx context.Context, queries *db.Queries, name string) (db.AccountEnsureRow, error) {
	row, err := queries.AccountEnsure(ctx, name)
	if err != nil {
		return row, fmt.Errorf("account: creating the account: %w", err)
	}
	if err := queries.AccountStateEnsure(ctx, row.ID); err != nil {
		return row, fmt.Errorf("account: creating the account: %w", err)
	}
	return row, nil
}

// NewSandbox describes a sandbox to create.
type NewSandbox struct {
	ParentID  int64
	Name      string        // 1 to 100 code points
	Sample    string        // the name of a sample
	ExpiresAt *time.Time    // MinExpiry to MaxExpiry from now; nil: after Expiry
	Expiry    time.Duration // MinExpiry to MaxExpiry, in whole seconds
	NotAfter  *time.Time    // the latest time at which the sandbox expires; nil: none
}

// Created is a new sandbox with its admin key and the secret of the key.
type Created struct {
	Sandbox db.SandboxCreateRow
	Key     db.APIKeyCreateRow
	Secret  auth.Secret
	Size    int64 // the bytes that were copied, also when the copy failed
}

// CreateSandbox creates a sandbox as a copy of its sample, and an admin key that expires
// with it. The queries must run in a transaction, which must roll back after an
// error. The error is [ErrTooManySandboxes], [ErrNoSample], [ErrClosed] or a database error.
func CreateSandbox(ctx context.Context, queries *db.Queries, sandbox NewSandbox) (made Created, err error) {
	sampleID, err := findSample(ctx, queries, sandbox.ParentID, sandbox.Sample)
	if err != nil {
		return made, fmt.Errorf("account: finding the sample: %w", err)
	}
	if err := checkSandboxes(ctx, queries, sandbox.ParentID, 1); err != nil { // before the work
		return made, err
	}
	if err := queries.KeyTableLockShared(ctx); err != nil {
		return made, fmt.Errorf("account: creating the sandbox: %w", err)
	}
	made.Sandbox, err = queries.SandboxCreate(ctx, db.SandboxCreateParams{
		ParentID: sandbox.ParentID, Name: sandbox.Name, SampleID: sampleID, Sample: sandbox.Sample, ExpiresAt: sandbox.ExpiresAt,
		ExpiresInSeconds: int64(sandbox.Expiry / time.Second), NotAfter: sandbox.NotAfter,
	})
	if err != nil {
		return made, fmt.Errorf("account: creating the sandbox: %w", err)
	}
	if err := queries.AccountStateEnsure(ctx, made.Sandbox.ID); err != nil {
		return made, fmt.Errorf("account: creating the sandbox: %w", err)
	}
	row := made.Sandbox
	made.Key, made.Secret, err = auth.Issue(ctx, queries, auth.NewKey{AccountID: row.ID, Name: DefaultName, Scope: auth.Admin, ExpiresAt: row.ExpiresAt})
	if err != nil {
		return made, err
	}
	if made.Size, err = copyStore(ctx, queries, sampleID, row.ID); err != nil {
		return made, fmt.Errorf("account: copying the sample: %w", err)
	}
	// The lock comes last, so that several sandboxes of an account are filled at a time.
	if err := queries.SandboxesLock(ctx, sandbox.ParentID); err != nil {
		return made, fmt.Errorf("account: counting the sandboxes: %w", err)
	}
	return made, checkSandboxes(ctx, queries, sandbox.ParentID, 0)
}

// checkSandboxes returns [ErrClosed] if an account is deleted, or
// [ErrTooManySandboxes] if it would have too many sandboxes with this number of new ones.
func checkSandboxes(ctx context.Context, queries *db.Queries, id, created int64) error {
	if err := checkOpen(ctx, queries, id); err != nil {
		return err
	}
	count, err := queries.SandboxCount(ctx, id)
	if err != nil {
		return fmt.Errorf("account: counting the sandboxes: %w", err)
	}
	if count.Live+created > MaxSandboxes || count.Stored+created > MaxStored {
		return ErrTooManySandboxes
	}
	return nil
}

// Kind is the kind of rows that a write creates.
type Kind string

// The kinds of rows of which a sandbox has at most [MaxRows].
const (
	NoRows     Kind = ""
	Categories Kind = "categories"
	Pets       Kind = "pets"
	Orders     Kind = "orders"
	Messages   Kind = "messages"
)

// Enter begins a change of the keys or fault rules of a sandbox, or a copy of a store. It waits
// while the sandbox is written or reset. With alone it also waits for such changes and copies.
// The error is [ErrClosed] or a database error.
func Enter(ctx context.Context, queries *db.Queries, id int64, alone bool) error {
	lock := queries.StoreLockShared
	if alone {
		lock = queries.StoreLock
	}
	if err := lock(ctx, id); err != nil {
		return err
	}
	return checkOpen(ctx, queries, id)
}

// checkOpen returns [ErrClosed] if the account is deleted.
func checkOpen(ctx context.Context, queries *db.Queries, id int64) error {
	closed, err := queries.StoreIsClosed(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && closed {
		return ErrClosed
	}
	return err
}

// Reset returns a sandbox to its sample, even if that is deleted: a sample is stored as long as
// its sandboxes. The API keys and the faults stay, and the faults count from the start. The
// stored responses are not replayed any more. The queries must run in a transaction. The error is [ErrClosed] or a database error.
// The size is the bytes of the sandbox and of its sample, also when the reset failed.
func Reset(ctx context.Context, queries *db.Queries, id int64) (size int64, err error) {
	if err := Enter(ctx, queries, id, true); err != nil {
		return 0, resetError(err)
	}
	row, err := queries.AccountGet(ctx, id)
	if err != nil {
		return 0, resetError(err)
	}
	if size, err = queries.StoreSize(ctx, id); err != nil {
		return 0, resetError(err)
	}
	for _, table := range storeTables(queries) {
		for rows := int64(resetBatch); rows == resetBatch; {
			if rows, err = table(ctx, id, resetBatch); err != nil {
				return size, resetError(err)
			}
		}
	}
	copied, err := copyRows(ctx, queries, *row.SampleID, id)
	if size += copied; err != nil {
		return size, resetError(err)
	}
	if err := queries.StoreRemoveMessages(ctx, db.StoreRemoveMessagesParams{AccountID: id, SourceID: *row.SampleID}); err != nil {
		return size, resetError(err)
	}
	if err := queries.FaultRestart(ctx, id); err != nil { // late, because requests wait for its locks
		return size, resetError(err)
	}
	if err := copyNewestIDs(ctx, queries, *row.SampleID, id); err != nil {
		return size, resetError(err)
	}
	if err := queries.StoreResetNow(ctx, id); err != nil {
		return size, resetError(err)
	}
	return size, event.Append(ctx, queries, id, event.Reset())
}

func resetError(err error) error { return fmt.Errorf("account: resetting the sandbox: %w", err) }

// Delete closes an account with its sandboxes and samples: their API keys stop within a second
// on every server, and [Sweep] deletes their data. It deletes a sample alone when no copy of it is
// in progress. The queries must run in a
// transaction. It reports false if the account was deleted before.
func Delete(ctx context.Context, queries *db.Queries, id int64) (deleted bool, err error) {
	// A concurrent CreateSandbox either commits before, or finds the account deleted.
	if err := queries.SandboxesLock(ctx, id); err != nil {
		return false, fmt.Errorf("account: deleting the account: %w", err)
	}
	// The stores come first. On a sharded cluster, a write to accounts or api_keys locks the
	// whole table. So a transaction that has written one must not wait for a store. No sandbox can
	// start as a sample of the account any more, because its number of sandboxes is locked.
	stores, err := queries.AccountsOf(ctx, id)
	if err != nil {
		return false, fmt.Errorf("account: deleting the account: %w", err)
	}
	for _, id := range stores {
		if err := closeStore(ctx, queries, id); err != nil {
			return false, err
		}
	}
	if err := queries.KeyTableLock(ctx); err != nil {
		return false, fmt.Errorf("account: deleting the account: %w", err)
	}
	ids, err := queries.AccountDelete(ctx, id)
	if err != nil {
		return false, fmt.Errorf("account: deleting the account: %w", err)
	}
	for _, id := range ids {
		if _, err := queries.APIKeyRevokeAll(ctx, id); err != nil {
			return false, fmt.Errorf("account: revoking the keys: %w", err)
		}
	}
	return len(ids) > 0, nil
}

// closeStore makes [Enter] refuse writes, after those in progress.
func closeStore(ctx context.Context, queries *db.Queries, id int64) error {
	if err := queries.StoreLock(ctx, id); err != nil {
		return fmt.Errorf("account: closing the account: %w", err)
	}
	if err := queries.StoreClose(ctx, id); err != nil {
		return fmt.Errorf("account: closing the account: %w", err)
	}
	return nil
}

// deletion deletes some rows of an account from a table, and returns how many.
type deletion func(ctx context.Context, id int64, batch int32) (int64, error)

// deletes returns the deletion of a query, whose parameters have another type than others.
func deletes[Params ~struct {
	AccountID int64
	BatchSize int32
}](query func(context.Context, Params) (int64, error)) deletion {
	return func(ctx context.Context, id int64, batch int32) (int64, error) {
		return query(ctx, Params{AccountID: id, BatchSize: batch})
	}
}

// storeTables returns the deletions with which a reset begins, in an order in which no row is left
// that refers to a deleted one.
func storeTables(queries *db.Queries) []deletion {
	return []deletion{
		deletes(queries.StoreDeleteOrders), deletes(queries.StoreDeleteInventory), deletes(queries.StoreDeletePets),
		deletes(queries.StoreDeleteCategories),
	}
}
