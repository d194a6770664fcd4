package delivery

import "context"

// RunAsked runs only the jobs of the webhooks that [Worker.Deliver] names, until ctx ends.
// Nothing else looks for deliveries that are due.
func (w *Worker) RunAsked(ctx context.Context) {
	go w.deliverAsked(ctx)
	w.runJobs(ctx)
}
