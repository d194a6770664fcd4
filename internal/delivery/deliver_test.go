package delivery_test

import (
	"context"
	"fmt"
	"testing"

	"petstore/db"
	"petstore/internal/delivery"
)

// TestDeliverAtOnce: a delivery that a request has made due is sent without a sweep.
func TestDeliverAtOnce(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	to := receive(t, nil)
	id := f.webhook(to.url, "pet.created")
	worker, err := delivery.New(f.options())
	if err != nil {
		t.Fatal(err)
	}
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
	event := fmt.Sprintf("evt_test_%032x", i)
	_, err := f.queries.WebhookDeliveryCreateTest(f.t.Context(), db.WebhookDeliveryCreateTestParams{
		AccountID: f.account, ID: fmt.Sprintf("dlv_%032x", i), WebhookID: webhookID, EventID: event, Type: "webhook.test",
		Body: fmt.Sprintf(`{"id":%q,"type":"webhook.test"}`, event),
	})
	if err != nil {
		f.t.Fatal(err)
	}
}
