package api_test

import (
	"fmt"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/api"
	"petstore/internal/pgtest"
)

// startOnCluster starts a server on a cluster of its own, for settings that affect all databases
// of a cluster.
func startOnCluster(t *testing.T) *petstore {
	t.Helper()
	database, _ := pgtest.NewCluster(t)
	return startOn(t, database).with(func(o *api.Options) { o.RequestTimeout = time.Second })
}

// withoutStandby makes commits wait for a standby that does not exist, and returns
// when the setting is active. Calling back ends the wait.
func (p *petstore) withoutStandby() (back func()) {
	p.t.Helper()
	set := func(standby string) {
		p.t.Helper()
		for _, sql := range []string{fmt.Sprintf("ALTER SYSTEM SET synchronous_standby_names = '%s'", standby), "SELECT pg_reload_conf()"} {
			if _, err := p.db.Exec(p.t.Context(), sql); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	set("away")
	ending, ended := make(chan struct{}), make(chan error, 1)
	go func() { // commits until a commit waits, then until it returns
		for {
			if err := db.New(p.db).AwaitStandby(p.t.Context()); err != nil {
				ended <- err
				return
			}
			select {
			case <-ending:
				ended <- nil
				return
			default:
			}
		}
	}()
	p.until("a commit waits for the standby", func() bool {
		var waiting bool
		if err := p.db.QueryRow(p.t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')").Scan(&waiting); err != nil {
			p.t.Fatal(err)
		}
		return waiting
	})
	return func() {
		p.t.Helper()
		close(ending)
		set("")
		if err := <-ended; err != nil {
			p.t.Fatal(err)
		}
	}
}

// until waits for a condition and fails the test after ten seconds.
func (p *petstore) until(what string, so func() bool) {
	p.t.Helper()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(10 * time.Second); !so(); <-poll.C {
		if time.Now().After(deadline) {
			p.t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// TestReplayWaitsForTheStandby: while the synchronous standby is away, the server
// does not acknowledge a request that has committed on the primary only. That holds
// for the first attempt and for a retry. When the standby is back, it acknowledges
// the retry.
func TestReplayWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	p := startOnCluster(t)
	const target, body = "/messages", `{"message": "hello"}`
	back := p.withoutStandby()
	p.under("key", target, body).wantError(503, "unavailable")
	p.until("the cut-off transaction commits on the primary", func() bool { return p.count("messages") > 0 })
	// The server may still be ending the earlier transaction, which holds the key.
	again := func() (retry *response) {
		p.until("the key is free", func() bool {
			retry = p.under("key", target, body)
			return retry.status != 409
		})
		return retry
	}
	for range 2 {
		again().wantError(503, "unavailable")
	}
	back()
	retry := again().want(202)
	if retry.header.Get("Idempotent-Replayed") != "true" {
		t.Error("the retry is not a replay, so this test proves nothing")
	}
}

// TestRevokedTwiceWaitsForTheStandby: a retry that finds the key revoked does not
// acknowledge the revocation before the standby has it.
func TestRevokedTwiceWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	p := startOnCluster(t)
	created := p.post("/account/api-keys", object{"name": "leaving", "scope": "read"}).want(201)
	location := created.header.Get("Location")
	back := p.withoutStandby()
	p.del(location).wantError(503, "unavailable")
	p.until("the cut-off revocation commits on the primary", func() bool {
		var revoked bool
		if err := p.db.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NOT NULL)").Scan(&revoked); err != nil {
			t.Fatal(err)
		}
		return revoked
	})
	p.del(location).wantError(503, "unavailable")
	back()
	p.del(location).want(204)
}

// TestResetTwiceWaitsForTheStandby: a reset that finds nothing to change does not
// acknowledge an earlier reset before the standby has it.
func TestResetTwiceWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	p := startOnCluster(t)
	reset := p.newSandbox("one", "empty").path() + "/reset"
	p.post(reset, nil).want(204)
	back := p.withoutStandby()
	p.post(reset, nil).wantError(503, "unavailable")
	back()
	p.post(reset, nil).want(204)
}

// TestLostTransactionIsRetriedInOnePlace: an order that always fails to serialize
// is attempted once in a group and four times alone, with and without an Idempotency-Key.
func TestLostTransactionIsRetriedInOnePlace(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "a trigger on a worker cannot count in a sequence of the coordinator")
	p := startAlone(t)
	pet := p.newPet("Rex", 10)
	for _, sql := range []string{
		"CREATE SEQUENCE attempts",
		`CREATE FUNCTION lose() RETURNS trigger SECURITY DEFINER SET search_path FROM CURRENT LANGUAGE plpgsql AS
			$$ BEGIN PERFORM nextval('attempts'); RAISE EXCEPTION 'lost' USING ERRCODE = '40001'; END $$`,
		"CREATE TRIGGER lose BEFORE INSERT ON orders EXECUTE FUNCTION lose()",
	} {
		if _, err := p.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for i, key := range []string{"", "key"} {
		p.do("POST", "/store/orders", object{"petId": pet}, "Idempotency-Key", key).wantError(503, "unavailable")
		var attempts int
		if err := p.db.QueryRow(t.Context(), "SELECT last_value FROM attempts").Scan(&attempts); err != nil {
			t.Fatal(err)
		}
		if want := 5 * (i + 1); attempts != want {
			t.Errorf("%d attempts after %d requests, want %d", attempts, i+1, want)
		}
	}
}
