package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Row 20. No operation lets anybody in without a key in force, and each says how
// to come in. The exchanges are judged against the description.
func wrongCredentials(ctx context.Context, b *bench) (string, error) {
	s, err := b.openJudged(ctx)
	if err != nil {
		return "", err
	}
	revoked, err := b.petstore(ctx, s.db.url(), "key", "create", "--account", "gone", "--scope", "admin")
	if err != nil {
		return "", err
	}
	revoked = strings.TrimSpace(revoked)
	if _, err := b.petstore(ctx, s.db.url(), "key", "revoke", revoked[:17]); err != nil {
		return "", err
	}
	expired, err := b.petstore(ctx, s.db.url(), "key", "create", "--account", "gone", "--scope", "admin", "--expires-in", "1ms")
	if err != nil {
		return "", err
	}
	const unknown = "petstore_0000000000000000000000000000000n1WfS" // well-formed, for what that is worth
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
	operations := s.client.judge.operations()
	anybody := s.as("")
	for _, o := range operations {
		for i, credential := range credentials {
			body := ""
			if o.method == "POST" || o.method == "PUT" || o.method == "PATCH" {
				body = `{"name": "x", "categoryId": 1, "quantity": 1, "petId": 1, "message": "x"}`
			}
			a, err := anybody.want(ctx, http.StatusUnauthorized, o.method, o.target, body, "Authorization", credential)
			if err == nil && !strings.HasPrefix(a.header.Get("WWW-Authenticate"), `Bearer realm="petstore"`) {
				err = fmt.Errorf("%s %s: WWW-Authenticate is %q", o.method, o.target, a.header.Get("WWW-Authenticate"))
			}
			if err != nil {
				return "", fmt.Errorf("wrong credential %d: %w", i+1, err)
			}
		}
	}
	if _, err := s.want(ctx, http.StatusOK, "GET", "/pets", ""); err != nil {
		return "", fmt.Errorf("the right key: %w", err)
	}
	return fmt.Sprintf("%d operations × %d credentials: always 401 with WWW-Authenticate; %d exchanges validated",
		len(operations), len(credentials), s.client.judge.judged.Load()), nil
}

// Row 21. A key that is revoked through one process stops within a second on
// every other, also on one that cannot listen for revocations.
func revokedKey(ctx context.Context, b *bench) (string, error) {
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	other, err := s.another(ctx)
	if err != nil {
		return "", err
	}
	heard, err := s.revoke(ctx, other, func() error { return nil })
	if err != nil {
		return "", err
	}
	unheard, err := s.revoke(ctx, other, func() error {
		// The database lets nobody in: who listened cannot come back, and the
		// connections of the pools go on.
		return errors.Join(s.db.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS false"),
			s.db.execIn(ctx, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'petstore listen'"))
	})
	return fmt.Sprintf("401 after %s; while LISTEN is cut after %s", round(heard), round(unheard)), err
}

// revoke makes a key, uses it until the service knows it well, has another
// process revoke it after what comes before that, and returns how long it goes on
// working.
func (s *shop) revoke(ctx context.Context, other *client, before func() error) (time.Duration, error) {
	const limit = time.Second
	a, err := s.want(ctx, http.StatusCreated, "POST", "/account/api-keys", `{"name": "leaving", "scope": "read"}`)
	if err != nil {
		return 0, err
	}
	var created struct {
		ID     int64
		Secret string
	}
	if err := a.decode(&created); err != nil {
		return 0, err
	}
	own := fmt.Sprintf("/account/api-keys/%d", created.ID)
	if _, err := other.want(ctx, http.StatusOK, "GET", "/account/api-keys", ""); err != nil { // over a connection that it keeps
		return 0, err
	}
	using, stop := context.WithCancel(ctx)
	defer stop()
	type use struct {
		asked  time.Time
		status int
	}
	uses, failed := make(chan use, 10_000), make(chan error, 1)
	go func() {
		defer close(uses)
		for using.Err() == nil {
			asked := time.Now()
			a, err := s.as(created.Secret).do(ctx, "GET", "/store/inventory/1", "")
			if err != nil {
				failed <- err
				return
			}
			uses <- use{asked, a.status}
			wait(using, 5*time.Millisecond)
		}
	}()
	wait(ctx, 700*time.Millisecond)
	if err := before(); err != nil {
		return 0, err
	}
	if _, err := other.want(ctx, http.StatusNoContent, "DELETE", own, ""); err != nil {
		return 0, err
	}
	revoked := time.Now()
	wait(ctx, limit+500*time.Millisecond)
	stop()
	var last time.Time // that it worked
	refused := false
	for u := range uses {
		switch u.status {
		case http.StatusOK:
			last = u.asked
		case http.StatusUnauthorized:
			refused = true
		default:
			return 0, fmt.Errorf("a key returned %d", u.status)
		}
	}
	select {
	case err := <-failed:
		return 0, err
	default:
	}
	worked := max(0, last.Sub(revoked))
	if !refused || worked > limit {
		return 0, fmt.Errorf("the key still worked %s after it was revoked (refused at all: %t)", round(worked), refused)
	}
	return worked, nil
}
