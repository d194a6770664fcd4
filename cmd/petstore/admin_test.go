package main

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// addresses returns the URLs of the API and of the admin address.
func (p *process) addresses() (base, admin string) {
	p.t.Helper()
	found := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindAllString(p.listening(), 2)
	if len(found) != 2 {
		p.t.Fatalf("the program does not print its addresses:\n%s", strings.Join(p.output, "\n"))
	}
	return "http://" + found[0], "http://" + found[1]
}

// read sends a GET that must succeed and returns the body, which must not contain a
// secret.
func read(t *testing.T, url string) string {
	t.Helper()
	got := get(t, url, "")
	if got.status != http.StatusOK {
		t.Fatalf("GET %s: %d", url, got.status)
	}
	watch(t, "GET "+url, got.body)
	return got.body
}

// TestAdmin checks the metrics and profiles, and that neither the API nor the admin
// address serves the other's paths.
func TestAdmin(t *testing.T) {
	t.Parallel()
	environ := []string{
		replicasVariable, // polls would use a connection now and then
		"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_ADDR=127.0.0.1:0",
		"PETSTORE_RATE_LIMIT=1", "PETSTORE_RATE_BURST=5", "PETSTORE_AUTH_FAILURE_LIMIT=1",
	}
	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme", "--scope", "write"))
	p := begin(t, emptyDir, environ, "serve")
	base, admin := p.addresses()
	for range 2 {
		status(t, base+"/pets", key)
	}
	status(t, base+"/pets/77?x=hidden-query", key)
	status(t, base+"/hidden/"+key, key)
	for _, probe := range []string{"/livez", "/readyz"} {
		status(t, base+probe, "")
	}
	retry := http.Header{"Idempotency-Key": {"hidden-retry"}}
	for _, r := range []httpRequest{
		{method: "BREW", url: base + "/pets"},
		{method: http.MethodPut, url: base + "/nowhere"},
		{method: http.MethodDelete, url: base + "/pets"},
		{method: http.MethodPost, url: base + "/messages", body: `{"message":"hidden message"}`, header: retry},
		{method: http.MethodPost, url: base + "/messages", body: `{"message":"hidden message"}`, header: retry},
	} {
		r.key = key
		r.send(t)
	}
	status(t, base+"/pets", key) // the sixth request that counts against the limit of the key
	status(t, base+"/pets", "hidden-key")
	status(t, base+"/pets", "hidden-key")

	metrics := awaitMetric(t, admin, "petstore_db_pool_acquired_connections", 0) // a background task may have one at this moment
	for _, line := range []string{
		`petstore_http_requests_total{method="GET",route="/pets",status="200"} 2`,
		`petstore_http_requests_total{method="GET",route="/pets/{petId}",status="400"} 1`,
		`petstore_http_requests_total{method="GET",route="unmatched",status="404"} 1`,
		`petstore_http_requests_total{method="_OTHER",route="unmatched",status="405"} 1`,
		`petstore_http_requests_total{method="PUT",route="unmatched",status="404"} 1`,
		`petstore_http_requests_total{method="DELETE",route="/pets",status="405"} 1`,
		`petstore_http_requests_total{method="GET",route="/pets",status="401"} 1`,
		`petstore_http_requests_total{method="GET",route="/pets",status="429"} 2`,
		`petstore_http_request_duration_seconds_count{method="GET",route="/pets"} 5`,
		`petstore_http_request_duration_seconds_bucket{method="GET",route="/pets",le="10"} 5`,
		`petstore_http_requests_in_flight 0`,
		`petstore_db_canceled_writes_total 0`,
		`petstore_http_rate_limited_total{limit="key"} 1`,
		`petstore_http_rate_limited_total{limit="account"} 0`,
		`petstore_http_rate_limited_total{limit="concurrency"} 0`,
		`petstore_http_rate_limited_total{limit="address"} 1`,
		`petstore_idempotent_replays_total 1`,
		`petstore_ready 1`,
	} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("the metrics have no line %s", line)
		}
	}
	for _, name := range []string{
		"petstore_db_pool_max_connections ", "petstore_db_pool_acquires_total ", `petstore_build_info{go_version="go`,
		`petstore_key_cache_lookups_total{result="hit"} `, `petstore_key_cache_lookups_total{result="miss"} `,
		"go_goroutines ", "process_resident_memory_bytes ",
	} {
		if !strings.Contains(metrics, "\n"+name) {
			t.Errorf("no metric %s", name)
		}
	}
	page := readFile(t, "../../docs/observability.md")
	for _, found := range regexp.MustCompile(`(?m)^# TYPE (petstore_\w+) `).FindAllStringSubmatch(metrics, -1) {
		if name := strings.TrimPrefix(found[1], "petstore_db_pool_"); !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/observability.md has no row for the metric %s", found[1])
		}
	}
	for _, absent := range []string{key, key[len("petstore_"):], "hidden", "Bearer", "BREW", "/livez", "/readyz"} {
		if strings.Contains(metrics, absent) {
			t.Errorf("the metrics contain %q", absent)
		}
	}
	need.Contains(t, "GET /debug/pprof/", read(t, admin+"/debug/pprof/"), "goroutine")
	if profile := read(t, admin+"/debug/pprof/profile?seconds=1"); len(profile) == 0 {
		t.Error("GET /debug/pprof/profile: empty")
	}
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/cmdline"} {
		wantStatus(t, base+path, key, http.StatusNotFound)
	}
	wantStatus(t, admin+"/pets", key, http.StatusNotFound)
	p.exits(0, syscall.SIGTERM)
}

// TestAdminAddress: dev starts without its admin address. TestListenSentences has the error of serve.
func TestAdminAddress(t *testing.T) {
	t.Parallel()
	taken := pgtest.ServeTCP(t, func(net.Conn) {})
	environ := []string{"DATABASE_URL=" + pgtest.New(t).OwnerURL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_ADDR=" + taken}
	p := begin(t, pgtest.Dir(t), environ, "dev")
	p.expect("metrics and profiles are not available")
	need.Contains(t, "the line of dev", p.expect("listening"), `"admin_address":"off"`)
	p.exits(0, os.Interrupt)
}

// TestAdminHosts: a web page whose host name resolves to the admin address (DNS
// rebinding) can read neither metrics nor profiles.
func TestAdminHosts(t *testing.T) {
	t.Parallel()
	environ := []string{"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_HOSTS=api, metrics.example"}
	p := begin(t, emptyDir, environ, "serve")
	_, admin := p.addresses()
	port := need.Value(url.Parse(admin))(t).Port()
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:" + port: 200, "[::1]:" + port: 200, "10.1.2.3:9090": 200, "[fe80::1%eth0]:9090": 200,
		"localhost": 200, "LocalHost:" + port: 200, "localhost.:80": 200, "api:9090": 200, "metrics.example": 200, "METRICS.example.": 200,
		"evil.example": 421, "evil.example:" + port: 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421, "xapi": 421, "api.evil.example": 421,
		"metrics.example.evil": 421, "127.1": 421, "2130706433": 421,
	} {
		for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/cmdline"} {
			got := httpRequest{method: http.MethodGet, url: admin + path, header: http.Header{"Host": {host}}}.send(t)
			need.Same(t, want, got.status, "GET %s for Host %q", path, host)
			if want == http.StatusMisdirectedRequest && !strings.Contains(got.body, "PETSTORE_ADMIN_HOSTS") {
				t.Errorf("the error message is %q", got.body)
			}
		}
	}
	// HTTP/1.0 has no Host, and no browser uses it.
	conn := need.Value(new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(admin, "http://")))(t)
	defer conn.Close()
	need.Value(io.WriteString(conn, "GET /metrics HTTP/1.0\r\n\r\n"))(t)
	if reply, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(reply), "HTTP/1.0 421") {
		t.Errorf("without a Host: %.80q, %v", reply, err)
	}
}

// TestDeployedScrapersAreKnown: the compose file allows the host name under which
// its Prometheus calls the admin address.
func TestDeployedScrapersAreKnown(t *testing.T) {
	t.Parallel()
	scraper := readFile(t, "../../deploy/observability/prometheus.yml")
	compose := readFile(t, "../../docker-compose.yml")
	target := regexp.MustCompile(`targets: \[([a-z]+):9090\]`).FindStringSubmatch(scraper)
	if len(target) != 2 || !strings.Contains(compose, "\n      PETSTORE_ADMIN_HOSTS: "+target[1]+"\n") {
		t.Errorf("prometheus.yml scrapes %q, which the compose file does not list in PETSTORE_ADMIN_HOSTS", target)
	}
}
