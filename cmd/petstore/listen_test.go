package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/docs/docstest"
	"petstore/internal/event"
	"petstore/internal/follow"
	"petstore/internal/pgtest"
	"petstore/internal/standardwebhooks"
	"petstore/internal/tools/need"
)

// eventPattern matches the id of an event.
var eventPattern = regexp.MustCompile(`evt_[0-9a-f]{32}`)

// createCategories creates the categories of the numbers from first to last, one after the
// other, so that each has the event of its number.
func createCategories(t *testing.T, base, key string, first, last int) {
	t.Helper()
	for number := first; number <= last; number++ {
		post(t, base+"/categories", key, fmt.Sprintf(`{"name": "%d"}`, number))
	}
}

// TestListen prints events, ends with a signal, and continues.
func TestListen(t *testing.T) {
	t.Parallel()
	s := newStore(t) // whose ids begin at 1001
	environ, base, key := s.environ, s.url(), s.key()
	createCategories(t, base, key, 1, 2)
	latest := begin(t, emptyDir, environ, "listen")
	latest.expect("listening to " + base)
	all := begin(t, emptyDir, []string{"PETSTORE_URL=http://127.0.0.1:1", "PETSTORE_API_KEY=" + key}, "listen", "--json", "--after", "start", "--url", base+"/")
	all.expect(`"sequence":2,"type":"category.created"`)
	orders := begin(t, emptyDir, environ, "listen", "--types", "order.placed, order.cancelled", "--after", "start")
	orders.expect("listening")
	createCategories(t, base, key, 3, 3)

	line := latest.expect("  3  category.created  /categories/1003")
	if at, _, _ := strings.Cut(line, "  "); !isTime(at) {
		t.Errorf("the line %q does not begin with a time", line)
	}
	var event struct {
		Subject string
		Data    struct{ Category struct{ Name string } }
	}
	line = all.expect(`"sequence":3`)
	if err := json.Unmarshal([]byte(line), &event); err != nil || event.Subject != "/categories/1003" || event.Data.Category.Name != "3" {
		t.Errorf("--json prints %s: %v", line, err)
	}
	latest.exits(0, os.Interrupt)
	after := eventPattern.FindString(latest.expect("--after"))
	createCategories(t, base, key, 4, 4)
	other := fromJSON[api.KeyWithSecret](t, must(t, environ, "api", "POST", "/account/api-keys", "name=other", "scope=read")+"\n")
	again := begin(t, emptyDir, clientOf(base, other.Secret), "listen", "--after", after)
	need.Contains(t, "the next line", again.expect("category.created"), "/categories/1004")
	must(t, environ, "api", "DELETE", fmt.Sprint("/account/api-keys/", other.ID))
	again.exits(exitFailure)
	need.Contains(t, "the last line", again.expect("stopped"), "--after evt_")
	orders.exits(0, syscall.SIGTERM)
	if strings.Contains(orders.stdout.String(), "category") {
		t.Errorf("listen to orders printed %s", &orders.stdout)
	}
}

func isTime(text string) bool {
	_, err := time.Parse(time.RFC3339Nano, text)
	return err == nil
}

// TestStreamsLoseNothing kills the server and starts others. Listen prints every event once and in
// order, and logs every request once.
func TestStreamsLoseNothing(t *testing.T) {
	t.Parallel()
	database := []string{"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_RATE_LIMIT=0"}
	must(t, database, "account", "create", "acme")
	var current atomic.Pointer[url.URL]
	proxy := need.Server(t, (&httputil.ReverseProxy{
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(current.Load()) },
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}).ServeHTTP)
	serve := func() *process {
		current.Store(&url.URL{Scheme: "http", Host: "127.0.0.1:1"}) // a server of another test may get the last port
		p := begin(t, emptyDir, database, "serve")
		current.Store(need.Value(url.Parse(p.address()))(t))
		return p
	}
	running := serve()
	s := newSandboxOf(t, database, proxy.URL, "acme", "empty")
	request := func(limit int) string {
		path := fmt.Sprintf("/categories?limit=%d", limit)
		must(t, s.environ, "api", path)
		return path + " "
	}
	lines := []string{request(1)}
	awaitLogs(t, s.environ, 1)
	listen, logs := begin(t, emptyDir, s.environ, "listen"), begin(t, emptyDir, s.environ, "logs", "--follow")
	listen.expect("listening")
	logs.expect("listening")
	const rounds, events = 3, 20
	for round := range rounds {
		createCategories(t, current.Load().String(), s.key(), round*events+1, round*events+events)
		lines = append(lines, request(2+round))
		logs.expect(lines[1+round]) // else it could be lost with the server
		switch round {
		case 0:
			listen.expect("  1  category.created")
			running.end(os.Kill)
			running = serve()
		case 1: // a rolling restart
			old := running
			running = serve()
			createCategories(t, current.Load().String(), s.key(), 1000, 1004)
			old.exits(0, syscall.SIGTERM)
		}
	}
	const total = rounds*events + 5
	listen.expect(fmt.Sprintf("  %d  category.created", total))
	var got, want []string
	for _, line := range listen.output {
		if fields := strings.Split(line, "  "); len(fields) == 4 && fields[2] == "category.created" {
			got = append(got, fields[1])
		}
	}
	for number := 1; number <= total; number++ {
		want = append(want, fmt.Sprint(number))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("numbers of the events (-want +got):\n%s\n%s", diff, strings.Join(listen.output, "\n"))
	}
	logs.exits(0, os.Interrupt)
	for _, line := range lines {
		if printed := logs.stdout.String(); strings.Count(printed, line) != 1 {
			t.Errorf("%s is not there once in\n%s", line, printed)
		}
	}
}

// received is a request to a receiver of webhooks.
type received struct {
	header http.Header
	body   []byte
}

// receive starts a receiver that returns the statuses in turn, and then 204.
func receive(t *testing.T, statuses ...int) (target string, requests chan received) {
	t.Helper()
	requests = make(chan received, 100)
	queue := make(chan int, len(statuses))
	for _, status := range statuses {
		queue <- status
	}
	server := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/hook" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("wrong webhook: %s %s with the headers %v, %v", r.Method, r.URL, r.Header, err)
		}
		requests <- received{r.Header, body}
		w.Header().Set("Location", "/elsewhere")
		select {
		case status := <-queue:
			if status == http.StatusFound {
				w.Header().Set("Location", "https://example.com/%zz") // is not valid
			}
			w.WriteHeader(status)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	return server.URL + "/hook", requests
}

// signature returns the signature that a secret makes, as the specification says.
func (r received) signature(t *testing.T, secret string) string {
	t.Helper()
	key := need.Value(base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_")))(t)
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", r.header.Get("webhook-id"), r.header.Get("webhook-timestamp"), r.body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// TestListenForwards forwards events in order, with a signature that the printed secret
// verifies. It sends an event again after an error, and after a redirect, which it does
// not follow.
func TestListenForwards(t *testing.T) {
	t.Parallel()
	_, base, key := serveAccount(t)
	environ := clientOf(base, key)
	secret := strings.TrimSpace(must(t, environ, "listen", "--print-secret"))
	if _, err := standardwebhooks.ParseSecret(secret); err != nil {
		t.Fatalf("--print-secret prints %q: %v", secret, err)
	}
	target, requests := receive(t, http.StatusOK, http.StatusInternalServerError, http.StatusTemporaryRedirect)
	createCategories(t, base, key, 1, 3)
	p := begin(t, emptyDir, environ, "listen", "--after", "start", "--json", "--forward-to", target)
	p.expect(secret)
	p.expect(`"sequence":3,`)
	var sent []int64
	for range 5 {
		r := <-requests
		if r.header.Get("webhook-signature") != r.signature(t, secret) {
			t.Errorf("wrong signature in the headers %v", r.header)
		}
		var event struct {
			ID       string
			Sequence int64
		}
		if err := json.Unmarshal(r.body, &event); err != nil || event.ID != r.header.Get("webhook-id") {
			t.Errorf("the webhook with the headers %v has the body %s", r.header, r.body)
		}
		sent = append(sent, event.Sequence)
	}
	need.Same(t, []int64{1, 2, 2, 2, 3}, sent, "events")
	const accepted = "category.created: 204"
	for strings.Count(strings.Join(p.output, "\n"), accepted) < 2 { // stdout is read apart from stderr
		p.expect(accepted)
	}
}

// TestForwarderSkips: an event that the receiver rejects five times is skipped.
func TestForwarderSkips(t *testing.T) {
	t.Parallel()
	target, requests := receive(t, 500, 410, 404, 302, 503)
	var printed bytes.Buffer
	f := newForwarder(target, standardwebhooks.NewSecret(), &printed)
	f.pause = time.Millisecond
	need.OK(t, f.forward(t.Context(), follow.Event{ID: "evt_1_00000000", Type: "pet.created", JSON: []byte("{}")}))
	if len(requests) != 5 || !strings.HasSuffix(printed.String(), "evt_1_00000000 pet.created: 503, skipped after 5 attempts\n") {
		t.Errorf("after %d attempts, it printed\n%s", len(requests), &printed)
	}
}

// writer is a function that takes what is written.
type writer func(text []byte) (int, error)

func (w writer) Write(text []byte) (int, error) { return w(text) }

// TestForwarderWaits: an event waits for a receiver that does not run yet, for more
// attempts than responses are allowed.
func TestForwarderWaits(t *testing.T) {
	t.Parallel()
	var accepted atomic.Int32
	server := need.Server(t, func(http.ResponseWriter, *http.Request) {
		if accepted.Add(1) <= 2*forwardAttempts {
			panic(http.ErrAbortHandler)
		}
	})
	const refused = "no response: connection refused"
	var printed bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	log := writer(func(text []byte) (int, error) {
		if bytes.Contains(text, []byte(refused)) {
			cancel()
		}
		return printed.Write(text)
	})
	f := newForwarder(server.URL, standardwebhooks.NewSecret(), log)
	f.pause = time.Microsecond
	event := follow.Event{ID: "evt_1_00000000", Type: "pet.created", JSON: []byte("{}")}
	if err := f.forward(t.Context(), event); err != nil || accepted.Load() != 2*forwardAttempts+1 {
		t.Errorf("after %d attempts: %v\n%s", accepted.Load(), err, &printed)
	}
	server.Close()
	if err := f.forward(ctx, event); !errors.Is(err, context.Canceled) || !strings.Contains(printed.String(), refused) {
		t.Errorf("without a receiver: %v\n%s", err, &printed)
	}
}

// TestListenQuickstart runs the receiver of the quickstart and its commands.
func TestListenQuickstart(t *testing.T) {
	t.Parallel()
	const file = "../../internal/docs/pages/quickstart.md"
	page := readFile(t, file)
	code := docstest.Programs(t, file)["receiver"]
	_, section, _ := strings.Cut(page, "{#webhook}")
	commands := regexp.MustCompile(`(?m)^[^#\n]*(petstore listen --[^)\n]*)`).FindAllStringSubmatch(section, -1)
	if code == "" || len(commands) != 2 {
		t.Fatalf("the quickstart has the commands %q and the receiver %q", commands, code)
	}
	s := newStore(t) // whose ids begin at 1001
	environ, base, key := s.environ, s.url(), s.key()
	arguments := func(i int) []string { return strings.Fields(strings.TrimPrefix(commands[i][1], "petstore ")) }
	secret := strings.TrimSpace(must(t, environ, arguments(0)...))

	port := pgtest.FreePort(t)
	receiver := filepath.Join(t.TempDir(), "receiver.py")
	writeFile(t, receiver, strings.ReplaceAll(code, "3000", port))
	forward := arguments(1)
	forward[len(forward)-1] = strings.ReplaceAll(forward[len(forward)-1], "3000", port)
	p := begin(t, emptyDir, environ, forward...)
	p.expect("listening")
	createCategories(t, base, key, 1, 1)
	p.expect("no response: connection refused") // the receiver does not run yet

	python := exec.CommandContext(t.Context(), "python3", receiver)
	python.Env = append(os.Environ(), "WEBHOOK_SECRET="+secret)
	output := need.Value(python.StdoutPipe())(t)
	need.OK(t, python.Start())
	t.Cleanup(func() { _ = python.Wait() }) // killed by the context
	p.expect("category.created: 204")
	printed := bufio.NewReader(output)
	if line, err := printed.ReadString('\n'); err != nil || !strings.Contains(line, `"subject":"/categories/1001"`) {
		t.Errorf("the receiver printed %q: %v", line, err)
	}

	other := fromJSON[api.KeyWithSecret](t, must(t, environ, "api", "POST", "/account/api-keys", "name=other", "scope=read")+"\n")
	forged := begin(t, emptyDir, clientOf(base, other.Secret), append(forward, "--after", "start")...)
	forged.expect("category.created: 400, next attempt in 1s")
	if line, err := printed.ReadString('\n'); err != nil || line != "not valid\n" {
		t.Errorf("the receiver printed %q: %v", line, err)
	}
}

// TestListenCommandSentences checks the errors of listen.
func TestListenCommandSentences(t *testing.T) {
	t.Parallel()
	_, base, key := serveAccount(t)
	page := need.Server(t, http.NotFound)
	plain := need.Server(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(secure.Close)
	unknown := auth.NewSecret().Reveal()
	known := "`" + strings.Join(event.TypeNames(), "`, `") + "`"
	const start = "; start a server with `petstore dev`, or set PETSTORE_URL or --url to where one listens"
	for _, test := range []struct {
		key, line string
		isUsage   bool
		want      string
	}{
		{"", "listen", false, "PETSTORE_API_KEY must be set to an API key, because petstore dev runs in no folder from here upwards; petstore dev and petstore key create print one"},
		{key + "x", "listen", false, "PETSTORE_API_KEY has no API key, which begins with petstore_; check for missing characters or spaces"},
		{key, "listen now", true, `listen takes no arguments, but got "now"; see petstore listen --help`},
		{key, "listen --after 7", true, `--after must be the id of an event, such as evt_0000000000030000000004125f0c9a1e, or latest or start, but is "7"; see petstore listen --help`},
		{key, "listen --url localhost:8080", true, `--url must be the http or https URL of the API without a user, a query or a fragment, such as https://api.example; see petstore listen --help`},
		{key, "listen --url http://me:hunter2@localhost", true, `--url must be the http or https URL of the API without a user, a query or a fragment, such as https://api.example; see petstore listen --help`},
		{key, "listen --forward-to ftp://me:hunter2@localhost", true, `--forward-to must be an http or https URL, such as http://localhost:3000/hook; see petstore listen --help`},
		{key, "listen --url me:hunter2@api.example", true, `--url must be the http or https URL of the API without a user, a query or a fragment, such as https://api.example; see petstore listen --help`},
		{key, "listen --forward-to localhost:3000", true, `--forward-to must be an http or https URL, such as http://localhost:3000/hook; see petstore listen --help`},
		{key, "listen --types order.placed,", true, `--types must list types of events, such as order.placed, separated by commas; see petstore listen --help`},
		{key, "listen --url http://127.0.0.1:1", false, "no response from http://127.0.0.1:1: connection refused" + start},
		{key, "listen --url http://nobody.invalid", false, `no response from http://nobody.invalid: the host name "nobody.invalid" is unknown` + start},
		{key, "listen --url " + strings.Replace(base, "http:", "https:", 1), false, "no response from " + strings.Replace(base, "http:", "https:", 1) + ": the server there speaks http, not https" + start},
		{key, "listen --url " + secure.URL, false, "no response from " + secure.URL + ": its certificate is not valid (x509: certificate signed by unknown authority)" + start},
		{key, "listen --url " + page.URL, false, "the server returned 404 Not Found"},
		{key, "listen --after start --url http://127.0.0.1:1", false, "no events from http://127.0.0.1:1: connection refused" + start},
		{key, "listen --after start --url " + page.URL, false, "no events from " + page.URL + ": the server returned 404 Not Found"},
		{key, "listen --url " + plain.URL, false, "the response of " + plain.URL + " is not from Petstore: it has no link to the end of the feed"},
		{key, "listen --after start --url " + plain.URL, false, "no events from " + plain.URL + `: the response is not a feed of Petstore: its content type is "text/plain; charset=utf-8"; set PETSTORE_URL or --url to the URL of Petstore`},
		{unknown, "listen --url " + base, false, "the server returned 401 invalid_api_key: The API key is malformed, unknown, revoked or expired. Send a working key."},
		{key, "listen --types order.sold --url " + base, true, "Each value of --types must be one of " + known + "; see petstore listen --help"},
		{key, "listen --after evt_00000000000300000000000700000000 --url " + base, false, "no events from " + base + ": the server returned 410 cursor_expired: The feed of your account does not have the event in `after`. List your resources again, and follow the feed from `after=latest`"},
	} {
		wantSentence(t, []string{"PETSTORE_API_KEY=" + test.key}, strings.Fields(test.line), test.isUsage, test.want)
	}
	_, stderr, err := execute(t, []string{"PETSTORE_API_KEY=" + key}, "listen", "--url", "http://127.0.0.1:1", "--after", "start", "--forward-to", "http://me:hunter2@localhost/?password=hunter2")
	if err == nil || !strings.HasPrefix(stderr, "forwarding to http://localhost/, signed with the secret whsec_") || strings.Contains(stderr, "hunter2") {
		t.Errorf("listen prints %q, %v", stderr, err)
	}
	wantSentence(t, []string{"PETSTORE_URL=ftp://api.example"}, []string{"listen"}, false, `invalid configuration: PETSTORE_URL must be the http or https URL of the API without a user, a query or a fragment, such as https://api.example`)
}
