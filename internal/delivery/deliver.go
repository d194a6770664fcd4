package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"petstore/db"
)

// asked are the webhooks that [Worker.Deliver] has named.
type asked struct {
	woken chan struct{} // has an element if there are webhooks

	mu       sync.Mutex
	webhooks map[drainArgs]bool
}

// Deliver tells the worker that deliveries to a webhook are due, after the commit of that.
// It does not block. Without it, the next sweep finds them.
func (w *Worker) Deliver(accountID int64, webhookID string) {
	w.asked.add(drainArgs{accountID, webhookID})
}

// add adds a webhook.
func (a *asked) add(to drainArgs) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.webhooks == nil {
		a.webhooks = map[drainArgs]bool{}
	}
	a.webhooks[to] = true
	select {
	case a.woken <- struct{}{}:
	default:
	}
}

// take returns the webhooks and removes them.
func (a *asked) take() map[drainArgs]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.webhooks
	a.webhooks = nil
	return taken
}

// deliverAsked adds jobs for the webhooks that [Worker.Deliver] has named, until ctx ends.
// It logs errors.
func (w *Worker) deliverAsked(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.asked.woken:
		}
		for to := range w.asked.take() {
			w.warn(ctx, "could not deliver what a request has made due", w.addJob(ctx, to))
		}
	}
}

// addJob adds a job for a webhook if it has something to do. Its deliveries are committed,
// so a job that ends at this moment either sees them or leaves room for this one.
func (w *Worker) addJob(ctx context.Context, to drainArgs) error {
	_, err := transact(ctx, w, func(ctx context.Context, tx pgx.Tx) (none struct{}, err error) {
		rest, err := db.New(tx).DrainRest(ctx, db.DrainRestParams{AccountID: to.AccountID, ID: to.WebhookID})
		if errors.Is(err, pgx.ErrNoRows) {
			return none, nil
		}
		if err == nil && rest.HasMore {
			_, err = w.jobs.InsertManyTx(ctx, tx, []river.InsertManyParams{drainJob(to.AccountID, to.WebhookID, rest.IsSlow)})
		}
		return none, err
	})
	if err != nil {
		return fmt.Errorf("delivery: adding the job of webhook %s: %w", to.WebhookID, err)
	}
	return nil
}
