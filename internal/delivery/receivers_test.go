package delivery_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/docs/docstest"
	"petstore/internal/pgtest"
	"petstore/internal/standardwebhooks"
	"petstore/internal/tools/need"
)

// page is the page "Receive webhooks", whose programs these tests run.
const page = "../docs/pages/webhooks.md"

// program is a receiver of the page.
type program struct {
	name    string
	files   []string // of the page
	replace [2]string
	modules string   // the folder node_modules; empty: none
	build   []string // a command; nil: nothing to build
	run     []string
}

// TestReceivers runs the receivers of the page that need no library: they import the files
// of the part "Verify by hand". TestReferenceLibraries runs those with libraries.
func TestReceivers(t *testing.T) {
	t.Parallel()
	all := newFeed(t)
	all.work()
	for _, p := range []program{
		{
			name: "JavaScript", files: []string{"receiver.mjs", "webhook.mjs"},
			replace: [2]string{`from "standardwebhooks"`, `from "./webhook.mjs"`},
			run:     []string{"node", "receiver.mjs"},
		},
		{
			name: "Python", files: []string{"receiver.py", "webhook.py"},
			replace: [2]string{"from standardwebhooks.webhooks", "from webhook"},
			run:     []string{"python3", "receiver.py"},
		},
		{
			name: "Go", files: []string{"receiver.go"},
			build: []string{"go", "build", "-ldflags=-s -w", "-o", "receiver", "receiver.go"},
			run:   []string{"./receiver"},
		},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.test(t, all.of(t, p.name))
		})
	}
}

// TestExampleRequest: the request of the page has the signature of its secret.
func TestExampleRequest(t *testing.T) {
	t.Parallel()
	text := need.Value(os.ReadFile(page))(t)
	_, request, _ := strings.Cut(docstest.Programs(t, page)["request"], "\n")
	shown, body, _ := strings.Cut(strings.TrimSuffix(request, "\n"), "\n\n")
	secret := regexp.MustCompile("`(whsec_[^`]*)`").FindSubmatch(text)
	if body == "" || secret == nil {
		t.Fatal("the page has no request or no secret")
	}
	want := http.Header{}
	for line := range strings.Lines(shown) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		want.Set(name, value)
	}
	parsed := need.Value(standardwebhooks.ParseSecret(string(secret[1])))(t)
	seconds := need.Value(strconv.ParseInt(want.Get("webhook-timestamp"), 10, 64))(t)
	got := want.Clone()
	standardwebhooks.Sign(got, want.Get("webhook-id"), time.Unix(seconds, 0), []byte(body), parsed)
	need.Same(t, want, got, "headers of the request (want: page, got: signed)")
}

// write writes the files of a program into a new folder, for a port.
func (p program) write(t *testing.T, port string) (dir string) {
	t.Helper()
	dir, code := t.TempDir(), docstest.Programs(t, page)
	if p.modules != "" {
		need.OK(t, os.Symlink(p.modules, filepath.Join(dir, "node_modules")))
	}
	for _, name := range p.files {
		source, found := code[name]
		if strings.HasPrefix(name, "receiver") {
			found = found && strings.Contains(source, "3000") && strings.Contains(source, p.replace[0])
			source = strings.Replace(source, "3000", port, 1)
			source = strings.Replace(source, p.replace[0], p.replace[1], 1)
		}
		if !found {
			t.Fatalf("the page has no file %s, or it lacks port 3000 or %q", name, p.replace[0])
		}
		need.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(source), 0o600))
	}
	return dir
}

// start runs the program until the end of the test, and returns the lines that it prints.
func (p program) start(t *testing.T, dir, secret string) <-chan string {
	t.Helper()
	if p.build != nil {
		build := exec.CommandContext(t.Context(), p.build[0], p.build[1:]...)
		build.Dir = dir
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", p.build, err, output)
		}
	}
	name := p.run[0]
	if strings.HasPrefix(name, "./") {
		name = filepath.Join(dir, name)
	}
	command := exec.CommandContext(t.Context(), name, p.run[1:]...)
	command.Dir, command.Env = dir, append(os.Environ(), "WEBHOOK_SECRET="+secret)
	command.Stderr = testWriter{t}
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatalf("%v: %v", p.run, err)
	}
	const someLines = 100
	lines := make(chan string, someLines)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			lines <- scanner.Text()
		}
		_ = command.Wait() // killed at the end of the test
	}()
	t.Cleanup(func() { <-ended })
	return lines
}

// test sends requests to the program: first the worker of a feed does, then the test itself, with some
// that the program must reject. It must handle each accepted event once.
func (p program) test(t *testing.T, f *feed) {
	t.Helper()
	secret := need.Value(standardwebhooks.SecretFrom(key))(t)
	port := pgtest.FreePort(t)
	lines := p.start(t, p.write(t, port), secret.Reveal())
	url := "http://localhost:" + port + "/webhooks"
	if !eventually(t, func() bool { return post(t, url, nil, "") != 0 }) {
		t.Fatal("the program does not listen")
	}

	// Those of a worker, during the grace of a rotation.
	id := f.webhook(url)
	next := []byte("another key of thirty-two bytes!")
	need.Value(f.queries.WebhookRotate(t.Context(), db.WebhookRotateParams{AccountID: f.account, ID: id, Secret: stored(next), GraceSeconds: 3600}))(t)
	f.emit(pets(1, 3)...)
	message := "/messages/" + f.message()
	await(f, 5, "SELECT count(*) FROM webhook_deliveries WHERE account_id = $1 AND status = 'delivered'", f.account) // with message.delivered
	has(f, 5, "SELECT sum(jsonb_array_length(attempts)) FROM webhook_deliveries WHERE account_id = $1", f.account)
	want := []string{"pet.created /pets/1", "pet.created /pets/2", "pet.created /pets/3", "message.queued " + message, "message.delivered " + message}

	p.refuseSizes(t, port, secret)
	for i, r := range requests(secret) {
		id := fmt.Sprintf("evt_%d_00000000", 100+i)
		body := fmt.Sprintf(`{"id":%q,"type":"pet.deleted","subject":"/pets/%d"}`, id, i)
		header := http.Header{}
		standardwebhooks.Sign(header, id, time.Now().Add(-r.age), []byte(body), r.secrets...)
		if r.change != nil {
			r.change(header, &body)
		}
		for range 2 {
			if status := post(t, url, header, body); status != r.status {
				t.Errorf("%s: status %d, want %d", r.name, status, r.status)
			}
		}
		if r.status == http.StatusNoContent {
			want = append(want, fmt.Sprintf("pet.deleted /pets/%d", i))
		}
	}
	var printed []string
	for len(printed) < len(want) {
		select {
		case line := <-lines:
			_, line, _ = strings.Cut(line, " ")
			printed = append(printed, line)
		case <-time.After(time.Minute):
			t.Fatalf("the program printed %q, want %q", printed, want)
		}
	}
	slices.Sort(printed)
	slices.Sort(want)
	need.Same(t, want, printed, "handled events")
}

// refuseSizes sends signed events that are too large or have a negative size. The program must not read
// them into its memory. It may close the connection before it has read all.
func (p program) refuseSizes(t *testing.T, port string, secret standardwebhooks.Secret) {
	t.Helper()
	const id = "evt_99_00000000"
	body := fmt.Sprintf(`{"id":%q,"type":"pet.deleted","subject":"/pets/1"}%s`, id, strings.Repeat(" ", 1<<20))
	header := http.Header{}
	standardwebhooks.Sign(header, id, time.Now(), []byte(body), secret)
	for _, size := range []int{len(body), -1} {
		connection := need.Value(new(net.Dialer).DialContext(t.Context(), "tcp", net.JoinHostPort("localhost", port)))(t)
		var request bytes.Buffer
		fmt.Fprintf(&request, "POST /webhooks HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n", size)
		need.OK(t, header.Write(&request))
		fmt.Fprintf(&request, "\r\n%s", body)
		_, _ = connection.Write(request.Bytes())
		_ = connection.(*net.TCPConn).CloseWrite()
		response, _ := io.ReadAll(connection)
		connection.Close()
		if strings.Contains(string(response), " 204 ") {
			t.Errorf("size %d: the program accepts the event", size)
		}
	}
}

// request is a request that a test sends twice.
type request struct {
	name    string
	secrets []standardwebhooks.Secret
	age     time.Duration
	change  func(http.Header, *string)
	status  int
}

// requests returns requests for a receiver with a secret. The last one is right, so that a
// test that has seen its event has seen all.
func requests(secret standardwebhooks.Secret) []request {
	const accepted, rejected = http.StatusNoContent, http.StatusBadRequest
	mine, other := []standardwebhooks.Secret{secret}, standardwebhooks.NewSecret()
	signature := func(change func(string) string) func(http.Header, *string) {
		return func(h http.Header, _ *string) {
			h.Set("webhook-signature", change(h.Get("webhook-signature")))
		}
	}
	return []request{
		{"signed", mine, 0, nil, accepted},
		{"signed with two secrets, the second one is mine", []standardwebhooks.Secret{other, secret}, 0, nil, accepted},
		{"forged", []standardwebhooks.Secret{other}, 0, nil, rejected},
		{"forged with two secrets", []standardwebhooks.Secret{other, standardwebhooks.NewSecret()}, 0, nil, rejected},
		{"4 minutes old", mine, 4 * time.Minute, nil, accepted},
		{"6 minutes old", mine, 6 * time.Minute, nil, rejected},
		{"of a clock that is 6 minutes ahead", mine, -6 * time.Minute, nil, rejected},
		{"with a changed body", mine, 0, func(_ http.Header, body *string) { *body = strings.Replace(*body, "deleted", "created", 1) }, rejected},
		{"with a longer body", mine, 0, func(_ http.Header, body *string) { *body += " " }, rejected},
		{"without a body", mine, 0, func(_ http.Header, body *string) { *body = "" }, rejected},
		{"with a changed id", mine, 0, func(h http.Header, _ *string) { h.Set("webhook-id", "evt_1_00000000") }, rejected},
		{"old with a new time", mine, time.Hour, func(h http.Header, _ *string) {
			h.Set("webhook-timestamp", strconv.FormatInt(time.Now().Unix(), 10))
		}, rejected},
		{"with a time that is not a number", mine, 0, func(h http.Header, _ *string) { h.Set("webhook-timestamp", "now") }, rejected},
		{"without an id", mine, 0, func(h http.Header, _ *string) { h.Del("webhook-id") }, rejected},
		{"without a time", mine, 0, func(h http.Header, _ *string) { h.Del("webhook-timestamp") }, rejected},
		{"without a signature", mine, 0, func(h http.Header, _ *string) { h.Del("webhook-signature") }, rejected},
		{"with a signature of another version", mine, 0, signature(func(s string) string { return "v2" + s[2:] }), rejected},
		{"with a signature without a version", mine, 0, signature(func(s string) string { return s[3:] }), rejected},
		{"with an empty signature", mine, 0, signature(func(string) string { return "v1," }), rejected},
		{"with a short signature", mine, 0, signature(func(s string) string { return s[:20] }), rejected},
		{"signed again", mine, 0, nil, accepted},
	}
}

// post sends a request and returns the status of the response; 0: the connection was
// refused.
func post(t *testing.T, url string, header http.Header, body string) int {
	t.Helper()
	request := need.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body)))(t)
	request.Header = header.Clone()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}
