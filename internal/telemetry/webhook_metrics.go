package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// lagBuckets are upper bounds in seconds. A delivery begins within a second if nothing is
// wrong.
var lagBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600}

// webhookMetrics are the metrics of the worker that delivers webhooks.
type webhookMetrics struct {
	attempts  *prometheus.HistogramVec
	dispatch  prometheus.Histogram
	first     prometheus.Histogram
	waiting   *prometheus.GaugeVec // without a label, so that it can be removed
	due       *prometheus.GaugeVec
	oldest    *prometheus.GaugeVec
	unclaimed *prometheus.GaugeVec // as waiting
	failing   *prometheus.GaugeVec // as waiting
}

func newWebhookMetrics(made promauto.Factory) webhookMetrics {
	return webhookMetrics{
		attempts: made.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "petstore_webhook_attempt_duration_seconds",
			Help:    "Time of a request to a webhook, by outcome: delivered (status 2xx), rejected (another status) or unreachable (no response).",
			Buckets: append([]float64{.001, .0025, .005}, lagBuckets[:11]...),
		}, []string{"outcome"}),
		dispatch: made.NewHistogram(prometheus.HistogramOpts{
			Name:    "petstore_webhook_dispatch_lag_seconds",
			Help:    "Time from an event until its deliveries are stored, of the oldest event of each dispatch.",
			Buckets: lagBuckets,
		}),
		first: made.NewHistogram(prometheus.HistogramOpts{
			Name:    "petstore_webhook_first_attempt_lag_seconds",
			Help:    "Time from the insert of a delivery to its first attempt.",
			Buckets: lagBuckets,
		}),
		waiting: made.NewGaugeVec(prometheus.GaugeOpts{
			Name: "petstore_webhook_undispatched_events",
			Help: "Events of all accounts with enabled webhooks whose deliveries are not stored yet. Every process reports the same number.",
		}, nil),
		due: made.NewGaugeVec(prometheus.GaugeOpts{
			Name: "petstore_webhooks_due",
			Help: "Webhooks that have a delivery that is due, by whether the webhook is failing. Every process reports the same number.",
		}, []string{"failing"}),
		failing: made.NewGaugeVec(prometheus.GaugeOpts{
			Name: "petstore_webhooks_failing",
			Help: "Enabled webhooks of which all attempts have failed lately. Every process reports the same number.",
		}, nil),
		oldest: made.NewGaugeVec(prometheus.GaugeOpts{
			Name: "petstore_webhook_oldest_due_seconds",
			Help: "How long the oldest delivery has been due, over all enabled webhooks, by whether the webhook is failing. Every process reports the same number.",
		}, []string{"failing"}),
		unclaimed: made.NewGaugeVec(prometheus.GaugeOpts{
			Name: "petstore_webhook_oldest_unclaimed_seconds",
			Help: "How long the oldest delivery has been due, over the webhooks that neither fail nor are slow and to which no process delivers. Every process reports the same number.",
		}, nil),
	}
}

// WebhookAttempted counts a request to a webhook.
func (m *Metrics) WebhookAttempted(outcome string, took time.Duration) {
	m.webhooks.attempts.WithLabelValues(outcome).Observe(took.Seconds())
}

// WebhookDispatched counts a dispatch of events, the oldest of which has waited for a time.
func (m *Metrics) WebhookDispatched(lag time.Duration) { m.webhooks.dispatch.Observe(lag.Seconds()) }

// WebhookFirstAttempt counts the first attempt of a delivery, which has waited for a time.
func (m *Metrics) WebhookFirstAttempt(lag time.Duration) { m.webhooks.first.Observe(lag.Seconds()) }

// SetUndispatchedEvents sets the number of events whose deliveries are not stored yet.
func (m *Metrics) SetUndispatchedEvents(count int64) {
	m.webhooks.waiting.WithLabelValues().Set(float64(count))
}

// SetWebhooksFailing sets the number of enabled webhooks that fail.
func (m *Metrics) SetWebhooksFailing(count int64) {
	m.webhooks.failing.WithLabelValues().Set(float64(count))
}

// SetDue sets the number of webhooks that have a delivery that is due, and the seconds that
// the oldest has been due. It does so for the failing webhooks, or for the others.
func (m *Metrics) SetDue(isFailing bool, count int, oldest float64) {
	label := strconv.FormatBool(isFailing)
	m.webhooks.due.WithLabelValues(label).Set(float64(count))
	m.webhooks.oldest.WithLabelValues(label).Set(oldest)
}

// SetOldestUnclaimed sets the seconds that the oldest delivery has been due, over the webhooks to
// which no process delivers. Those that fail or are slow do not count.
func (m *Metrics) SetOldestUnclaimed(oldest float64) {
	m.webhooks.unclaimed.WithLabelValues().Set(oldest)
}

// ForgetUndispatchedEvents removes the number of these events, because the process cannot read it.
func (m *Metrics) ForgetUndispatchedEvents() { m.webhooks.waiting.Reset() }

// ForgetWebhooks removes the numbers about webhooks, because the process cannot read them.
func (m *Metrics) ForgetWebhooks() {
	for _, known := range []*prometheus.GaugeVec{m.webhooks.due, m.webhooks.oldest, m.webhooks.unclaimed, m.webhooks.failing} {
		known.Reset()
	}
}
