package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// wrongCredentials is row 20: no operation works without a valid key, and each 401 has a
// WWW-Authenticate header. The exchanges are validated against the spec.
func wrongCredentials(ctx context.Context, f *fixture) (string, error) {
	s, err := f.openValidated(ctx)
	if err != nil {
		return "", err
	}
	revoked, err := f.runCommand(ctx, s.db.url(), "key", "create", "--account", "gone", "--scope", "admin")
	if err != nil {
		return "", err
	}
	revoked = strings.TrimSpace(revoked)
	if _, err := f.runCommand(ctx, s.db.url(), "key", "revoke", revoked[:17]); err != nil {
		return "", err
	}
	expired, err := f.runCommand(ctx, s.db.url(), "key", "create", "--account", "gone", "--scope", "admin", "--expires-in", "1ms")
	if err != nil {
		return "", err
	}
	const unknown = "petstore_0000000000000000000000000000000n1WfS" // well-formed, but does not exist
	credentials := []string{
		"",                               // none
		"Bearer",                         // no key
		"Bearer " + s.key[:len(s.key)-1], // one character short
		"Bearer " + s.key + "0",          // one too many
		"Bearer " + strings.ToUpper(s.key),
		"Bearer " + unknown,
		"Bearer " + revoked,
		"Bearer " + strings.TrimSpace(expired),
		"Basic " + s.key,
		"Bearer petstore_' OR 1=1 --",
	}
	operations := s.client.validator.operations()
	anonymous := s.withKey("")
	for _, o := range operations {
		for i, credential := range credentials {
			body := ""
			if o.method == "POST" || o.method == "PUT" || o.method == "PATCH" {
				body = `{"name": "x", "categoryId": 1, "quantity": 1, "petId": 1, "message": "x"}`
			}
			resp, err := anonymous.do(ctx, o.method, o.target, body, "Authorization", credential)
			if err == nil {
				err = resp.checkUnauthorized()
			}
			if err != nil {
				return "", fmt.Errorf("wrong credential %d: %s %s: %w", i+1, o.method, o.target, err)
			}
		}
	}
	if _, err := s.want(ctx, http.StatusOK, "GET", "/pets", ""); err != nil {
		return "", fmt.Errorf("the right key: %w", err)
	}
	return fmt.Sprintf("%d operations × %d credentials: always 401 with WWW-Authenticate; %d exchanges validated",
		len(operations), len(credentials), s.client.validator.validated.Load()), nil
}

// checkUnauthorized returns an error unless the response is a 401 that names the scheme.
func (resp response) checkUnauthorized() error {
	scheme := resp.header.Get("WWW-Authenticate")
	if resp.status == http.StatusUnauthorized && !strings.HasPrefix(scheme, `Bearer realm="petstore"`) {
		return fmt.Errorf("WWW-Authenticate is %q", scheme)
	}
	return resp.check(http.StatusUnauthorized)
}

// revokedKey is row 21: a key that one process revokes stops working within a second on
// every other process, even on one that cannot listen for revocations.
func revokedKey(ctx context.Context, f *fixture) (string, error) {
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	other, err := s.startSecond(ctx)
	if err != nil {
		return "", err
	}
	heard, err := s.revoke(ctx, other, func() error { return nil })
	if err != nil {
		return "", err
	}
	unheard, err := s.revoke(ctx, other, func() error {
		// The database accepts no new connections: listeners cannot reconnect, but the
		// connections of the pools still work.
		return errors.Join(s.db.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS false"),
			s.db.execIn(ctx, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'petstore listen'"))
	})
	return fmt.Sprintf("401 after %s; while LISTEN is cut after %s", round(heard), round(unheard)), err
}

// revoke creates a key and uses it, calls before, revokes the key through another process,
// and returns how long the key still worked.
func (s *deployment) revoke(ctx context.Context, other *client, before func() error) (time.Duration, error) {
	const limit = time.Second
	resp, err := s.want(ctx, http.StatusCreated, "POST", "/account/api-keys", `{"name": "leaving", "scope": "read"}`)
	if err != nil {
		return 0, err
	}
	var created struct {
		ID     int64
		Secret string
	}
	if err := resp.decode(&created); err != nil {
		return 0, err
	}
	if _, err := other.want(ctx, http.StatusOK, "GET", "/account/api-keys", ""); err != nil { // opens a connection that the revocation uses
		return 0, err
	}
	using, stop := context.WithCancel(ctx)
	defer stop()
	used := make(chan keyUse, 1)
	go func() { used <- s.withKey(created.Secret).useKey(using) }()
	sleep(ctx, 700*time.Millisecond)
	if err := before(); err != nil {
		return 0, err
	}
	if _, err := other.want(ctx, http.StatusNoContent, "DELETE", fmt.Sprintf("/account/api-keys/%d", created.ID), ""); err != nil {
		return 0, err
	}
	revoked := time.Now()
	sleep(ctx, limit+500*time.Millisecond)
	stop()
	use := <-used
	if use.err != nil {
		return 0, use.err
	}
	worked := max(0, use.last.Sub(revoked))
	if !use.rejected || worked > limit {
		return 0, fmt.Errorf("the key still worked %s after its revocation (any 401: %t)", round(worked), use.rejected)
	}
	return worked, nil
}

// keyUse is the result of the requests with a key.
type keyUse struct {
	last     time.Time // when the last request that succeeded was sent
	rejected bool      // whether any response was a 401
	err      error     // of the first request without a 200 or 401
}

// useKey sends one request after the other until the context ends.
func (c *client) useKey(ctx context.Context) (use keyUse) {
	for ; ctx.Err() == nil; sleep(ctx, 5*time.Millisecond) {
		sent := time.Now()
		resp, err := c.do(context.WithoutCancel(ctx), "GET", "/store/inventory/1", "")
		switch {
		case err != nil:
			use.err = err
			return use
		case resp.status == http.StatusOK:
			use.last = sent
		case resp.status == http.StatusUnauthorized:
			use.rejected = true
		default:
			use.err = fmt.Errorf("a request with the key: %s", resp)
			return use
		}
	}
	return use
}
