package api_test

import (
	"context"
	"testing"
)

// TestLockedPetsOfOtherAccounts: another program keeps a pet of each of several accounts
// locked, and more orders wait for these pets than the server has connections. Orders of
// another account succeed meanwhile.
func TestLockedPetsOfOtherAccounts(t *testing.T) {
	t.Parallel()
	const locked, each, orders = 8, 1, 50
	p := startAlone(t)
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
	atOnce(t, locked*each+1, func(i int) error {
		if i < locked*each {
			_, err := tenants[i%locked].try("POST", "/store/orders", object{"petId": 1})
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
