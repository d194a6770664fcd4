package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/delivery"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
)

func TestMain(m *testing.M) {
	pgtest.Widen()
	m.Run()
}

// TestDeliverAtOnce: a delivery that a request has made due is sent without a sweep.
func TestDeliverAtOnce(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, nil)
	id := f.webhook(to.url, "pet.created")
	worker := delivery.New(f.options())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		worker.RunAsked(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	worker.Deliver(f.account, id) // nothing is due
	for i := range 20 {
		f.test(id, i)
		worker.Deliver(f.account, id)
		to.await(i + 1)
	}
	worker.Deliver(f.account, "wh_00000000000000000000000000000000") // there is no such webhook
	f.test(id, 20)
	worker.Deliver(f.account, id)
	to.await(21)
}

// test creates the delivery of a webhook.test event, as the API does.
func (f *feed) test(webhookID string, i int) {
	f.t.Helper()
	event := fmt.Sprintf("evt_%032x", i)
	_, err := postgres.Transact(f.t.Context(), f.db, func(ctx context.Context, tx pgx.Tx) (any, error) {
		queries := db.New(tx)
		if _, err := queries.WebhookGetLocked(ctx, db.WebhookGetLockedParams{AccountID: f.account, ID: webhookID}); err != nil {
			return nil, err
		}
		if err := queries.WebhookProbe(ctx, db.WebhookProbeParams{AccountID: f.account, ID: webhookID}); err != nil {
			return nil, err
		}
		return queries.WebhookDeliveryCreateTest(ctx, db.WebhookDeliveryCreateTestParams{
			AccountID: f.account, ID: fmt.Sprintf("dlv_%032x", i), WebhookID: webhookID, EventID: event, Type: "webhook.test",
			Body: fmt.Sprintf(`{"id":%q,"type":"webhook.test"}`, event),
		})
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// TestOneClaim: a webhook with a valid lease cannot be claimed.
func TestOneClaim(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	claim := db.WebhookClaimParams{AccountID: f.account, ID: f.webhook("http://127.0.0.1:1/")}
	if lease, err := f.queries.WebhookClaim(t.Context(), claim); err != nil || lease != 1 {
		t.Fatalf("the first claim: %d, %v", lease, err)
	}
	if lease, err := f.queries.WebhookClaim(t.Context(), claim); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("a claim during the lease: %d, %v", lease, err)
	}
	f.exec("UPDATE webhooks SET lease_until = now()")
	if lease, err := f.queries.WebhookClaim(t.Context(), claim); err != nil || lease != 2 {
		t.Errorf("a claim after the lease: %d, %v", lease, err)
	}
}
