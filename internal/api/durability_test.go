package api_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// withoutStandby makes commits wait for a standby that does not exist, and returns
// when the setting is active. Calling back ends the wait.
func (p *petstore) withoutStandby() (back func()) {
	p.t.Helper()
	set := func(standby string) {
		p.t.Helper()
		p.exec(fmt.Sprintf("ALTER SYSTEM SET synchronous_standby_names = '%s'", standby))
		p.exec("SELECT pg_reload_conf()")
	}
	set("away")
	var ending atomic.Bool
	ended := background(func() (err error) { // commits until a commit waits, then until it returns
		for err == nil && !ending.Load() {
			err = db.New(p.db).StandbyAwaitHere(p.t.Context())
		}
		return err
	})
	need.Within(p.t, 30*time.Second, "a commit waits for the standby", func() bool {
		return pgtest.Read[bool](p.t, p.db, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')")
	})
	return func() {
		p.t.Helper()
		ending.Store(true)
		set("")
		need.OK(p.t, ended())
	}
}

// TestRetriesWaitForTheStandby: while the synchronous standby is away, the server does not
// acknowledge a request that has committed on the primary only. That holds for the first
// attempt, and for a retry that replays it or finds nothing to change or to delete. When the standby is
// back, the server acknowledges the retry.
func TestRetriesWaitForTheStandby(t *testing.T) {
	t.Parallel()
	database, _ := pgtest.NewCluster(t) // the setting affects all databases of a cluster
	p := startOn(t, database)
	hasty := p.with(func(o *api.Options) { o.RequestTimeout = time.Second })
	key := p.post(keysPath, object{"name": "leaving", "scope": "read"}).want(201).header.Get("Location")
	sandbox := p.newSandbox("one", "empty").path()
	reset, rules := sandbox+"/reset", sandbox+"/faults"
	p.post(reset, nil).want(204)
	p.put(rules, object{"rules": []object{{"operation": "*", "effect": "delay", "delayMs": 1}}}).want(200)
	ordered := p.newPet("Rex", 2)
	order, stock := fmt.Sprintf("/store/orders/%d", p.newOrder(ordered, 1)), fmt.Sprintf("/store/inventory/%d", ordered)
	pet := fmt.Sprintf("/pets/%d", p.newPet("Bello", 0))
	gone, hook := p.newSandbox("two", "empty").path(), p.newWebhook("*").path()
	sample := samplesPath + "/" + p.saveSample("saved", strings.TrimPrefix(sandbox, sandboxesPath+"/"))
	back := p.withoutStandby()
	// The server may still be ending an earlier transaction, which holds the Idempotency-Key.
	send := func(p *petstore) (sent *response) {
		need.Within(p.t, 30*time.Second, "the Idempotency-Key is free", func() bool {
			sent = p.under("key", "/messages", object{"message": "hello"})
			return sent.status != 409
		})
		return sent
	}
	wait := func() {
		t.Helper()
		send(hasty).wantError(503, "unavailable")
		hasty.del(key).wantError(503, "unavailable")
		hasty.post(reset, nil).wantError(503, "unavailable")
		hasty.del(rules).wantError(503, "unavailable")
		hasty.del(order).wantError(503, "unavailable")
		hasty.del(pet).wantError(503, "unavailable")
		hasty.del(gone).wantError(503, "unavailable")
		hasty.del(hook).wantError(503, "unavailable")
		hasty.del(sample).wantError(503, "unavailable")
		hasty.put(stock, object{"quantity": 7}).wantError(503, "unavailable")
	}
	need.Within(p.t, 30*time.Second, "all cut-off transactions commit on the primary", func() bool {
		wait() // again if one timed out at the locks of another
		return p.count("messages") > 0 && p.count("api_keys", "revoked_at IS NOT NULL") > 0 && p.count("sandbox_faults") == 0 &&
			p.count("orders")+p.count("pets", "name = 'Bello'") == 0 && p.count("inventory", "quantity = 7") > 0 &&
			p.count("webhooks", "deleted_at IS NULL") == 0 && p.count("accounts", "deleted_at IS NOT NULL") == 2
	})
	wait()
	wait()
	back()
	send(p).want(202).wantHeader("Idempotent-Replayed", "true") // otherwise this test proves nothing
	p.del(key).want(204)
	p.post(reset, nil).want(204)
	p.del(rules).want(204)
	p.del(order).wantError(404, "order_not_found")
	p.del(pet).wantError(404, "pet_not_found")
	p.del(gone).wantError(404, "sandbox_not_found")
	p.del(hook).wantError(404, "webhook_not_found")
	p.del(sample).wantError(404, "sample_not_found")
	p.put(stock, object{"quantity": 7}).want(200)
}
