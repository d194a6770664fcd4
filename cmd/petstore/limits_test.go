package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// TestServeLimitsKeys: responses have the configured limits, and by default the limits of the API
// reference. One case runs the program, and the others have its handler in this process.
func TestServeLimitsKeys(t *testing.T) {
	t.Parallel()
	program := []string{"PETSTORE_ACCOUNT_RATE_LIMIT=60", "PETSTORE_RATE_BURST=5"}
	url := pgtest.New(t).URL
	database := []string{"DATABASE_URL=" + url, "PETSTORE_ADDR=127.0.0.1:0"}
	key := strings.TrimSpace(must(t, database, "key", "create", "--account", "acme"))
	pool := pgtest.Open(t, url, 4)
	for _, test := range []struct {
		environ []string
		policy  string
	}{
		{nil, `"key";q=100;w=10, "account";q=400;w=10`},
		{program, `"key";q=5;w=1, "account";q=1;w=1`},
		{[]string{"PETSTORE_RATE_LIMIT=60"}, `"key";q=10;w=10, "account";q=40;w=10`},
		{[]string{"PETSTORE_RATE_LIMIT=1"}, `"key";q=1;w=60, "account";q=4;w=60`},
		{[]string{"PETSTORE_RATE_LIMIT=60", "PETSTORE_RATE_BURST=5"}, `"key";q=5;w=5, "account";q=20;w=5`},
		{[]string{"PETSTORE_RATE_LIMIT=0"}, ""},
		{[]string{"PETSTORE_ACCOUNT_RATE_LIMIT=0"}, `"key";q=100;w=10`},
		{[]string{"PETSTORE_ACCOUNT_RATE_LIMIT=60"}, `"key";q=100;w=10, "account";q=10;w=10`},
		{[]string{"PETSTORE_RATE_LIMIT=0", "PETSTORE_ACCOUNT_RATE_LIMIT=600"}, `"account";q=100;w=10`},
		{[]string{"PETSTORE_RATE_LIMIT=1000000", "PETSTORE_RATE_BURST=1000000"}, `"key";q=1000000;w=60, "account";q=4000000;w=60`},
	} {
		t.Run(strings.Join(test.environ, " "), func(t *testing.T) {
			t.Parallel()
			var base string
			if environ := slices.Concat(database, test.environ); slices.Equal(test.environ, program) {
				p := begin(t, emptyDir, environ, "serve")
				base = p.address()
				defer p.end(syscall.SIGTERM)
			} else {
				base = serveInProcess(t, pool, environ)
			}
			if got := get(t, base+"/pets", key).header.Get("RateLimit-Policy"); got != test.policy {
				t.Errorf("RateLimit-Policy %q, want %q", got, test.policy)
			}
			statuses := map[int]int{}
			for range 25 {
				statuses[status(t, base+"/pets", "x")]++
			}
			const atOnce = 20 // and one more every three seconds
			if statuses[http.StatusUnauthorized] < atOnce || statuses[http.StatusTooManyRequests] == 0 {
				t.Errorf("25 failed authentications: %v", statuses)
			}
			wantStatus(t, base+"/livez", "x", http.StatusOK)
		})
	}
}

// TestServeLimitsRequests: a request that is too large or too slow gets an error,
// or the server closes the connection. OPTIONS * gets a response.
func TestServeLimitsRequests(t *testing.T) {
	t.Parallel()
	_, base, key := serveAccount(t)
	common := " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + key + "\r\n"

	for what, test := range map[string]struct {
		sent   string
		within time.Duration
		want   []string // parts of the response; nil: no response
	}{
		"a header of 15 KiB": {"GET /pets" + common + "X-Long: " + strings.Repeat("x", 15<<10) + "\r\n\r\n", patience, []string{" 200 OK", "application/json"}},
		"a query of 15 KiB":  {"GET /pets?" + strings.Repeat("a&", 15<<9) + common + "\r\n", patience, []string{" 400 Bad Request", "too_many"}},
		"a header of 17 KiB": {"GET /pets" + common + "X-Long: " + strings.Repeat("x", 17<<10) + "\r\n\r\n", patience, []string{" 431 ", "text/plain"}},
		"a query of 17 KiB":  {"GET /pets?" + strings.Repeat("a", 17<<10) + common + "\r\n", patience, []string{" 431 ", "text/plain"}},
		"OPTIONS *":          {"OPTIONS *" + common + "\r\n", patience, []string{" 204 No Content", "Allow:[DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT]", "X-Request-Id:"}},
		"GET *":              {"GET *" + common + "\r\n", patience, []string{" 404 Not Found", "route_not_found"}},
		"half a header":      {"GET /pets" + common, 10 * time.Second, nil},
		"half a body": {
			"POST /messages" + common + "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{", 15 * time.Second,
			[]string{" 408 Request Timeout", "request_timeout"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			resp, err := roundTrip(t, strings.TrimPrefix(base, "http://"), test.sent, test.within)
			if err != nil {
				t.Fatalf("the connection was not closed: %v", err)
			}
			need.Contains(t, "the response", resp, test.want...)
			if test.want == nil && resp != "" {
				t.Errorf("unexpected response:\n%s", resp)
			}
		})
	}
}

// TestServeLimitsConnections covers the two variables, the streams of so few connections, the
// metrics, and a shutdown at the limit.
func TestServeLimitsConnections(t *testing.T) {
	t.Parallel()
	environ := []string{
		"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_ADMIN_ADDR=127.0.0.1:0",
		"PETSTORE_MAX_CONNECTIONS=2", "PETSTORE_MAX_HEADER_BYTES=8192",
	}
	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme"))
	program := begin(t, emptyDir, environ, "serve")
	base, admin := program.addresses()
	address := strings.TrimPrefix(base, "http://")
	request := func(size int) string {
		text := "GET /livez HTTP/1.1\r\nHost: petstore\r\nX-Long: "
		return text + strings.Repeat("x", size-len(text)-len("\r\n\r\n")) + "\r\n\r\n"
	}
	for _, test := range []struct{ size, status int }{
		{8 << 10, http.StatusOK},
		{9 << 10, http.StatusRequestHeaderFieldsTooLarge},
	} {
		response, err := roundTrip(t, address, request(test.size), patience)
		if err != nil || !strings.Contains(response, fmt.Sprintf(" %d ", test.status)) {
			t.Errorf("a header of %d bytes: %v, %s", test.size, err, response)
		}
	}

	stream := "GET /events HTTP/1.1\r\nHost: petstore\r\nAccept: text/event-stream\r\nAuthorization: Bearer " + key + "\r\n\r\n"
	first := need.Value(new(net.Dialer).DialContext(t.Context(), "tcp", address))(t)
	need.OK(t, first.SetDeadline(time.Now().Add(patience)))
	_ = need.Value(io.WriteString(first, stream))(t)
	need.Contains(t, "the first stream", need.Value(bufio.NewReader(first).ReadString('\n'))(t), " 200 OK")
	need.Contains(t, "the second stream", need.Value(roundTrip(t, address, stream, patience))(t), " 429 ")
	first.Close()

	awaitMetric(t, admin, "petstore_http_connections", 0) // the server closes one after 431 later than its client

	var slow []net.Conn
	for range 5 {
		conn := need.Value(new(net.Dialer).DialContext(t.Context(), "tcp", address))(t)
		t.Cleanup(func() { conn.Close() })
		need.OK(t, conn.SetDeadline(time.Now().Add(patience)))
		_, _ = io.WriteString(conn, "GET /half HTTP/1.1\r\n") // the connection may be closed already
		slow = append(slow, conn)
	}
	for _, conn := range slow[:3] {
		if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection is still open: %d bytes, %v", n, err)
		}
	}
	awaitMetric(t, admin, "petstore_http_connections", 2)
	if response, err := roundTrip(t, address, "GET /livez HTTP/1.1\r\nHost: petstore\r\n\r\n", patience); err != nil || !strings.Contains(response, " 200 OK") {
		t.Errorf("GET /livez beside them: %v, %s", err, response)
	}
	metrics := awaitMetric(t, admin, "petstore_http_connections", 1)
	if !strings.Contains(metrics, "\npetstore_http_evicted_connections_total ") || strings.Contains(metrics, "petstore_http_evicted_connections_total 0\n") {
		t.Error("no connection was evicted")
	}
	program.exits(0, syscall.SIGTERM)
}

// TestServeLimitsHTTP2: over HTTP/2, the longest header works, and 100 requests at once with a
// long one.
func TestServeLimitsHTTP2(t *testing.T) {
	t.Parallel()
	certFile, keyFile := newCertificate(t)
	environ := []string{
		"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0",
		"PETSTORE_TLS_CERT_FILE=" + certFile, "PETSTORE_TLS_KEY_FILE=" + keyFile,
	}
	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme"))
	address := strings.TrimPrefix(begin(t, emptyDir, environ, "serve").address(), "http://")
	client, base := trusting(t, certFile), "https://"+address
	get := func(path string, size int) error {
		long := http.Header{"X-Long": {strings.Repeat("x", size)}}
		return httpRequest{method: http.MethodGet, url: base + path, key: key, header: long}.tryOK(t.Context(), client)
	}
	need.OK(t, get("/livez", 16_000)) // the others use its connection
	if err := get("/livez", 17_000); err == nil {
		t.Error("a header of 17,000 bytes is not too long")
	}
	const requests = 100
	results := make(chan error, requests)
	for range requests {
		go func() { results <- get("/pets", 10_000) }()
	}
	for range requests {
		if err := <-results; err != nil {
			t.Errorf("one of %d requests with a header of 10 KB: %v", requests, err)
		}
	}
}

// roundTrip sends text and reads until the server closes the connection, or a
// complete response. It returns an error if neither happens in time.
func roundTrip(t *testing.T, address, text string, within time.Duration) (string, error) {
	t.Helper()
	var dialer net.Dialer
	connection := need.Value(dialer.DialContext(t.Context(), "tcp", address))(t)
	defer connection.Close()
	need.OK(t, connection.SetDeadline(time.Now().Add(within)))
	go func() { _, _ = io.WriteString(connection, text) }() // the server may stop reading early
	resp, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%s %s\n%v\n%s", resp.Proto, resp.Status, resp.Header, body), err
}
