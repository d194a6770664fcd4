package delivery

import (
	"context"
	"time"
)

// RunAsked delivers only to the webhooks that [Worker.Deliver] names, until ctx ends.
// Nothing else looks for deliveries that are due.
func (w *Worker) RunAsked(ctx context.Context) {
	w.asked.each(ctx, w.deliverAsked)
	w.webhooks.wait()
}

// TakeOver lets a new worker take over leases, as if the database had responded for long.
func (w *Worker) TakeOver() {
	w.responsive, w.responded = time.Now().Add(-headStart), time.Now().Add(time.Hour)
}

// Draining returns how many of the worker's leases have fast and slow places.
func (w *Worker) Draining() (fast, slow int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for d := range w.leases {
		if d.pool == w.slow {
			slow++
		} else {
			fast++
		}
	}
	return fast, slow
}

// SettlePage is the maximum number of messages of a step.
const SettlePage = settlePage

// Settle lets a webhook take a step, and reports whether it has more to do.
func (w *Worker) Settle(ctx context.Context, accountID int64, webhookID string) (more bool, err error) {
	left, err := w.settle(ctx, accountID, endpoint{accountID, webhookID})
	return left == restNow, err
}

// ExpireMessages ends the messages for which no webhook has subscribed in time.
func (w *Worker) ExpireMessages(ctx context.Context) error { return w.expireMessages(ctx) }
