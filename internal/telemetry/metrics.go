package telemetry

import (
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// durationBuckets are upper bounds in seconds: an answer from memory takes less
// than the first, and no request is handled for longer than the last.
var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// What a request is told as that no route matches, or whose method is none that
// the API knows.
const (
	UnmatchedRoute = "unmatched"
	OtherMethod    = "_OTHER" // as OpenTelemetry writes it
)

// Metrics are what a process tells to Prometheus. They have a registry of their
// own, so that several can live in one process.
type Metrics struct {
	registry         *prometheus.Registry
	requests         *prometheus.CounterVec
	durations        *prometheus.HistogramVec
	inFlight         prometheus.Gauge
	limitedByKey     prometheus.Counter
	limitedByAddress prometheus.Counter
	replays          prometheus.Counter
}

// NewMetrics returns metrics at zero, those of the Go runtime and of the process
// among them.
func NewMetrics() *Metrics {
	limited := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "petstore_http_rate_limited_total",
		Help: "Requests answered with 429, by the limit: that of an API key, or that of failed authentications from an address.",
	}, []string{"limit"})
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "petstore_http_requests_total",
			Help: "Requests answered, by route pattern, method and status.",
		}, []string{"route", "method", "status"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "petstore_http_request_duration_seconds",
			Help:    "Time from the header of a request to the end of its handling, by route pattern and method.",
			Buckets: durationBuckets,
		}, []string{"route", "method"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "petstore_http_requests_in_flight",
			Help: "Requests being handled.",
		}),
		limitedByKey:     limited.WithLabelValues("key"),
		limitedByAddress: limited.WithLabelValues("address"),
		replays: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "petstore_idempotent_replays_total",
			Help: "Answers given again under their Idempotency-Key.",
		}),
	}
	m.registry.MustRegister(m.requests, m.durations, m.inFlight, limited, m.replays,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler answers with the metrics in the format that was asked for.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// SetVersion tells the version of the program. It is called once at most.
func (m *Metrics) SetVersion(version string) {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "petstore_build_info",
		Help:        "1, labelled with the version of the program and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(build)
}

// WatchPool tells of a pool of connections whenever the metrics are asked for. It
// is called once at most, as are WatchWrites, WatchKeys and WatchConnections.
func (m *Metrics) WatchPool(pool *pgxpool.Pool) { m.registry.MustRegister(poolCollector{pool}) }

// WatchWrites tells how many writes got no connection, whenever the metrics are
// asked for.
func (m *Metrics) WatchWrites(canceled func() uint64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "petstore_db_canceled_writes_total",
		Help: "Writes that got no connection in time, because as many as may were writing.",
	}, func() float64 { return float64(canceled()) }))
}

// WatchKeys tells how many API keys were verified from memory, and how many with
// the database, whenever the metrics are asked for.
func (m *Metrics) WatchKeys(lookups func() (hits, misses uint64)) {
	lookup := func(result string, value func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name:        "petstore_key_cache_lookups_total",
			Help:        "API keys looked up in memory: a hit costs no database round trip.",
			ConstLabels: prometheus.Labels{"result": result},
		}, value)
	}
	m.registry.MustRegister(
		lookup("hit", func() float64 { hits, _ := lookups(); return float64(hits) }),
		lookup("miss", func() float64 { _, misses := lookups(); return float64(misses) }),
	)
}

// WatchConnections reports the open connections of clients, and those that were
// closed to make place for others, whenever the metrics are read.
func (m *Metrics) WatchConnections(counts func() (open int, evicted uint64)) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "petstore_http_connections",
			Help: "Open connections of clients.",
		}, func() float64 { open, _ := counts(); return float64(open) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "petstore_http_evicted_connections_total",
			Help: "Connections without a request that were closed to make place for new ones.",
		}, func() float64 { _, evicted := counts(); return float64(evicted) }),
	)
}

// RateLimited counts a request that was answered with 429, because of its key or
// else its address.
func (m *Metrics) RateLimited(byKey bool) {
	if byKey {
		m.limitedByKey.Inc()
	} else {
		m.limitedByAddress.Inc()
	}
}

// Replayed counts an answer that was given again.
func (m *Metrics) Replayed() { m.replays.Inc() }

// Operation is one method of one route. What is told of its requests is looked up
// once, so that telling it allocates nothing.
type Operation struct {
	Method, Route string

	metrics  *Metrics
	duration atomic.Pointer[prometheus.Observer]
	answers  [5 * statusesPerClass]atomic.Pointer[prometheus.Counter]
}

// statusesPerClass bounds the statuses of a class that are looked up once; all
// that HTTP registers for the API's use are under it.
const statusesPerClass = 32

// Operation returns what counts the requests of a method and route. Both become
// labels, so they must be few.
func (m *Metrics) Operation(method, route string) *Operation {
	return &Operation{Method: method, Route: route, metrics: m}
}

// Began counts a request as in flight, until its Answered.
func (o *Operation) Began() { o.metrics.inFlight.Inc() }

// Answered counts the answer to a request.
func (o *Operation) Answered(status int, took time.Duration) {
	o.metrics.inFlight.Dec()
	o.counter(status).Inc()
	duration := o.duration.Load()
	if duration == nil {
		made := o.metrics.durations.WithLabelValues(o.Route, o.Method)
		duration = &made
		o.duration.Store(duration)
	}
	(*duration).Observe(took.Seconds())
}

func (o *Operation) counter(status int) prometheus.Counter {
	class, rest := status/100-1, status%100
	known := class >= 0 && class < 5 && rest < statusesPerClass
	at := class*statusesPerClass + rest
	if known {
		if made := o.answers[at].Load(); made != nil {
			return *made
		}
	}
	counter := o.metrics.requests.WithLabelValues(o.Route, o.Method, strconv.Itoa(status))
	if known {
		o.answers[at].Store(&counter)
	}
	return counter
}

// poolCollector tells of a pool as it is at the moment.
type poolCollector struct{ pool *pgxpool.Pool }

type poolMetric struct {
	description *prometheus.Desc
	kind        prometheus.ValueType
	value       func(*pgxpool.Stat) float64
}

func newPoolMetric(name, help string, kind prometheus.ValueType, value func(*pgxpool.Stat) float64) poolMetric {
	return poolMetric{prometheus.NewDesc("petstore_db_pool_"+name, help, nil, nil), kind, value}
}

var poolMetrics = []poolMetric{
	newPoolMetric("max_connections", "Most connections to the database at once.", prometheus.GaugeValue,
		func(s *pgxpool.Stat) float64 { return float64(s.MaxConns()) }),
	newPoolMetric("acquired_connections", "Connections in use.", prometheus.GaugeValue,
		func(s *pgxpool.Stat) float64 { return float64(s.AcquiredConns()) }),
	newPoolMetric("idle_connections", "Connections that wait for use.", prometheus.GaugeValue,
		func(s *pgxpool.Stat) float64 { return float64(s.IdleConns()) }),
	newPoolMetric("acquires_total", "Connections taken.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return float64(s.AcquireCount()) }),
	newPoolMetric("acquire_seconds_total", "Time spent to take connections.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return s.AcquireDuration().Seconds() }),
	newPoolMetric("empty_acquires_total", "Connections that were waited for, because none was idle.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return float64(s.EmptyAcquireCount()) }),
	newPoolMetric("canceled_acquires_total", "Waits for a connection that ended without one.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return float64(s.CanceledAcquireCount()) }),
	newPoolMetric("new_connections_total", "Connections made.", prometheus.CounterValue,
		func(s *pgxpool.Stat) float64 { return float64(s.NewConnsCount()) }),
}

// Describe sends the descriptions of the metrics.
func (c poolCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, m := range poolMetrics {
		descriptions <- m.description
	}
}

// Collect sends the metrics, all of one moment.
func (c poolCollector) Collect(metrics chan<- prometheus.Metric) {
	stat := c.pool.Stat()
	for _, m := range poolMetrics {
		metrics <- prometheus.MustNewConstMetric(m.description, m.kind, m.value(stat))
	}
}
