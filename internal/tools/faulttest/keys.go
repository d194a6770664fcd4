package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"petstore/internal/tools/must"
)

// revokedKey is row 21: a key that one process revokes stops working within a second on
// every other process, even on one that cannot listen for revocations.
func revokedKey(ctx context.Context, f *fixture) string {
	s := f.open(ctx)
	other := s.startSecond(ctx)[1]
	heard := s.revoke(ctx, other, func() {})
	unheard := s.revoke(ctx, other, func() { s.db.cutListeners(ctx) })
	return fmt.Sprintf("401 after %s; while LISTEN is cut after %s", round(heard), round(unheard))
}

// cutListeners terminates the connections that listen for revocations, and lets the database
// accept no new ones. The connections of the pools still work.
func (d *database) cutListeners(ctx context.Context) {
	d.allowConnections(ctx, false)
	d.terminateBackends(ctx, "petstore listen")
}

// revoke creates a key and uses it, calls before, revokes the key through another process,
// and returns how long the key still worked.
func (s *deployment) revoke(ctx context.Context, other *service, before func()) time.Duration {
	const limit = time.Second
	created := decode[struct {
		ID     int64
		Secret string
	}](s.want(ctx, http.StatusCreated, "POST", "/account/api-keys", `{"name": "leaving", "scope": "read"}`))
	other.want(ctx, http.StatusOK, "GET", "/account/api-keys", "") // opens a connection that the revocation uses
	using, stop := context.WithCancel(ctx)
	defer stop()
	var last time.Time // when the last request that succeeded was sent
	rejected := false
	wait := must.Background(func() {
		for c := s.withKey(created.Secret); using.Err() == nil; sleep(using, 5*time.Millisecond) {
			sent := time.Now()
			resp := must.Get(c.do(ctx, "GET", "/store/inventory/1", ""))
			if resp.status == http.StatusOK {
				last = sent
				continue
			}
			resp.check(http.StatusUnauthorized)
			rejected = true
		}
	})
	sleep(ctx, 700*time.Millisecond)
	before()
	other.want(ctx, http.StatusNoContent, "DELETE", fmt.Sprintf("/account/api-keys/%d", created.ID), "")
	revoked := time.Now()
	sleep(ctx, limit+500*time.Millisecond)
	stop()
	wait()
	worked := max(0, last.Sub(revoked))
	must.Hold(rejected && worked <= limit, "the key still worked %s after its revocation (any 401: %t)", round(worked), rejected)
	return worked
}
