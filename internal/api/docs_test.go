package api_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/docs/docstest"
	"petstore/internal/tools/need"
)

var docsPages = []string{
	"/docs", "/docs/quickstart", "/docs/reference/pets", "/docs/reference/models", "/docs/reference/all", "/docs/errors", "/docs/changelog",
	"/console", "/docs/index.md", "/docs/reference/pets.md", "/llms.txt", "/.well-known/api-catalog",
}

// TestDocs: the docs pages and their assets need no key.
func TestDocs(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	asset := regexp.MustCompile(`docs/assets/[^"]+`).FindString(string(p.get("/docs").want(200).body))
	for _, path := range append(slices.Clone(docsPages), "/"+asset) {
		tags := map[string]string{}
		for _, coding := range []string{"gzip", ""} {
			get := p.do("GET", path+"?x=1", nil, "Accept", "image/png", "Accept-Encoding", "br, "+coding).want(200).wantCoding(coding)
			head := p.do("HEAD", path, nil, "Accept-Encoding", "br, "+coding).want(200).wantCoding(coding)
			for _, field := range []string{"Content-Type", "Content-Length", "Content-Security-Policy", "Cache-Control", "ETag"} {
				head.wantHeader(field, get.header.Get(field))
			}
			tags[coding] = get.header.Get("ETag")
		}
		for coding, tag := range tags {
			p.do("GET", path, nil, "If-None-Match", `"x", `+tag, "Accept-Encoding", "br, "+coding).want(304)
		}
		p.do("GET", path, nil, "If-None-Match", tags[""], "Accept-Encoding", "gzip").want(200)
	}
	for path, page := range map[string]string{"/docs/": "/docs", "/console/": "/console"} {
		p.get(path+"?x=1").want(308).wantHeader("Location", page)
	}
	for _, path := range append(slices.Clone(docsPages), "/"+asset, "/docs/", "/console/") {
		p.do("OPTIONS", path, nil).want(204).wantHeader("Allow", "GET, HEAD, OPTIONS")
		for _, method := range []string{"POST", "DELETE", "FOO"} {
			p.do(method, path, nil).wantError(405, "method_not_allowed").wantHeader("Allow", "GET, HEAD, OPTIONS")
		}
	}
	for _, path := range []string{"/docs//", "/docs/index.html", "/docs/reference", "/docs/reference/Pets", "/docs/errors/", "/docs/assets", "/docs/assets/", "/docs/assets/0000000000000000/main.js", "/" + asset + "x", "/Docs"} {
		p.get(path).wantError(404, "route_not_found")
	}
}

// TestDocsAsMarkdown: a client that prefers Markdown gets it at the address of a page, with links that
// work there.
func TestDocsAsMarkdown(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	for path, source := range map[string]struct{ path, folder string }{
		"/docs": {"/docs/index.md", "docs/"}, "/docs/quickstart": {path: "/docs/quickstart.md"}, "/docs/reference/store": {path: "/docs/reference/store.md"},
	} {
		page := p.do("GET", path, nil, "Accept", "text/markdown, text/html;q=0.9, */*;q=0.1").want(200)
		want := strings.ReplaceAll(string(p.get(source.path).want(200).body), "](", "]("+source.folder)
		need.Same(t, want, string(page.body), "%s (want: .md, got: Accept)", path)
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(string(page.body), -1) {
			target := need.Value((&url.URL{Path: path}).Parse(link[1]))(t)
			if !target.IsAbs() {
				p.get(target.Path).want(200)
			}
		}
		if got := page.header.Get("Vary"); !strings.Contains(got, "Accept,") && !strings.HasSuffix(got, ", Accept") {
			t.Errorf("%s: Vary is %q", path, got)
		}
		for _, accept := range []string{"text/html, text/markdown;q=0.5", "*/*", "text/*", "text/markdown;q=0"} {
			p.do("GET", path, nil, "Accept", accept).want(200).wantHeader("Content-Type", "text/html; charset=utf-8")
		}
	}
}

// TestPageNotFound: a browser gets a page for an unknown path, with links that work there.
func TestPageNotFound(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for path, root := range map[string]string{"/nowhere": "./", "/docs/nowhere": "../", "/docs/reference/a/b": "../../../"} {
		response, err := client.Do(p.request(t.Context(), "GET", path, nil, "Accept", browser))
		need.OK(t, err)
		page, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusNotFound || response.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Errorf("%s: %d %v, %v", path, response.StatusCode, response.Header, err)
		}
		need.Contains(t, "the page", string(page), `href="`+root+`docs/quickstart"`)
		p.do("GET", path, nil, "Accept", "*/*").wantError(404, "route_not_found")
		p.do("GET", path, nil, "Accept", "text/html, application/json").wantError(404, "route_not_found")
		p.do("POST", path, nil, "Accept", browser).wantError(404, "route_not_found")
	}
	p.do("DELETE", "/docs", nil, "Accept", browser).wantError(405, "method_not_allowed")
	p.do("GET", strings.Repeat("/", 15_000), nil, "Accept", browser).wantError(404, "route_not_found") // a page would have megabytes
}

// TestEveryErrorIsExplained: the errors page, the source and the spec list the same
// codes. The remedy of insufficient_scope names every resource that needs the scope admin.
func TestEveryErrorIsExplained(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	page := string(p.get("/docs/errors.md").want(200).body)
	headings := regexp.MustCompile("(?m)^## (\\d+) `(\\w+)`").FindAllStringSubmatch(page, -1)
	explained := mapped(headings, func(match []string) string { return match[1] + " " + match[2] })
	slices.Sort(explained)
	need.Same(t, errorsInSource(t), explained, "errors (want: source, got: page)")
	need.Same(t, 0, strings.Count(page, "**Remedy** \n"), "errors without a remedy")

	_, rest, _ := strings.Cut(page, "`insufficient_scope`")
	remedy, _, _ := strings.Cut(strings.ToLower(rest), "\n## ")
	for _, o := range operations() {
		resource, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(o.path, "/account"), "/"), "/")
		if name := strings.ReplaceAll(resource, "-", " "); o.scope() == auth.Admin && !strings.Contains(remedy, name) {
			t.Errorf("the remedy of insufficient_scope lacks %s: %s", name, remedy)
		}
	}

	described := slices.Sorted(maps.Keys(theContract().describedErrors()))
	need.Same(t, described, explained, "errors (want: openapi.yaml, got: page)")
}

// TestLinksToErrors: each link to an error leads to its part of the page of errors. In a
// response of the reference, it is the error with the same status and code.
func TestLinksToErrors(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	explained := map[string]string{} // statuses and codes by id
	errorsPage := string(p.get("/docs/errors").want(200).body)
	for _, match := range regexp.MustCompile(`(?s)<section class="problem" id="(\w+)".*?>(\d+)</span> <code>(\w+)</code>`).FindAllStringSubmatch(errorsPage, -1) {
		explained[match[1]] = match[2] + " " + match[3]
	}
	for _, link := range regexp.MustCompile(`href="\.\./(docs/[^"#.]+)"`).FindAllStringSubmatch(errorsPage, -1) {
		for _, match := range regexp.MustCompile(`docs/errors#([^"]*)"`).FindAllStringSubmatch(string(p.get("/"+link[1]).want(200).body), -1) {
			if explained[match[1]] == "" {
				t.Errorf("/%s links to the error %s, which does not exist", link[1], match[1])
			}
		}
	}
	linked := map[string]bool{}
	reference := string(p.get("/docs/reference/all").want(200).body)
	for _, response := range regexp.MustCompile(`(?s)<dt><span class="status[^>]*>(\d+)</span></dt><dd>(.*?)</dd>`).FindAllStringSubmatch(reference, -1) {
		for _, match := range regexp.MustCompile(`class="code-link" href="[^"]*#([^"]*)">([^<]*)</a>`).FindAllStringSubmatch(response[2], -1) {
			linked[match[1]] = true
			need.Same(t, response[1]+" "+match[2], explained[match[1]],
				"the error to which the link to %s leads", match[1])
		}
	}
	for _, id := range []string{"rate_limited", "too_many_concurrent_requests", "injected_fault_502", "injected_fault_504"} {
		need.Same(t, true, linked[id], "whether a response links to %s", id)
	}
}

// errorsInSource returns the status and code of every error in the files of this
// package, of gate and of httpjson.
func errorsInSource(t *testing.T) []string {
	t.Helper()
	literal := regexp.MustCompile(`[^*.\w](httpjson\.)?Error\{`) // not the type of a map
	complete := regexp.MustCompile(`\bError\{Status: (\d+), Code: "(\w+)"`)
	var found []string
	for _, pattern := range []string{"*.go", "../gate/*.go", "../httpjson/*.go"} {
		sources, _ := filepath.Glob(pattern)
		for _, source := range sources {
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			text := need.Value(os.ReadFile(source))(t)
			errors := complete.FindAllStringSubmatch(string(text), -1)
			if len(errors) != len(literal.FindAll(text, -1)) {
				t.Fatalf("%s: an error does not begin with a status and a code", source)
			}
			for _, one := range errors {
				found = append(found, one[1]+" "+one[2])
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found) // some codes have several messages
}

// TestQuickstart runs the commands of the quickstart in one shell, as a reader does.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	p := start(t)
	commands := "exec 2>&1\n" + docstest.Programs(t, "../docs/pages/quickstart.md")["sh"] // one of them shows its output on stderr
	p.runProgram(t, nil, "sh", commands, `"message":"Hello, Petstore!","status":"queued"`, `"name":"Igor"`,
		`"quantity":3,"status":"available"`, `"quantity":2,"complete":false`)
}

// runProgram runs a program of a page in its language. It fails the test unless the program succeeds, and its
// output contains all texts. A shell ends at the first error.
func (p *petstore) runProgram(t *testing.T, in map[string]*interpreter, language, source string, wants ...string) (output string) {
	t.Helper()
	lang := map[string]string{"sh": "cURL", "javascript": "JavaScript", "python": "Python"}[language]
	if language == "sh" {
		source = "set -eu -o pipefail\n" + source
	}
	output, err := sample{Lang: lang, Source: source}.run(t, in, p.url, p.key)
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	need.Contains(t, "the output", output, wants...)
	return output
}

// pagesOfOtherTests are the pages whose programs other tests run.
var pagesOfOtherTests = []string{"quickstart", "events", "sandboxes", "webhooks"}

// TestGuides runs the programs of guides, each in a sandbox of its own.
func TestGuides(t *testing.T) {
	t.Parallel()
	needSampleTools(t)
	p, in := start(t), startInterpreters(t)
	type wants map[string][]string
	guides := map[string]wants{
		"home":           {"sh": {`"name":"Rex"`}},
		"authentication": {"sh": {`"scope":"admin"`, `"secret":"petstore_`, "revoked 204"}, "javascript": {"scope: 'admin'"}, "python": {"'scope': 'admin'"}},
		"lists":          {"sh": {"152 available pets"}, "javascript": {"200 pets"}, "python": {"200 pets"}},
		"retries":        {"javascript": {"quantity: 2"}, "python": {"'quantity': 2"}},
		"idempotency":    {"sh": {"attempt 1, replayed: \n", "attempt 2, replayed: true"}, "javascript": {"} null", "} true"}, "python": {"} None", "} true"}},
		"concurrency":    {"sh": {""}, "javascript": {"quantity: 99"}, "python": {"'quantity': 99"}},
		"limits":         {"sh": {""}},
		"faults":         {"sh": {`"matched":0`, `"code":"injected_fault"`, "replayed: true"}},
		"record":         {"sh": {`"operation":"getPet"`}},
		"report":         {"sh": {`"operation":"placeOrder"`, `"petId":1,"quantity":2`, "# Report on a client: "}},
	}
	pages := need.Value(filepath.Glob("../docs/pages/*.md"))(t)
	tested := slices.Sorted(maps.Keys(guides))
	tested = append(tested, pagesOfOtherTests...)
	slices.Sort(tested)
	var withPrograms []string
	for _, page := range pages {
		text := need.Value(os.ReadFile(page))(t)
		if regexp.MustCompile("(?m)^```\\w+ run").Match(text) {
			withPrograms = append(withPrograms, strings.TrimSuffix(filepath.Base(page), ".md"))
		}
	}
	need.Same(t, withPrograms, tested, "pages (want: with programs to run, got: tested)")
	for guide, programs := range guides {
		sources := docstest.Programs(t, "../docs/pages/"+guide+".md")
		for language, source := range sources {
			servers := map[string]string{"": p.url}
			if guide == "lists" || guide == "retries" {
				servers[" behind a proxy"] = p.behindProxy()
			}
			for where, server := range servers {
				t.Run(guide+" in "+language+where, func(t *testing.T) {
					box := p.newSandbox(guide, "shop") // one at a time
					t.Parallel()
					switch guide {
					case "record":
						p.as(box.Key.Secret).get("/pets/1").want(200)
						p.as(box.Key.Secret).record(1)
					case "retries":
						if where != "" {
							source = strings.NewReplacer("15_000", "1_000", "timeout=15", "timeout=1").Replace(source)
							break // the proxy has faults of its own
						}
						p.as(box.Key.Secret).put("/sandboxes/current/faults", object{"rules": []object{
							{"operation": "placeOrder", "effect": "status", "status": 500, "first": 1},
							{"operation": "placeOrder", "effect": "status", "status": 503, "first": 1},
							{"operation": "placeOrder", "effect": "close", "when": "after", "first": 1},
						}}).want(200)
					}
					p.as(box.Key.Secret).at(server).runProgram(t, in, language, source, programs[language]...)
					switch guide {
					case "lists":
						if language == "sh" {
							p.as(box.Key.Secret).record(3) // two pages and a count
						}
					case "report": // the server writes the record beside the requests
						need.Within(t, 30*time.Second, "the requests of the guide are recorded", func() bool {
							report := p.as(box.Key.Secret).do("GET", "/sandboxes/current/report", nil, "Accept", "text/markdown").want(200)
							return strings.Contains(string(report.body), "Seen once without a mistake: an order that was placed but whose response was lost.")
						})
					case "concurrency":
						need.Same(t, 99, p.readingPrimary().as(box.Key.Secret).inventory(1).Quantity, "the stock")
					}
				})
			}
		}
		for language := range programs {
			if sources[language] == "" {
				t.Errorf("%s has no program in %s", guide, language)
			}
		}
	}
}

// behindProxy starts another server behind a proxy, and returns the URL of the proxy, with which the
// links of the server begin. The first response to a POST is as if it came during another attempt. The
// proxy breaks off the body of the second, holds the third back until the client gives up, and refuses
// the fourth.
func (p *petstore) behindProxy() string {
	p.t.Helper()
	proxy := httptest.NewUnstartedServer(nil)
	base := "http://" + proxy.Listener.Addr().String()
	server := need.Value(url.Parse(p.with(func(o *api.Options) { o.BaseURL = base }).url))(p.t)
	var posts atomic.Int64
	proxy.Config.Handler = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(server) },
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method != http.MethodPost {
				return nil
			}
			body := r.Body
			refuse := func(status int, retryAfter, text string) {
				r.StatusCode = status
				r.Header.Set("Retry-After", retryAfter)
				r.Header.Del("Content-Length")
				r.Body = newBody(strings.NewReader(text), body)
			}
			switch posts.Add(1) {
			case 1:
				refuse(http.StatusConflict, "1", `{"code": "idempotency_in_progress", "status": 409}`)
			case 2:
				r.Body = newBody(io.MultiReader(io.LimitReader(body, 9), iotest.ErrReader(io.ErrUnexpectedEOF)), body)
			case 3:
				<-r.Request.Context().Done()
			case 4:
				refuse(http.StatusRequestTimeout, "0", `{"code": "request_timeout", "status": 408}`)
			}
			return nil
		},
	}
	proxy.Start()
	p.t.Cleanup(proxy.Close)
	return base
}

// newBody returns a body that reads from another source.
func newBody(source io.Reader, body io.Closer) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{source, body}
}

// TestSandboxesPage runs the samples of the page about sandboxes: the commands in one
// shell, and a test in each of the other languages.
func TestSandboxesPage(t *testing.T) {
	t.Parallel()
	needSampleTools(t)
	p := start(t)
	sources := docstest.Programs(t, "../docs/pages/sandboxes.md")
	for language, wants := range map[string][]string{
		"sh":         {"created sbx_", `"petId":1,"quantity":2`, `"quantity":98`, "reset 204", `"quantity":100`, "replayed true", `"quantity":97`, `"id":1001`, "deleted 204"},
		"javascript": {"# pass 3", "# fail 0"},
		"python":     {""},
	} {
		t.Run(language, func(t *testing.T) { p.runProgram(t, nil, language, sources[language], wants...) })
	}
	for _, operation := range []struct{ method, path string }{{"POST", "/sandboxes"}, {"DELETE", "/sandboxes/{sandboxId}"}} {
		need.Within(t, 30*time.Second, "all samples have succeeded", func() bool { return p.succeeded(operation.method, operation.path) == len(sampleTools)+1 }) // a fork
	}
	need.Same(t, []sandbox{}, decode[[]sandbox](p.readingPrimary().get("/sandboxes").want(200)),
		"sandboxes that the samples left")
}

// TestEventsPage runs the samples of the page about events: the commands in one shell, and
// those that follow the feed while the feed grows.
func TestEventsPage(t *testing.T) {
	t.Parallel()
	needSampleTools(t)
	sources := docstest.Programs(t, "../docs/pages/events.md")
	t.Run("cURL", func(t *testing.T) {
		t.Parallel()
		p := start(t)
		output := p.runProgram(t, nil, "sh", sources["sh"], "the feed ends with "+p.eventID(0, 0)+"\n")
		need.Same(t, 2, strings.Count(output, `"sequence":1,"type":"category.created"`), "first events in %s", output)
	})
	for _, follower := range []struct{ name, program, prefix, ready string }{
		{"stream", "bash", "exec ", "retry: "}, // bash becomes curl
		{"javascript", "node", "", "copied 1 categories"},
		{"python", "python3", "", "copied 1 categories"},
	} {
		t.Run(follower.name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			dogs := p.newCategory("Dogs")
			program := p.follow(follower.program, follower.prefix+sources[follower.name])
			program.expect(follower.ready)
			cats := p.newCategory("Cats")
			if follower.name == "stream" {
				program.expect("event: category.created")
				return
			}
			program.expect("2 category.created " + categoryPath(cats) + " 2")
			p.del(categoryPath(dogs)).want(204)
			program.expect("3 category.deleted " + categoryPath(dogs) + " 1")
		})
	}
}

// follower is a running program.
type follower struct {
	t      testing.TB
	output *bufio.Scanner // stdout and stderr
}

// follow starts a program that runs until the end of the test, or a minute.
func (p *petstore) follow(program, source string) *follower {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "sample.mjs")
	need.OK(p.t, os.WriteFile(file, []byte(source), 0o600))
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	command := exec.CommandContext(ctx, program, file)
	command.Env = append(os.Environ(), "PETSTORE_URL="+p.url, "PETSTORE_API_KEY="+p.key)
	output := need.Value(command.StdoutPipe())(p.t)
	command.Stderr = command.Stdout
	need.OK(p.t, command.Start())
	p.t.Cleanup(func() {
		cancel()
		_ = command.Wait() // killed
	})
	return &follower{p.t, bufio.NewScanner(output)}
}

// expect reads output up to a line that contains text.
func (f *follower) expect(text string) {
	f.t.Helper()
	var all strings.Builder
	for f.output.Scan() {
		if strings.Contains(f.output.Text(), text) {
			return
		}
		all.WriteString(f.output.Text() + "\n")
	}
	f.t.Fatalf("the program ended, or took a minute, without %q:\n%s", text, &all)
}
