package groupcommit

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

var sandbox = Store{AccountID: 3, Sandbox: true, Payer: 1}

// newSandbox creates a sandbox of account 1, with the pets 1 to 4.
func (f *fixture) newSandbox() {
	f.t.Helper()
	f.newStores(3)
	f.exec(`
		UPDATE accounts SET kind = 'sandbox', parent_id = 1, sample_id = 1, sample = 'empty', expires_at = now() + interval '1 day' WHERE id = 3;
		UPDATE inventory SET quantity = 1000 WHERE account_id = 3`)
}

// TestSandboxGroupsDoNotWait: a group of a sandbox tries the lock of its store, and does not
// count as a transaction that waits for locks. If the store is locked, the writes of all its pets wait in one group.
func TestSandboxGroupsDoNotWait(t *testing.T) {
	t.Parallel()
	const writes = 12
	f := newFixture(t)
	f.newSandbox()
	const all = 5 // places of the fixture
	need.OK(t, f.locks.Take(t.Context(), sandbox.Payer, all))
	if _, err := f.Do(t.Context(), sandbox, order(1, 1)); err != nil {
		t.Errorf("while others wait for all locks that the payer may wait for: %v", err)
	}
	f.locks.Give(sandbox.Payer, all)

	holder := pgtest.Begin(t, f.database.Pool)
	need.OK(t, db.New(holder).StoreLock(t.Context(), sandbox.AccountID))
	var waiting sync.WaitGroup
	for i := range writes {
		waiting.Go(func() {
			if _, err := f.Do(t.Context(), sandbox, order(int64(1+i%4), 1)); err != nil {
				t.Errorf("after waiting for the store: %v", err)
			}
		})
	}
	f.awaitLockWaiter()
	if _, err := f.group(sandbox, order(1, 1), order(9, 1)); err != nil {
		t.Errorf("a group that does not wait: %v", err)
	}
	if waiters, err := pgtest.LockWaiters(t.Context(), f.database.Pool); err != nil || waiters != 1 {
		t.Errorf("%d connections wait for the store, %v; want 1", waiters, err)
	}
	pgtest.Rollback(t, holder)
	waiting.Wait()
	placed := 0
	for _, row := range f.stored(sandbox) {
		if row[:len("order")] == "order" {
			placed++
		}
	}
	if placed != writes+1 {
		t.Errorf("%d orders, want %d", placed, writes+1)
	}
}

// TestSandboxChecksUnderItsLock: a write that waited for its store sees that it is full or
// closed by then.
func TestSandboxChecksUnderItsLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.newSandbox()
	f.exec(fmt.Sprintf(`
		INSERT INTO messages (account_id, id, message) SELECT 3, 'msg_' || md5(n::text), 'x' FROM generate_series(1, %[1]d) AS n;
		UPDATE account_state SET last_message_id = %[1]d WHERE account_id = 3`, account.MaxRows-1))
	for _, test := range []struct {
		meanwhile string
		want      error
	}{
		{"INSERT INTO messages (account_id, id, message) VALUES (3, 'msg_' || md5('last'), 'x')", account.ErrFull},
		{"UPDATE account_state SET closed = true WHERE account_id = 3", account.ErrClosed},
		{"DELETE FROM account_state WHERE account_id = 3", account.ErrClosed},
	} {
		f.exec("UPDATE account_state SET closed = false WHERE account_id = 3")
		var waiting sync.WaitGroup
		need.OK(t, pgx.BeginFunc(t.Context(), f.database.Pool, func(tx pgx.Tx) error {
			if err := db.New(tx).StoreLock(t.Context(), sandbox.AccountID); err != nil {
				return err
			}
			waiting.Go(func() {
				if _, err := f.Do(t.Context(), sandbox, send("hello")); !errors.Is(err, test.want) {
					t.Errorf("after %s: %v, want %v", test.meanwhile, err, test.want)
				}
			})
			f.awaitLockWaiter()
			_, err := tx.Exec(t.Context(), test.meanwhile)
			return err
		}))
		waiting.Wait()
	}
}
