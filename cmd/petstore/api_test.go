package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/egress"
	"petstore/internal/follow"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
	"petstore/internal/transfer"
)

// TestAPI sends requests of all kinds to a server.
func TestAPI(t *testing.T) {
	t.Parallel()
	client := newStore(t).environ
	file := filepath.Join(t.TempDir(), "category.json")
	writeFile(t, file, `{"name":"from a file"}`)
	for _, test := range []struct {
		args  []string
		stdin string
		want  string
	}{
		{[]string{"POST", "/categories", "name=Dogs", "description=Good dogs"}, "", `{"id":1001,"name":"Dogs","description":"Good dogs"}`},
		{[]string{"post", "/pets", "name=Rex", "categoryId=1001"}, "", `{"id":1001,"name":"Rex","categoryId":1001,"status":"available"}`},
		{[]string{"POST", "/pets", `name:="42"`, "categoryId:=1001", "status=pending"}, "", `{"id":1002,"name":"42","categoryId":1001,"status":"pending"}`},
		{[]string{"PUT", "/store/inventory/1001", "quantity=7"}, "", `{"petId":1001,"quantity":7,"status":"available"}`},
		{[]string{"POST", "/store/orders", "petId=1001", "quantity:=2"}, "", `{"id":1001,"petId":1001,"quantity":2,"complete":false}`},
		{[]string{"PATCH", "/store/orders/1001", "complete=true"}, "", `{"id":1001,"petId":1001,"quantity":2,"complete":true}`},
		{[]string{"/pets?limit=1"}, "", `[{"id":1001,"name":"Rex","categoryId":1001,"status":"available"}]`},
		{[]string{"GET", "/pets", "status=pending", "id=1001", "id=1002"}, "", `[{"id":1002,"name":"42","categoryId":1001,"status":"pending"}]`},
		{[]string{"/pets?limit=5", `name:="4"`}, "", `[{"id":1002,"name":"42","categoryId":1001,"status":"pending"}]`},
		{[]string{"POST", "/categories", "--input", file}, "", `{"id":1002,"name":"from a file"}`},
		{[]string{"/categories?name=from a file"}, "", `[{"id":1002,"name":"from a file"}]`},
		{[]string{"POST", "/categories", "name=Dogs#"}, "", `{"id":1003,"name":"Dogs#"}`},
		{[]string{"/categories?name=Dogs#"}, "", `[{"id":1003,"name":"Dogs#"}]`},
		{[]string{"POST", "/categories", "--input", "-"}, `{"name":"from stdin"}`, `{"id":1004,"name":"from stdin"}`},
		{[]string{"DELETE", "/pets/1002"}, "", ""},
		{[]string{"HEAD", "/pets"}, "", ""},
	} {
		got, stderr, err := executeIn(t, t.TempDir(), client, test.stdin, append([]string{"api"}, test.args...)...)
		if err != nil || got != test.want || stderr != "" {
			t.Errorf("petstore api %q prints %q and %q, %v; want %q", test.args, got, stderr, err, test.want)
		}
	}

	stdout, _, err := execute(t, client, "api", "POST", "/pets", "name=5")
	if err == nil || !strings.HasPrefix(err.Error(), "the server returned 400 validation_failed: `name` must be a string") || !strings.Contains(stdout, `"pointer":"/name"`) {
		t.Errorf("an invalid body: %v, printed %s", err, stdout)
	}
	stdout, _, err = execute(t, client, "api", "-i", "/pets/9")
	if err == nil || !strings.HasPrefix(stdout, "HTTP/1.1 404 Not Found\n") || !strings.Contains(stdout, "\nContent-Type: application/json\n") || !strings.Contains(stdout, "\n\n"+`{"code":"pet_not_found"`) {
		t.Errorf("-i: %v, printed %s", err, stdout)
	}
	stdout = must(t, client, "api", "/pets/1001", "-i", "-H", "If-None-Match: *")
	if !strings.HasPrefix(stdout, "HTTP/1.1 304 Not Modified\n") {
		t.Errorf("with a header: %s", stdout)
	}
	const nowhere = "http://127.0.0.1:1"
	wantSentence(t, clientOf(nowhere, auth.NewSecret().Reveal()), []string{"api", "/pets"}, false,
		"no response from "+nowhere+": connection refused; "+startServer)
}

// TestAPIHeaders: a header of the user replaces the one of the program.
func TestAPIHeaders(t *testing.T) {
	t.Parallel()
	client := clientOfStub(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q %q", r.Header.Values("Authorization"), r.Header.Values("User-Agent"))
	})
	wantOutput(t, client, `["Basic eDp5"] ["mine"]`, "api", "/pets", "-H", "authorization: Basic eDp5", "-H", "User-Agent: mine")
}

// TestAPIPaginates lists pages as one array, also of the feed, which always has a next page.
func TestAPIPaginates(t *testing.T) {
	t.Parallel()
	_, base, key := serveAccount(t)
	client := clientOf(base, key)
	wantOutput(t, client, "[]\n", "api", "/categories", "--paginate")
	const total = 7
	createCategories(t, base, key, 1, total)
	for path, field := range map[string]string{"/categories?limit=3": "id", "/categories?limit=7": "id", "/events?limit=2": "sequence"} {
		var all []map[string]any
		need.OK(t, json.Unmarshal([]byte(must(t, client, "api", "GET", path, "--paginate")), &all))
		var numbers []string
		for _, one := range all {
			numbers = append(numbers, fmt.Sprint(one[field]))
		}
		if !slices.IsSorted(numbers) || len(slices.Compact(numbers)) != total {
			t.Errorf("%s has %v, want %d elements in order", path, numbers, total)
		}
	}
	wantRefusal(t, client, "is not a JSON array", "api", "/account", "--paginate")
	wantRefusal(t, client, "404 route_not_found", "api", "/nothing", "--paginate")
}

// TestAPIPaginatesPastEmptyPages lists a feed whose pages are empty where they have no event of a type,
// and which never ends.
func TestAPIPaginatesPastEmptyPages(t *testing.T) {
	t.Parallel()
	pages := map[string]string{"": "[]", "evt_2": `[{"sequence":3}]`, "evt_3": "[]", "evt_4": "[]", "evt_5": `[{"sequence":6}]`}
	client := clientOfStub(t, func(w http.ResponseWriter, r *http.Request) {
		next := map[string]string{"": "evt_2", "evt_2": "evt_3", "evt_3": "evt_4", "evt_4": "evt_5", "latest": "evt_4"}[r.FormValue("after")]
		w.Header().Set("Link", fmt.Sprintf(`</events?after=%s&type=order.placed>; rel="next"`, next))
		fmt.Fprint(w, pages[r.FormValue("after")])
	})
	wantOutput(t, client, "[\n  {\"sequence\":3}\n]\n", "api", "/events", "type=order.placed", "--paginate")
}

// TestAPIPaginatesWithAnotherKey lists the whole feed of the account in a header of the user, not of the
// one in the environment.
func TestAPIPaginatesWithAnotherKey(t *testing.T) {
	t.Parallel()
	both := []*store{newStore(t), newStore(t)}
	const total = 5
	for _, s := range both {
		for i := range total {
			must(t, s.environ, "api", "POST", "/categories", fmt.Sprintf("name=category %d", i))
		}
	}
	for i, s := range both {
		got := must(t, s.environ, "api", "/events?limit=2", "--paginate", "-H", "Authorization: Bearer "+both[1-i].key())
		account := fromJSON[transfer.Account](t, must(t, both[1-i].environ, "api", "/account")+"\n")
		if strings.Count(got, fmt.Sprintf(`"accountId":%q`, account.ID)) != total {
			t.Errorf("with the key of %s, it prints %s", account.ID, got)
		}
	}
}

// TestAPIRetries uses faults of a sandbox: a request is sent again after 429, a 5xx and a lost
// connection, and a POST takes effect once.
func TestAPIRetries(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, "shop")
	client := s.environ
	for _, test := range []struct {
		rule, said string
		args       []string
	}{
		{`{"operation":"createCategory","effect":"status","status":503,"first":2}`, "the server returned 503 injected_fault: ", []string{"POST", "/categories", "name=first"}},
		{`{"operation":"updatePet","effect":"status","status":500,"first":1}`, "the server returned 500 injected_fault: ", []string{"PATCH", "/pets/1", "name=failed"}},
		{`{"operation":"createCategory","effect":"status","status":429,"first":1}`, "the server returned 429 injected_fault: ", []string{"POST", "/categories", "name=second"}},
		{`{"operation":"createCategory","effect":"close","when":"after","first":1}`, "the server closed the connection; next attempt in ", []string{"POST", "/categories", "name=closed"}},
		{`{"operation":"updatePet","effect":"close","when":"after","first":1}`, "the server closed the connection; next attempt in ", []string{"PATCH", "/pets/1", "name=closed"}},
	} {
		s.fault(test.rule)
		_, stderr, err := execute(t, client, append([]string{"api"}, test.args...)...)
		if err != nil || !strings.Contains(stderr, test.said) {
			t.Errorf("%s: %v, printed %q", test.rule, err, stderr)
		}
	}
	if got := must(t, client, "api", "/events", "type=category.created", "--paginate"); strings.Count(got, "category.created") != 3 {
		t.Errorf("the retries have created\n%s\nwant 3 categories", got)
	}

	s.fault(`{"operation":"createCategory","effect":"status","status":503}`)
	_, stderr, err := execute(t, client, "api", "POST", "/categories", "name=never", "--retries", "1")
	if err == nil || strings.Count(stderr, "next attempt in") != 1 || !strings.Contains(err.Error(), "503") {
		t.Errorf("with one retry: %v, printed %q", err, stderr)
	}
	// Nobody knows whether a POST without a key has taken effect.
	s.fault(`{"operation":"createAPIKey","effect":"close","when":"after"}`)
	if _, stderr, err := execute(t, client, "api", "POST", "/account/api-keys", "name=x", "scope=read"); err == nil || stderr != "" {
		t.Errorf("a POST without an Idempotency-Key: %v, printed %q", err, stderr)
	}
}

// TestSilentBody ends when a response stops before its end. A stream that sends something in time goes on.
func TestSilentBody(t *testing.T) {
	t.Parallel()
	const silence = 2 * time.Second
	var sent atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		flush := func(text string) {
			fmt.Fprint(w, text)
			_ = http.NewResponseController(w).Flush()
		}
		if r.URL.Path == "/events" {
			w.Header().Set("Content-Type", "text/event-stream")
			for began := time.Now(); time.Since(began) < silence*3/2; <-time.After(silence / 40) {
				flush(":\n")
				sent.Add(1)
			}
		}
		flush("[")
		<-r.Context().Done()
	})
	for _, path := range []string{"/pets", "/events"} {
		var out, errs strings.Builder
		p := &program{stdout: &out, stderr: &errs}
		sender := p.newClient(target{url: server.URL, key: auth.NewSecret().Reveal()})
		sender.silence, sender.retries = silence, 0
		err := p.printReply(ctx, sender, call{method: http.MethodGet, path: path}, false)
		want := ""
		if path == "/events" {
			want = strings.Repeat(":\n", int(sent.Load())) + "["
		}
		if err == nil || !strings.Contains(err.Error(), "the response stopped before its end") || out.String() != want {
			t.Errorf("%s: %v, printed %q, want %q", path, err, &out, want)
		}
	}
}

// TestSilentError: the status of a refused stream counts, although the body of the error does not end.
func TestSilentError(t *testing.T) {
	t.Parallel()
	server := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_ = http.NewResponseController(w).Flush() // the client may be gone
		<-r.Context().Done()
	})
	sender := new(program).newClient(target{url: server.URL, key: auth.NewSecret().Reveal()})
	sender.silence = 100 * time.Millisecond
	response, err := sender.open(t.Context(), "/events?")
	if err == nil {
		response.Body.Close()
	}
	if failed, ok := errors.AsType[*follow.StatusError](err); !ok || failed.Status != http.StatusUnauthorized {
		t.Errorf("the stream fails with %v", err)
	}
}

// TestAddressOfDev: a client of the running dev connects to its address, whatever else listens on
// the addresses of the host of its URL.
func TestAddressOfDev(t *testing.T) {
	t.Parallel()
	server := need.Server(t, http.NotFound)
	client := target{url: "http://localhost:1", address: server.Listener.Addr().String()}.client(time.Minute)
	need.Value(httpRequest{method: http.MethodGet, url: "http://localhost:1/"}.try(t.Context(), client))(t)
	for address, want := range map[string]string{"127.0.0.1": "http://localhost:1", "::1": "http://localhost:1", "0.0.0.0": "http://localhost:1", "127.0.0.2": "http://127.0.0.2:1"} {
		if got := devURL("http", &net.TCPAddr{IP: net.ParseIP(address), Port: 1}); got != want {
			t.Errorf("the URL of %s is %s, want %s", address, got, want)
		}
	}
}

// TestServerRestarts: a client waits for a server that is away between two requests.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		if r.URL.Query().Get("page") == "" {
			w.Header().Set("Link", `</pets?page=2>; rel="next"`)
		}
		fmt.Fprintf(w, `[{"id":1%s}]`, r.URL.Query().Get("page"))
	})
	var out, errs strings.Builder
	p := &program{stdout: &out, stderr: &errs}
	sender := p.newClient(target{url: server.URL, key: auth.NewSecret().Reveal()})
	transport := sender.http.Transport.(*http.Transport) //nolint:forcetypeassert // see newHTTPClient
	dial, dials := transport.DialContext, 0
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials++; dials == 2 {
			address = "127.0.0.1:1" // nobody listens there
		}
		return dial(ctx, network, address)
	}
	err := p.export(t.Context(), sender, exportOptions{resources: []*transfer.Resource{transfer.Find("pets")}})
	if err != nil || out.String() != "{\"id\":1}\n{\"id\":12}\n" || !strings.HasPrefix(errs.String(), "connection refused; next attempt in ") {
		t.Errorf("%v, printed %q and %q", err, &out, &errs)
	}
}

// TestLimitHoldsAll: after a 429, a client sends nothing until the time in Retry-After is over.
func TestLimitHoldsAll(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	var until atomic.Pointer[time.Time]
	server := need.Server(t, func(w http.ResponseWriter, _ *http.Request) {
		if sent.Add(1) == 1 {
			over := time.Now().Add(time.Second)
			until.Store(&over)
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		} else if left := time.Until(*until.Load()); left > 0 {
			t.Errorf("the client sent a request %s early", left)
		}
	})
	sender := (&program{}).newClient(target{url: server.URL, key: auth.NewSecret().Reveal()})
	isRefused, first := make(chan struct{}), make(chan error, 1)
	sender.log = writer(func(text []byte) (int, error) {
		close(isRefused)
		return len(text), nil
	})
	go func() { first <- sender.do(t.Context(), http.MethodGet, "/pets", nil, nil) }()
	<-isRefused
	if err := errors.Join(sender.do(t.Context(), http.MethodGet, "/categories", nil, nil), <-first); err != nil || sent.Load() != 3 {
		t.Errorf("after %d requests: %v", sent.Load(), err)
	}
}

// TestPatience: a client waits long for a server that is away, but not for one with a bug.
func TestPatience(t *testing.T) {
	t.Parallel()
	for status, most := range map[int]int64{http.StatusInternalServerError: 1, http.StatusServiceUnavailable: 2, http.StatusRequestTimeout: 2} {
		var sent atomic.Int64
		server := need.Server(t, func(w http.ResponseWriter, _ *http.Request) {
			if sent.Add(1) == 1 {
				w.WriteHeader(status)
			}
		})
		sender := (&program{}).newClient(target{url: server.URL, key: auth.NewSecret().Reveal()})
		sender.log, sender.retries, sender.patience = io.Discard, 0, time.Hour
		if err := sender.do(t.Context(), http.MethodGet, "/pets", nil, nil); (err != nil) != (most == 1) || sent.Load() != most {
			t.Errorf("%d: %d requests, %v", status, sent.Load(), err)
		}
	}
}

// TestBrokenStream: api says who ended a stream in the middle.
func TestBrokenStream(t *testing.T) {
	t.Parallel()
	client := clientOfStub(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ":\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	if got, _, err := execute(t, client, "api", "/events"); err == nil || err.Error() != "the server closed the connection" || got != ":\n" {
		t.Errorf("%v, printed %q", err, got)
	}
}

// TestProxyRefuses: api prints the status of a proxy that does not connect to the server.
func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	proxy := need.Server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusProxyAuthRequired)
	})
	environ := []string{"HTTPS_PROXY=" + proxy.URL, "PETSTORE_URL=https://petstore.example", "PETSTORE_API_KEY=" + auth.NewSecret().Reveal()}
	p := begin(t, emptyDir, environ, "api", "/pets", "--retries", "0")
	if line := p.expect("petstore: "); line != "petstore: no response from https://petstore.example: Proxy Authentication Required; "+startServer {
		t.Errorf("it printed %q", line)
	}
}

// TestRedirect: no command follows a redirect, and each says where it leads.
func TestRedirect(t *testing.T) {
	t.Parallel()
	server := need.Server(t, http.RedirectHandler("https://api.example/pets", http.StatusFound).ServeHTTP)
	const want = "the server returned 302 Found and redirects to https://api.example/pets"
	for _, line := range []string{
		"api POST /pets name=Rex", "api /pets --paginate", "export pets", "export -f", "import pets.csv", "logs", "report", "trigger pet.created", "listen", "listen --after start",
	} {
		_, _, err := execute(t, clientOf(server.URL, auth.NewSecret().Reveal()), strings.Fields(line)...)
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("petstore %s: %v", line, err)
		}
	}
}

// TestAnotherServer: commands do not take any JSON for a response of Petstore.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	for text, lines := range map[string][]string{
		"{}":   {"report", "trigger pet.created", "import pets.csv", "logs --har"},
		"null": {"report --json", "trigger pet.created", "import pets.csv", "logs", "logs --har", "export pets", "api /pets --paginate"},
	} {
		server := need.Server(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
		for _, line := range lines {
			got, _, err := execute(t, clientOf(server.URL, auth.NewSecret().Reveal()), strings.Fields(line)...)
			if err == nil || !regexp.MustCompile(`^the response of \S+ is not (from Petstore: it has no |a JSON array)`).MatchString(err.Error()) || got != "" {
				t.Errorf("petstore %s: %v, printed %q", line, err, got)
			}
		}
	}
}

// TestKeyedPosts compares keyedPosts with the spec.
func TestKeyedPosts(t *testing.T) {
	t.Parallel()
	made := need.Value(api.SpecFor(""))(t)
	var spec struct {
		Paths map[string]map[string]json.RawMessage
	}
	need.OK(t, json.Unmarshal(made.JSON, &spec))
	var want []string
	for path, item := range spec.Paths {
		if strings.Contains(string(item["post"]), "#/components/parameters/IdempotencyKey") {
			want = append(want, path)
		}
	}
	slices.Sort(want)
	got := slices.Sorted(slices.Values(keyedPosts))
	need.Same(t, want, got, "paths whose POST has an Idempotency-Key (want: spec, got: keyedPosts)")
}

// TestLookupFails: a lookup that fails does not say that the name is unknown.
func TestLookupFails(t *testing.T) {
	t.Parallel()
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := net.DefaultResolver.LookupHost(ended, "host.invalid")
	need.Same(t, `the host name "host.invalid" cannot be looked up`, whyNoResponse(err, time.Minute), "%v", err)
	_, err = listen(ended, "host.invalid:80", "PETSTORE_ADDR")
	need.Same(t, `cannot listen on host.invalid:80: the host name "host.invalid" cannot be looked up; set PETSTORE_ADDR to another address`, err.Error(), "listen")
}

// TestStreamIsReset: the client says the same as over HTTP/1.1 if the server breaks off a response.
func TestStreamIsReset(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	client := newHTTPClient(time.Minute, server.Client().Transport.(*http.Transport).TLSClientConfig.Clone())
	_, err := httpRequest{method: http.MethodGet, url: server.URL}.try(t.Context(), client)
	if why := whyNoResponse(err, time.Minute); why != "the server closed the connection" {
		t.Errorf("%v: %s", err, why)
	}
}

// TestDeadConnection: a client over HTTP/2 gives up a connection whose other side vanishes without a
// word, and opens another one.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	var opened, dead atomic.Int64 // connections, in the order in which they are opened
	network := pgtest.ServeTCP(t, func(client net.Conn) {
		to, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		if err != nil {
			return
		}
		defer to.Close()
		number := opened.Add(1)
		forward := func(to io.Writer, from io.Reader) {
			for text := make([]byte, 64<<10); ; {
				n, err := from.Read(text)
				if err != nil {
					return
				}
				if number > dead.Load() {
					_, _ = to.Write(text[:n])
				}
			}
		}
		go forward(to, client)
		forward(client, to)
	})
	client := newHTTPClient(20*time.Second, server.Client().Transport.(*http.Transport).TLSClientConfig.Clone())
	pings := client.Transport.(*http.Transport).HTTP2
	pings.SendPingTimeout, pings.PingTimeout = 50*time.Millisecond, 2*time.Second
	get := func() (string, error) {
		got, err := httpRequest{method: http.MethodGet, url: "https://" + network}.try(t.Context(), client)
		return got.body, err
	}
	if proto, err := get(); proto != "HTTP/2.0" {
		t.Fatalf("the first request: %q, %v", proto, err)
	}
	dead.Store(opened.Load())
	if _, err := get(); !egress.IsClosed(err) {
		t.Errorf("on the dead connection: %v", err)
	}
	if proto, err := get(); proto != "HTTP/2.0" || opened.Load() != 2 {
		t.Errorf("after %d connections: %q, %v", opened.Load(), proto, err)
	}
}

// TestAPIKeepsTheIdempotencyKey checks the headers of each attempt.
func TestAPIKeepsTheIdempotencyKey(t *testing.T) {
	t.Parallel()
	var keys []string
	client := clientOfStub(t, func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		switch {
		case r.URL.Path == "/away":
			http.Redirect(w, r, "/pets", http.StatusFound)
		case len(keys) == 1:
			panic(http.ErrAbortHandler)
		case len(keys) == 2:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, "{}")
		}
	})
	must(t, client, "api", "POST", "/pets?x=1")
	must(t, client, "api", "POST", "/pets", "-H", "idempotency-key: mine")
	must(t, client, "api", "POST", "/webhooks")
	if _, _, err := execute(t, client, "api", "/away"); err == nil {
		t.Error("api succeeds with a redirect")
	}
	if len(keys) != 6 || !regexp.MustCompile(`^[0-9a-f-]{36}$`).MatchString(keys[0]) {
		t.Fatalf("the server got the keys %q", keys)
	}
	need.Same(t, []string{keys[0], keys[0], keys[0], "mine", "", ""}, keys, "keys of the attempts")
}
