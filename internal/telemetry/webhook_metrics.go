package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// lagBuckets are upper bounds in seconds. A delivery begins within a second if nothing is
// wrong.
var lagBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600}

// webhookMetrics are the metrics of the worker that delivers webhooks.
type webhookMetrics struct {
	attempts *prometheus.HistogramVec
	dispatch prometheus.Histogram
	first    prometheus.Histogram
	oldest   *prometheus.GaugeVec
}

func newWebhookMetrics(registry *prometheus.Registry) webhookMetrics {
	m := webhookMetrics{
		attempts: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "petstore_webhook_attempt_duration_seconds",
			Help:    "Time of a request to a webhook, by outcome: delivered (status 2xx), rejected (another status) or unreachable (no response).",
			Buckets: append([]float64{.001, .0025, .005}, lagBuckets[:11]...),
		}, []string{"outcome"}),
		dispatch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "petstore_webhook_dispatch_lag_seconds",
			Help:    "Time from an event until its deliveries are stored, of the oldest event of each dispatch.",
			Buckets: lagBuckets,
		}),
		first: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "petstore_webhook_first_attempt_lag_seconds",
			Help:    "Time from an event to the first attempt to deliver it.",
			Buckets: lagBuckets,
		}),
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "petstore_webhook_oldest_due_seconds",
			Help: "How long the oldest delivery has been due, over all webhooks that are enabled, by whether the webhook is failing.",
		}, []string{"failing"}),
	}
	registry.MustRegister(m.attempts, m.dispatch, m.first, m.oldest)
	return m
}

// WebhookAttempted counts a request to a webhook.
func (m *Metrics) WebhookAttempted(outcome string, took time.Duration) {
	m.webhooks.attempts.WithLabelValues(outcome).Observe(took.Seconds())
}

// WebhookDispatched counts a dispatch of events, the oldest of which has waited for a time.
func (m *Metrics) WebhookDispatched(lag time.Duration) { m.webhooks.dispatch.Observe(lag.Seconds()) }

// WebhookFirstAttempt counts the first attempt of a delivery.
func (m *Metrics) WebhookFirstAttempt(lag time.Duration) { m.webhooks.first.Observe(lag.Seconds()) }

// SetWebhooksDue sets how many seconds the oldest delivery has been due.
func (m *Metrics) SetWebhooksDue(healthy, failing float64) {
	m.webhooks.oldest.WithLabelValues("false").Set(healthy)
	m.webhooks.oldest.WithLabelValues("true").Set(failing)
}
