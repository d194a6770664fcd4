//go:build alerts

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

const observability = "../../deploy/observability/"

// TestDashboardAndAlerts evaluates every query of the dashboard and every alert
// with the Prometheus engine, on the metrics of a real server. Each query must
// return values, and the labels that it names must exist.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	pair := pgtest.NewPair(t)
	environ := []string{"DATABASE_URL=" + pair.URL, "PETSTORE_REPLICA_URLS=" + pair.Standby.URL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_ADDR=127.0.0.1:0", "PETSTORE_WEBHOOK_ALLOW=127.0.0.0/8"}
	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme", "--scope", "admin"))
	p := begin(t, emptyDir, environ, "serve")
	base, admin := p.addresses()
	replicaServes := regexp.MustCompile(`(?m)^petstore_replica_in_rotation\{.*\} 1$`)
	need.Within(t, patience, "the replica is in rotation", func() bool { return replicaServes.MatchString(read(t, admin+"/metrics")) })
	receiver := need.Server(t, func(http.ResponseWriter, *http.Request) {})
	for _, url := range []string{receiver.URL, "http://127.0.0.1:" + pgtest.FreePort(t)} { // nothing listens on the second one
		post(t, base+"/webhooks", key, fmt.Sprintf(`{"url": %q, "types": ["category.created"]}`, url))
	}
	certFile, keyFile := newCertificate(t)
	_, secure := begin(t, emptyDir, append(environ, "PETSTORE_TLS_CERT_FILE="+certFile, "PETSTORE_TLS_KEY_FILE="+keyFile, "PETSTORE_WORKER=false"), "serve").addresses()
	certificate := regexp.MustCompile(`(?m)^petstore_certificate_.*\n`).FindString(read(t, secure+"/metrics"))
	scraped := newSeries(time.Now())
	for round := range 3 {
		createCategories(t, base, key, round, round)
		awaitAttempts(t, admin, round+1)
		for _, path := range []string{"/pets", "/pets/1", "/events", "/nowhere", "/readyz"} {
			status(t, base+path, key)
		}
		status(t, base+"/pets", "")
		scraped.add(t, read(t, admin+"/metrics")+certificate)
	}

	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: patience})
	queries := slices.Concat(dashboardQueries(t, "grafana/petstore.json"), dashboardQueries(t, "grafana/objectives.json"), alertQueries(t))
	if len(queries) < 20 {
		t.Fatalf("found only %d queries", len(queries))
	}
	for _, q := range queries {
		expr, err := parser.ParseExpr(q.expr)
		if err != nil {
			t.Errorf("%s: %q: %v", q.where, q.expr, err)
			continue
		}
		if name := sumOfShared(expr); name != "" {
			t.Errorf("%s: %q adds up %s, which is the same in every instance; use max", q.where, q.expr, name)
		}
		for _, missing := range scraped.missing(expr) {
			t.Errorf("%s: %q: the server does not expose %s", q.where, q.expr, missing)
		}
		for condition, ok := expr.(*parser.BinaryExpr); ok && (condition.Op.IsComparisonOperator() || condition.Op.IsSetOperator()); condition, ok = expr.(*parser.BinaryExpr) {
			expr = condition.LHS // whether there are values to compare
		}
		query, err := engine.NewInstantQuery(t.Context(), scraped, nil, expr.String(), scraped.now)
		if err != nil {
			t.Errorf("%s: %q: %v", q.where, q.expr, err)
			continue
		}
		found, err := query.Exec(t.Context()).Vector()
		if err != nil || len(found) == 0 {
			t.Errorf("%s: %q returns nothing: %v", q.where, q.expr, err)
		}
		for _, sample := range found {
			for _, name := range q.labels {
				if !sample.Metric.Has(name) {
					t.Errorf("%s: %q: %s has no label %s", q.where, q.expr, sample.Metric, name)
				}
			}
		}
		if !slices.ContainsFunc(found, func(s promql.Sample) bool { return !math.IsNaN(s.F) }) {
			t.Errorf("%s: %q returns no number", q.where, q.expr)
		}
		query.Close()
	}
}

// awaitAttempts waits until a server has made a number of attempts at each of two webhooks:
// one that accepts events, and one that is not reachable.
func awaitAttempts(t *testing.T, admin string, number int) {
	t.Helper()
	for _, outcome := range []string{"delivered", "unreachable"} {
		count := regexp.MustCompile(`(?m)^petstore_webhook_attempt_duration_seconds_count\{outcome="` + outcome + `"\} (\d+)$`)
		need.Within(t, patience, fmt.Sprintf("the server has made %d attempts that are %s", number, outcome), func() bool {
			match := count.FindStringSubmatch(read(t, admin+"/metrics"))
			if match == nil {
				return false
			}
			made, err := strconv.Atoi(match[1])
			return err == nil && made >= number
		})
	}
}

// query is a query of the dashboard or of an alert, with the labels that its legend
// or text uses.
type query struct {
	where, expr string
	labels      []string
}

func dashboardQueries(t *testing.T, name string) []query {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr, LegendFormat string }
		}
	}
	decodeFile(t, json.Unmarshal, name, &dashboard)
	legendLabel := regexp.MustCompile(`{{(\w+)}}`)
	var all []query
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("the panel %q has no query", panel.Title)
		}
		for _, target := range panel.Targets {
			q := query{where: name + ": panel " + panel.Title, expr: strings.ReplaceAll(target.Expr, "$__rate_interval", "1m")}
			if strings.HasPrefix(q.expr, "sum by ") { // other panels must show that there are no errors
				q.expr = withErrors(q.expr)
			}
			for _, match := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				q.labels = append(q.labels, match[1])
			}
			all = append(all, q)
		}
	}
	return all
}

func alertQueries(t *testing.T) []query {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Labels      struct{ Severity string }
				Annotations struct{ Summary, Runbook string }
			}
		}
	}
	decodeFile(t, yaml.Unmarshal, "alerts.yml", &rules)
	runbook, tests := readFile(t, "../../docs/runbook.md"), readFile(t, observability+"alerts_test.yml")
	toldLabel := regexp.MustCompile(`\$labels\.(\w+)`)
	var all []query
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			q := query{where: "alert " + rule.Alert, expr: withErrors(rule.Expr)}
			if severity := rule.Labels.Severity; severity != "page" && severity != "ticket" {
				t.Errorf("alert %s has the severity %q", rule.Alert, severity)
			}
			if want := "docs/runbook.md#" + strings.ToLower(rule.Alert); rule.Annotations.Runbook != want || !strings.Contains(runbook, "\n## "+rule.Alert+"\n") {
				t.Errorf("alert %s has the runbook %s; want %s and its section", rule.Alert, rule.Annotations.Runbook, want)
			}
			if !strings.Contains(tests, `alertname="`+rule.Alert+`"`) {
				t.Errorf("no values in alerts_test.yml are above the threshold of the alert %s", rule.Alert)
			}
			for _, match := range toldLabel.FindAllStringSubmatch(rule.Annotations.Summary, -1) {
				q.labels = append(q.labels, match[1])
			}
			all = append(all, q)
		}
	}
	return all
}

// withErrors replaces 5xx by 4xx in a query, because a healthy server has no 5xx.
func withErrors(expr string) string {
	return strings.ReplaceAll(expr, `{status=~"5.."}`, `{status=~"4.."}`)
}

func decodeFile[F ~func([]byte, any) error](t *testing.T, decode F, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(observability + name)
	if err == nil {
		err = decode(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// scrapeInterval is the interval of prometheus.yml, in the time of this test.
const scrapeInterval = 5 * time.Second

// series holds the data that Prometheus would store after some scrapes, one
// interval apart.
type series struct {
	now time.Time
	all map[string]*promql.Series // by labels
}

func newSeries(began time.Time) *series { return &series{began, map[string]*promql.Series{}} }

// add stores a scrape.
func (s *series) add(t *testing.T, exposed string) {
	t.Helper()
	s.now = s.now.Add(scrapeInterval)
	text := expfmt.NewTextParser(model.UTF8Validation)
	families := need.Value(text.TextToMetricFamilies(strings.NewReader(exposed)))(t)
	scrape := model.Vector{{Metric: model.Metric{"__name__": "up"}, Value: 1}} // Prometheus adds this one
	for _, family := range families {
		samples := need.Value(expfmt.ExtractSamples(&expfmt.DecodeOptions{}, family))(t)
		scrape = append(scrape, samples...)
	}
	for _, sample := range scrape {
		builder := labels.NewBuilder(labels.FromStrings("job", "petstore", "instance", "api:9090"))
		for name, value := range sample.Metric {
			builder.Set(string(name), string(value))
		}
		all := builder.Labels()
		one := s.all[all.String()]
		if one == nil {
			one = &promql.Series{Metric: all}
			s.all[all.String()] = one
		}
		one.Floats = append(one.Floats, promql.FPoint{T: s.now.UnixMilli(), F: float64(sample.Value)})
	}
}

// sharedGauges are the metrics that every instance reports with the same value.
var sharedGauges = regexp.MustCompile(`^petstore_(webhooks_due|webhooks_failing|webhook_oldest_(due|unclaimed)_seconds|webhook_undispatched_events)$`)

// sumOfShared returns the name of a shared gauge that an expression adds up or shows for each
// instance; empty: there is none.
func sumOfShared(expr parser.Expr) (name string) {
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok || !sharedGauges.MatchString(selector.Name) {
			return nil
		}
		for _, above := range path {
			if aggregate, ok := above.(*parser.AggregateExpr); ok && (aggregate.Op == parser.MAX || aggregate.Op == parser.COUNT) {
				return nil
			}
		}
		name = selector.Name
		return nil
	})
	return name
}

// missing lists the metrics and labels of an expression that no series has.
func (s *series) missing(expr parser.Expr) []string {
	var missing []string
	has := func(metric, label string) bool {
		for _, one := range s.all {
			if (metric == "" || one.Metric.Get(model.MetricNameLabel) == metric) && one.Metric.Has(label) {
				return true
			}
		}
		return false
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			for _, matcher := range node.LabelMatchers {
				if !has(node.Name, matcher.Name) {
					missing = append(missing, node.Name+" with "+matcher.Name)
				}
			}
		case *parser.AggregateExpr:
			for _, label := range node.Grouping {
				if !has("", label) {
					missing = append(missing, "labelled "+label)
				}
			}
		}
		return nil
	})
	return missing
}

// Querier makes series the storage of the engine.
func (s *series) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		found := &seriesSet{SeriesSet: storage.EmptySeriesSet(), at: -1}
		for _, one := range s.all {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.Metric.Get(m.Name)) }) {
				found.all = append(found.all, promql.NewStorageSeries(*one))
			}
		}
		return found
	}}, nil
}

// seriesSet is the result of a query, without an error.
type seriesSet struct {
	storage.SeriesSet
	all []storage.Series
	at  int
}

func (s *seriesSet) Next() bool         { s.at++; return s.at < len(s.all) }
func (s *seriesSet) At() storage.Series { return s.all[s.at] }
