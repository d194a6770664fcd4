package api_test

import (
	"context"
	"fmt"
	"testing"
)

// TestLockedPetsOfOtherAccounts: another program keeps a pet of each of several accounts
// locked, and more orders wait for these pets than the server has connections. Orders of
// another account succeed meanwhile.
func TestLockedPetsOfOtherAccounts(t *testing.T) {
	t.Parallel()
	const locked, orders = 9, 50
	p := startAlone(t).patient() // with 8 connections
	tenants := p.sampleTenants(locked + 1)
	free := tenants[locked]
	lock, err := p.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) }) // if the test failed
	for _, tenant := range tenants[:locked] {
		if _, err := lock.Exec(t.Context(), "SELECT pet_id FROM inventory WHERE account_id = $1 AND pet_id = 1 FOR UPDATE", tenant.account); err != nil {
			t.Fatal(err)
		}
	}
	atOnce(t, locked+1, func(i int) error {
		if i < locked {
			_, err := tenants[i].try("POST", "/store/orders", object{"petId": 1})
			return err
		}
		if err := p.awaitWaiting(3); err != nil {
			return err
		}
		for range orders {
			free.post("/store/orders", object{"petId": 1}).want(201)
		}
		return lock.Rollback(t.Context())
	})
}

// TestLockedRecord: another program keeps the record of a sandbox locked, and more requests
// of its payer to empty it wait than the server has connections. Orders of another account
// succeed meanwhile.
func TestLockedRecord(t *testing.T) {
	t.Parallel()
	const deletions, orders = 16, 20
	p := startAlone(t).patient()
	free := p.sampleTenants(1)[0]
	clients, sandbox := p.payer("waiting")
	id := fmt.Sprint("sbx_", sandbox)
	clients[0].recordRequest(id)
	lock, err := p.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) }) // if the test failed
	if _, err := lock.Exec(t.Context(), "SELECT FROM exchange_logs WHERE account_id = $1 FOR UPDATE", sandbox); err != nil {
		t.Fatal(err)
	}
	atOnce(t, deletions+1, func(i int) error {
		if i < deletions {
			_, err := clients[0].try("DELETE", "/sandboxes/"+id+"/requests", nil)
			return err
		}
		if err := p.awaitWaiting(2); err != nil {
			return err
		}
		for range orders {
			free.post("/store/orders", object{"petId": 1}).want(201)
		}
		return lock.Rollback(t.Context())
	})
}
