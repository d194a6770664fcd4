package telemetry

import (
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// durationBuckets are upper bounds in seconds. A response without a query is below
// the first, and the request timeout is below the last one.
var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Labels of requests that match no route, or whose method the API does not use.
const (
	UnmatchedRoute = "unmatched"
	OtherMethod    = "_OTHER" // the OpenTelemetry convention
)

// Limit is a limit that causes responses with status 429.
type Limit string

// The limits.
const (
	KeyLimit         Limit = "key"         // rate of an API key
	AccountLimit     Limit = "account"     // rate of an account with its sandboxes
	SandboxesLimit   Limit = "sandboxes"   // rate of all sandboxes of an account together
	ConcurrencyLimit Limit = "concurrency" // share of an account in a resource
	AddressLimit     Limit = "address"     // failed authentications from an address
)

// Metrics are the Prometheus metrics of a server. They have their own registry, so
// that several can exist in one process.
type Metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	inFlight  prometheus.Gauge
	limited   map[Limit]prometheus.Counter
	replays   prometheus.Counter
	recorded  *prometheus.CounterVec
	injected  *prometheus.CounterVec
	streams   prometheus.Gauge
	ready     *prometheus.GaugeVec // without a label, so that it can be absent
	webhooks  webhookMetrics
}

// NewMetrics returns new metrics, including metrics of the Go runtime and of the
// process.
func NewMetrics() *Metrics {
	registry := prometheus.NewRegistry()
	made := promauto.With(registry)
	limited := made.NewCounterVec(prometheus.CounterOpts{
		Name: "petstore_http_rate_limited_total",
		Help: "Responses with status 429, by limit: key (its rate), account (its rate), sandboxes (their common rate), concurrency (share of an account) or address (failed authentications).",
	}, []string{"limit"})
	m := &Metrics{
		registry: registry,
		requests: made.NewCounterVec(prometheus.CounterOpts{
			Name: "petstore_http_requests_total",
			Help: "Responses, by route pattern, method and status. Without probes and without errors injected by the rules of a sandbox.",
		}, []string{"route", "method", "status"}),
		durations: made.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "petstore_http_request_duration_seconds",
			Help:    "Time from the header of a request to the end of its handler, by route pattern and method. Without probes, injected delays, the time in which a body comes, and the time that a request waits for events.",
			Buckets: durationBuckets,
		}, []string{"route", "method"}),
		inFlight: made.NewGauge(prometheus.GaugeOpts{
			Name: "petstore_http_requests_in_flight",
			Help: "Requests in progress.",
		}),
		limited:  map[Limit]prometheus.Counter{},
		webhooks: newWebhookMetrics(made),
		replays: made.NewCounter(prometheus.CounterOpts{
			Name: "petstore_idempotent_replays_total",
			Help: "Stored responses returned for a repeated Idempotency-Key.",
		}),
		recorded: made.NewCounterVec(prometheus.CounterOpts{
			Name: "petstore_recorded_requests_total",
			Help: "Requests of sandboxes for their records, by result: written, or dropped because there were too many or the database failed.",
		}, []string{"result"}),
		injected: made.NewCounterVec(prometheus.CounterOpts{
			Name: "petstore_injected_faults_total",
			Help: "Faults injected into requests of sandboxes, by effect: status, delay or close.",
		}, []string{"effect"}),
		streams: made.NewGauge(prometheus.GaugeOpts{
			Name: "petstore_event_streams",
			Help: "Open streams of events.",
		}),
		ready: made.NewGaugeVec(prometheus.GaugeOpts{
			Name: "petstore_ready",
			Help: "1 if the last readiness probe succeeded, or else 0. Absent until the first probe.",
		}, nil),
	}
	for _, limit := range []Limit{KeyLimit, AccountLimit, SandboxesLimit, ConcurrencyLimit, AddressLimit} {
		m.limited[limit] = limited.WithLabelValues(string(limit))
	}
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler returns the metrics in the format that the request accepts.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// SetVersion sets the version of the program. Call it at most once.
func (m *Metrics) SetVersion(version string) {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "petstore_build_info",
		Help:        "Always 1, labeled with the versions of the program and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(build)
}

// watchCounter exports a counter that somebody else counts.
func (m *Metrics) watchCounter(name, help string, labels prometheus.Labels, value func() float64) {
	promauto.With(m.registry).NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

// watchGauge exports a value that somebody else measures.
func (m *Metrics) watchGauge(name, help string, labels prometheus.Labels, value func() float64) {
	promauto.With(m.registry).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

// WatchPool exports the statistics of a connection pool. Call it at most once, as
// WatchWrites, WatchKeys, WatchConnections and WatchCertificate.
func (m *Metrics) WatchPool(pool *pgxpool.Pool) {
	const prefix = "petstore_db_pool_"
	for _, gauge := range []struct {
		name, help string
		value      func(*pgxpool.Stat) int32
	}{
		{"max_connections", "Maximum number of connections to the database.", (*pgxpool.Stat).MaxConns},
		{"acquired_connections", "Connections in use.", (*pgxpool.Stat).AcquiredConns},
		{"idle_connections", "Idle connections.", (*pgxpool.Stat).IdleConns},
	} {
		m.watchGauge(prefix+gauge.name, gauge.help, nil, func() float64 { return float64(gauge.value(pool.Stat())) })
	}
	for _, counter := range []struct {
		name, help string
		value      func(*pgxpool.Stat) int64
	}{
		{"acquires_total", "Connections acquired.", (*pgxpool.Stat).AcquireCount},
		{"empty_acquires_total", "Acquires that waited because no connection was idle.", (*pgxpool.Stat).EmptyAcquireCount},
		{"canceled_acquires_total", "Acquires that were canceled before they got a connection.", (*pgxpool.Stat).CanceledAcquireCount},
		{"new_connections_total", "Connections opened.", (*pgxpool.Stat).NewConnsCount},
	} {
		m.watchCounter(prefix+counter.name, counter.help, nil, func() float64 { return float64(counter.value(pool.Stat())) })
	}
	m.watchCounter(prefix+"acquire_seconds_total", "Time spent acquiring connections.", nil, func() float64 { return pool.Stat().AcquireDuration().Seconds() })
}

// WatchWrites exports how many writes got no connection.
func (m *Metrics) WatchWrites(canceled func() uint64) {
	m.watchCounter("petstore_db_canceled_writes_total", "Writes that got no connection in time because too many others were writing.", nil,
		func() float64 { return float64(canceled()) })
}

// WatchKeys exports how many API keys were verified from the cache, and how many
// with a database query.
func (m *Metrics) WatchKeys(lookups func() (hits, misses uint64)) {
	const name, help = "petstore_key_cache_lookups_total", "Lookups of API keys in the cache. A hit needs no database query."
	m.watchCounter(name, help, prometheus.Labels{"result": "hit"}, func() float64 { hits, _ := lookups(); return float64(hits) })
	m.watchCounter(name, help, prometheus.Labels{"result": "miss"}, func() float64 { _, misses := lookups(); return float64(misses) })
}

// WatchConnections exports the open connections of clients, and how many were
// closed to make room for others.
func (m *Metrics) WatchConnections(counts func() (open int, evicted uint64)) {
	m.watchGauge("petstore_http_connections", "Open connections of clients.", nil, func() float64 { open, _ := counts(); return float64(open) })
	m.watchCounter("petstore_http_evicted_connections_total", "Connections closed for new ones, or for their streams or frames of HTTP/2.", nil,
		func() float64 { _, evicted := counts(); return float64(evicted) })
}

// WatchCertificate exports when the certificate of the server ends.
func (m *Metrics) WatchCertificate(end func() time.Time) {
	m.watchGauge("petstore_certificate_end_timestamp_seconds", "Unix time at which the TLS certificate in use ends.", nil,
		func() float64 { return float64(end().Unix()) })
}

// WatchReplica exports the lag of a read replica in seconds, or NaN, and whether it serves
// reads.
func (m *Metrics) WatchReplica(index int, address string, status func() (lag float64, inRotation bool)) {
	labels := prometheus.Labels{"replica": strconv.Itoa(index), "address": address}
	m.watchGauge("petstore_replica_lag_seconds", "Age of the state of a read replica. NaN if it was never reached.", labels,
		func() float64 { lag, _ := status(); return lag })
	m.watchGauge("petstore_replica_in_rotation", "1 if a read replica serves reads, or else 0.", labels,
		func() float64 { _, in := status(); return oneIf(in) })
}

// oneIf returns 1 if a condition holds, or else 0.
func oneIf(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// WatchReads exports how many GET requests a replica or the primary served for a reason.
func (m *Metrics) WatchReads(byReplica bool, reason string, count func() uint64) {
	server := "primary"
	if byReplica {
		server = "replica"
	}
	m.watchCounter("petstore_reads_total", "GET requests with an API key on a server with read replicas, by the database server that served them, and why.",
		prometheus.Labels{"server": server, "reason": reason}, func() float64 { return float64(count()) })
}

// RateLimited counts a response with status 429, caused by one of the limits above.
func (m *Metrics) RateLimited(limit Limit) { m.limited[limit].Inc() }

// Replayed counts a stored response that was returned again.
func (m *Metrics) Replayed() { m.replays.Inc() }

// Recorded counts requests that the records of sandboxes have, and requests that they lack.
func (m *Metrics) Recorded(written, dropped int) {
	m.recorded.WithLabelValues("written").Add(float64(written))
	m.recorded.WithLabelValues("dropped").Add(float64(dropped))
}

// StreamOpened and StreamClosed count the streams of events that are open.
func (m *Metrics) StreamOpened() { m.streams.Inc() }

// StreamClosed counts the end of a stream.
func (m *Metrics) StreamClosed() { m.streams.Dec() }

// SetReady notes whether a readiness probe succeeded.
func (m *Metrics) SetReady(isReady bool) { m.ready.WithLabelValues().Set(oneIf(isReady)) }

// Injected counts a fault that a rule of a sandbox injected.
func (m *Metrics) Injected(effect string) { m.injected.WithLabelValues(effect).Inc() }

// Operation is one method of one route. Both become labels, so there must be few of them.
type Operation struct{ Method, Route string }

// labels are the statuses as text, so that counting allocates nothing.
var labels = func() (all [600]string) {
	for status := range all {
		all[status] = strconv.Itoa(status)
	}
	return all
}()

// label returns a status as text. Handlers may set any number.
func label(status int) string {
	if status >= 0 && status < len(labels) {
		return labels[status]
	}
	return strconv.Itoa(status)
}

// Start counts a request in flight, until End or Leave.
func (m *Metrics) Start() { m.inFlight.Inc() }

// End counts the response to a request.
func (m *Metrics) End(o Operation, status int, took time.Duration) {
	m.inFlight.Dec()
	m.requests.WithLabelValues(o.Route, o.Method, label(status)).Inc()
	m.durations.WithLabelValues(o.Route, o.Method).Observe(took.Seconds())
}

// Leave ends a request without counting a response.
func (m *Metrics) Leave() { m.inFlight.Dec() }
