package webhook_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/pgtest"
	"petstore/internal/standardwebhooks"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
)

// steps notes the statements that delete deliveries. They run one after the other.
type steps struct {
	t            *testing.T
	count        int
	began, ended time.Time // of the last one
}

func (s *steps) note(_ context.Context, all []pgtest.Statement) (ended func()) {
	if !strings.Contains(all[0].SQL, "DELETE FROM webhook_deliveries") {
		return nil
	}
	if took, paused := s.ended.Sub(s.began), time.Since(s.ended); s.count > 0 && paused < took {
		s.t.Errorf("the sweep pauses for %s after a batch that took %s", paused, took)
	}
	s.count++
	s.began = time.Now()
	return func() { s.ended = time.Now() }
}

// TestSweep: old deliveries are deleted, and deleted webhooks once the worker needs them no
// more. The ids of a process whose clock is behind make no delivery old.
func TestSweep(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	steps := &steps{t: t}
	pool := pgtest.Open(t, database.URL, 4, pgtest.Around(steps.note))
	now := time.Now()
	const old, young = 1010, 10 // of a webhook; the delivered ones are several batches
	// Old deliveries are a minute older than the retention, and young ones a minute younger.
	past, recent := now.Add(-webhook.Retention-time.Minute), now.Add(-webhook.Retention+time.Minute)
	pgtest.Exec(t, database.Pool, `
		INSERT INTO accounts (id, name) VALUES (1, 'one'), (2, 'two');
		INSERT INTO account_state (account_id) VALUES (1), (2);
		INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, status, disabled_reason, unsettled_after, deleted_at)
		SELECT account_id, 'wh_' || md5(name), 'https://example.com', '{*}', '\x00', 0, CASE WHEN name = 'kept' THEN 'enabled' ELSE 'disabled' END,
		       CASE WHEN name <> 'kept' THEN 'manual' END, CASE WHEN name <> 'gone' THEN '' END, CASE WHEN name <> 'kept' THEN now() END
		FROM account_state, unnest('{kept,gone,going}'::text[]) AS name`)
	for _, made := range []struct {
		deliveries int
		clock, at  time.Time // of the process and of the database
	}{{old, past, past}, {young, recent, recent}, {young, past, recent}} {
		pgtest.Exec(t, database.Pool, `
			INSERT INTO webhook_deliveries (account_id, id, webhook_id, event_id, sequence, type, status, next_attempt_at, created_at)
			SELECT account_id, left($1::text, 16) || left(md5(webhooks.id || $3::timestamptz || n), 20), webhooks.id, 'evt_00000000000000000000000000000000', n, 'pet.created', made.status,
			       CASE WHEN made.status = 'pending' THEN now() END, $3
			FROM webhooks, generate_series(1, $2::int) AS n, LATERAL (SELECT CASE WHEN n = 1 THEN 'pending' WHEN n = 2 THEN 'failed' ELSE 'delivered' END AS status) AS made`,
			webhook.FirstDeliveryID(made.clock), made.deliveries, made.at)
	}
	for run := range 2 { // a second sweep changes nothing
		steps.count = 0
		need.OK(t, webhook.Sweep(t.Context(), pool, vault(t)))
		if (steps.count == 0) != (run == 1) {
			t.Errorf("sweep %d deleted %d batches", run, steps.count)
		}
		left := pgtest.List[string](t, database.Pool, `
			SELECT w.account_id || ' ' || name || ' ' || count(d)
			FROM webhooks AS w
			JOIN unnest('{kept,gone,going}'::text[]) AS name ON w.id = 'wh_' || md5(name)
			LEFT JOIN webhook_deliveries AS d ON d.account_id = w.account_id AND d.webhook_id = w.id
			GROUP BY w.account_id, name
			ORDER BY w.account_id, name`)
		need.Same(t, []string{"1 going 20", "1 kept 20", "2 going 20", "2 kept 20"}, left, "webhooks and their deliveries")
	}
}

// TestReseal: a sweep seals all secrets with the first key, so that the key before it can be
// removed. It does not change the secrets.
func TestReseal(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	pool := pgtest.Open(t, database.URL, 4)
	exec := func(sql string, args ...any) {
		t.Helper()
		pgtest.Exec(t, database.Pool, sql, args...)
	}
	exec("INSERT INTO accounts (id, name) VALUES (1, 'one'); INSERT INTO account_state (account_id) VALUES (1)")
	secrets := map[webhook.Endpoint][2]standardwebhooks.Secret{}
	create := func(sealer *webhook.Vault, grace any) webhook.Endpoint {
		t.Helper()
		at := webhook.Endpoint{AccountID: 1, ID: webhook.NewID()}
		both := [2]standardwebhooks.Secret{standardwebhooks.NewSecret(), standardwebhooks.NewSecret()}
		secrets[at] = both
		exec(`
			INSERT INTO webhooks (account_id, id, url, types, secret, previous_secret, previous_until, after_sequence)
			VALUES (1, $1, 'https://example.com', '{*}', $2, CASE WHEN $4::int IS NOT NULL THEN $3::bytea END, now() + $4 * interval '1 second', 0)`,
			at.ID, sealer.Seal(at, both[0]), sealer.Seal(at, both[1]), grace)
		return at
	}
	stored := func(at webhook.Endpoint) (current, previous []byte) {
		t.Helper()
		need.OK(t, database.Pool.QueryRow(t.Context(), "SELECT secret, previous_secret FROM webhooks WHERE id = $1", at.ID).Scan(&current, &previous))
		return current, previous
	}
	var during, over []webhook.Endpoint
	for _, sealer := range []*webhook.Vault{vault(t), vault(t, 1), vault(t, 2)} {
		during = append(during, create(sealer, 60))
		over = append(over, create(sealer, -1), create(sealer, nil))
	}
	lost := create(vault(t, 3), nil)
	unreadable, _ := stored(lost)
	for range 2 { // the second sweep changes nothing
		if err := webhook.Sweep(t.Context(), pool, vault(t, 2, 1)); err == nil || !strings.Contains(err.Error(), "do not open: 1;") || !strings.Contains(err.Error(), lost.ID) {
			t.Errorf("a sweep with a secret that does not open: %v", err)
		}
		if left, _ := stored(lost); !bytes.Equal(left, unreadable) {
			t.Error("a secret that does not open was replaced")
		}
		for _, at := range append(slices.Clone(during), over...) {
			current, previous := stored(at)
			if opened, err := vault(t, 2).Open(at, current); err != nil || opened != secrets[at][0] {
				t.Errorf("the secret with the new key alone: %v", err)
			}
			if slices.Contains(over, at) {
				if previous != nil {
					t.Error("a secret whose grace is over is still stored")
				}
			} else if opened, err := vault(t, 2).Open(at, previous); err != nil || opened != secrets[at][1] {
				t.Errorf("the previous secret with the new key alone: %v", err)
			}
		}
	}
	if err := webhook.Sweep(t.Context(), pool, vault(t)); err == nil {
		t.Error("a sweep without a key opened sealed secrets")
	}
	exec(`
		INSERT INTO webhooks (account_id, id, url, types, secret, after_sequence, status, disabled_reason, unsettled_after, deleted_at)
		SELECT 1, 'wh_' || lpad(n::text, 32, '0'), 'https://example.com', '{*}', '\x00', 0, 'disabled', 'manual', NULL, now()
		FROM generate_series(1, 1000) AS n`) // the first page
	if got, err := webhook.LostSecrets(t.Context(), db.New(pool), vault(t, 2)); err != nil || len(got) != 1 || !strings.Contains(got[0].Error(), lost.ID) {
		t.Errorf("%d secrets do not open, %v", len(got), err)
	}
}
