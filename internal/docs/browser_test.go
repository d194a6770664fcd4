//go:build browser

// These tests run the pages in Chromium, without network access beyond this
// machine. `make browser` runs them.

package docs_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/gate"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
)

var (
	axePath     = flag.String("axe", "", "axe.min.js of the npm package axe-core")
	screenshots = flag.String("screenshots", "", "the folder for screenshots; empty means none")
)

// patience is the timeout for actions of a page that usually take a second.
const patience = 60 * time.Second

// shop is a server with a key, and the browser that visits it.
type shop struct {
	url, key string
	server   http.Handler
	browser  context.Context
}

func open(t *testing.T) *shop {
	t.Helper()
	database := pgtest.New(t)
	pool, err := postgres.Open(t.Context(), database.URL, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	queries := db.New(pool)
	reader, err := account.Ensure(t.Context(), queries, "reader")
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := auth.Issue(t.Context(), queries, auth.NewKey{AccountID: reader.ID, Name: "docs", Scope: auth.Write})
	if err != nil {
		t.Fatal(err)
	}
	server, err := api.New(api.Options{Options: gate.Options{
		DB: pool, Verifier: auth.NewVerifier(queries, db.New(pool.Writing())), Log: slog.New(slog.DiscardHandler),
		MaxBodyBytes: 1 << 20, RequestTimeout: 6 * time.Second,
	}})
	if err != nil {
		t.Fatal(err)
	}
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	return &shop{url: listening.URL, key: secret.Reveal(), server: server, browser: startBrowser(t)}
}

func startBrowser(t *testing.T) context.Context {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.NoSandbox, // a container with root has no sandbox
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"),
	)
	allocator, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewContext(allocator)
	t.Cleanup(stop)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("Chromium does not start (Debian's package is chromium): %v", err)
	}
	return ctx
}

// tab is a tab with its own storage. It records faults.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	faults   []string
	requests map[string]int
	received float64
}

// look has the settings of a visitor's browser.
type look struct {
	width, height int64
	dark          bool
	url           string // of another server than the shop's
}

// visit opens a page in a new tab and waits until it is complete.
func (s *shop) visit(t *testing.T, path string, how look) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(s.browser, chromedp.WithNewBrowserContext())
	p := &tab{t: t, ctx: ctx, requests: map[string]int{}}
	t.Cleanup(func() {
		defer cancel()
		p.wantNoFault()
	})
	base := s.url
	if how.url != "" {
		base = how.url
	}
	if how.width == 0 {
		how.width, how.height = 1440, 900
	}
	scheme := "light"
	if how.dark {
		scheme = "dark"
	}
	if err := chromedp.Do(ctx); err != nil { // the tab lives as long as the first context that uses it
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, func(event any) { p.note(event, base) }); err != nil {
		t.Fatal(err)
	}
	p.do(
		chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
			_, network := chromedp.Call(ctx, network.Enable, network.EnableParams{})
			_, log := chromedp.Call(ctx, log.Enable, struct{}{})
			_, audits := chromedp.Call(ctx, audits.Enable, struct{}{})
			_, media := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
			})
			return errors.Join(network, log, audits, media)
		}),
		chromedp.EmulateViewport(how.width, how.height),
		chromedp.Navigate(base+path),
	)
	p.wait(`document.querySelector("#content h2") && document.querySelector("#sidebar a")`)
	return p
}

// note records an event that is a fault, and the origins of loaded files.
func (p *tab) note(event any, base string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fault := func(format string, arguments ...any) { p.faults = append(p.faults, fmt.Sprintf(format, arguments...)) }
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault("exception: %s", encoded(e.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		fault("console.%s: %s", e.Type, encoded(e.Args))
	case *log.EventEntryAdded:
		fault("log: %s %s", e.Entry.Text, e.Entry.URL)
	case *audits.EventIssueAdded:
		if e.Issue.Details.ContentSecurityPolicyIssueDetails != nil {
			fault("policy: %s", encoded(e.Issue.Details.ContentSecurityPolicyIssueDetails))
		}
	case *network.EventRequestWillBeSent:
		p.requests[e.Request.URL]++
		if !strings.HasPrefix(e.Request.URL, base+"/") && !strings.HasPrefix(e.Request.URL, "data:") {
			fault("a request to %s", e.Request.URL)
		}
	case *network.EventLoadingFinished:
		p.received += e.EncodedDataLength
	case *network.EventLoadingFailed:
		fault("loading failed: %s", e.ErrorText)
	}
}

func encoded(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// wantNoFault fails the test if the browser reported a fault.
func (p *tab) wantNoFault() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fault := range p.faults {
		p.t.Error(fault)
	}
	p.faults = nil
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatal(err)
	}
}

// get evaluates an expression, which may be a promise.
func get[T any](p *tab, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// wait waits until a condition holds, on this page or on one that a link leads to.
// The pages' policy forbids chromedp's own Poll.
func (p *tab) wait(condition string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	check := chromedp.Evaluate[bool](fmt.Sprintf(`new Promise((resolve, reject) => {
		const began = Date.now();
		(function check() {
			if (%s) resolve(true);
			else if (Date.now() - began > %d) reject(new Error("in vain"));
			else setTimeout(check, 10);
		})();
	})`, condition, patience.Milliseconds()/2), chromedp.EvalAwaitPromise)
	_, err := chromedp.Run(ctx, check)
	for leftPage(err) {
		_, err = chromedp.Run(ctx, check)
	}
	if err != nil {
		p.t.Fatalf("%s: %v", condition, err)
	}
}

// leftPage reports whether an evaluation failed because its page was left for
// another one.
func leftPage(err error) bool {
	var refusal *cdproto.Error
	return errors.As(err, &refusal) && refusal.Code == -32000
}

func (p *tab) click(selector string) {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector)))
}

func (p *tab) press(keys string, modifiers ...chromedp.Modifier) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...)))
}

func (p *tab) text(selector string) string {
	p.t.Helper()
	return get[string](p, fmt.Sprintf(`document.querySelector(%q).textContent`, selector))
}

func (p *tab) count(selector string) int {
	p.t.Helper()
	return get[int](p, fmt.Sprintf(`document.querySelectorAll(%q).length`, selector))
}

// texts returns the text of every element.
func (p *tab) texts(selector string) []string {
	p.t.Helper()
	return get[[]string](p, fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => e.textContent)`, selector))
}

// write replaces the text of a field.
func (p *tab) write(selector, text string) {
	p.t.Helper()
	p.click(selector)
	p.press("a", chromedp.ModifierCtrl)
	p.press(text)
}

// keep saves a screenshot.
func (p *tab) keep(name string) {
	p.t.Helper()
	if *screenshots == "" {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.MkdirAll(*screenshots, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), picture, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// allowClipboard lets the page and the test use the clipboard.
func (p *tab) allowClipboard() {
	p.t.Helper()
	p.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		for _, name := range []string{"clipboard-read", "clipboard-write"} {
			_, err := chromedp.CallBrowser(ctx, browser.SetPermission, browser.SetPermissionParams{
				Permission:       &browser.PermissionDescriptor{Name: name},
				Setting:          browser.PermissionSettingGranted,
				BrowserContextID: chromedp.FromContext(ctx).BrowserContextID,
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// masked returns a key as the page shows it.
func masked(key string) string { return key[:13] + "…••••" }

func (s *shop) document(t *testing.T) map[string]any {
	t.Helper()
	recorder := httptest.NewRecorder()
	s.server.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "GET", "/openapi.json", http.NoBody))
	var document map[string]any
	if err := json.Unmarshal(recorder.Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// serveDocument serves the same pages with another spec.
func (s *shop) serveDocument(t *testing.T, document map[string]any) string {
	t.Helper()
	text := encoded(document)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/openapi.json" {
			s.server.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(other.Close)
	return other.URL
}

func TestBrowser(t *testing.T) {
	t.Parallel()
	s := open(t)
	t.Run("every operation is on the page", s.everyOperation)
	t.Run("navigation has groups, tags and badges", s.navigation)
	t.Run("extensions are shown", s.extensions)
	t.Run("internal operations are hidden", s.internal)
	t.Run("samples: method and path are visible", s.samplesInSight)
	t.Run("deep links", s.deepLinks)
	t.Run("the navigation marks the current section", s.scrolling)
	t.Run("keyboard", s.keyboard)
	t.Run("dark", s.dark)
	t.Run("phone", s.phone)
	t.Run("responses open", s.responses)
	t.Run("quickstart and errors", s.writtenPages)
	t.Run("accessibility", s.accessibility)
	t.Run("weight and speed", s.weight)
}

func (s *shop) everyOperation(t *testing.T) {
	p := s.visit(t, "/docs", look{})
	p.keep("wide")
	shown := map[string]bool{}
	for _, id := range get[[]string](p, `[...document.querySelectorAll("article.operation")].map((e) => e.id)`) {
		shown[id] = true
	}
	for path, item := range s.document(t)["paths"].(map[string]any) {
		for method, value := range item.(map[string]any) {
			operation, isOperation := value.(map[string]any)
			if !isOperation {
				continue
			}
			id := operation["operationId"].(string)
			if !shown[id] {
				t.Errorf("%s %s is missing on the page", method, path)
				continue
			}
			delete(shown, id)
			at := "#" + id
			if got := p.text(at + " .endpoint"); got != strings.ToUpper(method)+path {
				t.Errorf("%s: the endpoint is %q", id, got)
			}
			if got, want := p.count(at+" .response"), len(operation["responses"].(map[string]any)); got != want {
				t.Errorf("%s: %d responses, want %d", id, got, want)
			}
			if p.count(`#sidebar a[href="#`+id+`"]`) != 1 {
				t.Errorf("%s: not exactly once in the navigation", id)
			}
			if body, has := operation["requestBody"]; has != (p.count(at+" .schema-use") > 0) {
				t.Errorf("%s: the body %v", id, body)
			}
		}
	}
	if len(shown) > 0 {
		t.Errorf("the page shows operations that the spec does not have: %v", shown)
	}
	for name := range s.document(t)["components"].(map[string]any)["schemas"].(map[string]any) {
		if p.count("#model-"+name) != 1 {
			t.Errorf("the model %s is missing on the page", name)
		}
	}
	last := get[string](p, `[...document.querySelectorAll("main > section")].at(-1).getAttribute("aria-labelledby")`)
	if last != "models" {
		t.Errorf("the page ends with %s", last)
	}
	if got := p.text("#createPet"); !strings.Contains(got, "1 to 9223372036854775807") {
		t.Error("2^63-1 was rounded")
	}
	if diff := cmp.Diff([]string{"Responses"}, p.texts("#getLiveness .part > :first-child")); diff != "" {
		t.Errorf("parts of an operation without parameters of its own (-want +got):\n%s", diff)
	}
}

func (s *shop) navigation(t *testing.T) {
	p := s.visit(t, "/docs", look{})
	type entry struct {
		Tag, Parent string
		Operations  int
	}
	got := get[[]entry](p, `[...document.querySelectorAll("#sidebar [data-tag]")].map((e) => ({
		Tag: e.dataset.tag,
		Parent: e.parentElement.dataset.tag ?? "",
		Operations: e.querySelectorAll(":scope > ul > li").length,
	}))`)
	var want []entry
	for _, value := range s.document(t)["tags"].([]any) {
		tag := value.(map[string]any)
		parent, _ := tag["x-parent"].(string)
		count := 0
		for _, item := range s.document(t)["paths"].(map[string]any) {
			for _, value := range item.(map[string]any) {
				if operation, isOperation := value.(map[string]any); isOperation && operation["tags"].([]any)[0] == tag["name"] {
					count++
				}
			}
		}
		want = append(want, entry{tag["name"].(string), parent, count})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("navigation (-spec +page):\n%s", diff)
	}
	if !slices.Contains(got, entry{"Pets", "", 0}) || !slices.ContainsFunc(got, func(e entry) bool { return e.Tag == "pets" && e.Parent == "Pets" && e.Operations > 0 }) {
		t.Errorf("Pets and pets share an entry: %v", got)
	}
	// Links still work in programs that ignore the case of fragments.
	ids := get[[]string](p, `[...document.querySelectorAll("[id]")].map((e) => e.id)`)
	seen := map[string]string{}
	for _, id := range ids {
		if other, taken := seen[strings.ToLower(id)]; taken {
			t.Errorf("the ids %s and %s differ at most by case", other, id)
		}
		seen[strings.ToLower(id)] = id
	}
	for _, href := range get[[]string](p, `[...document.querySelectorAll("a[href^='#']")].map((a) => a.getAttribute("href"))`) {
		if seen[strings.ToLower(href[1:])] != href[1:] {
			t.Errorf("a link leads to %s, which does not exist", href)
		}
	}

	p.write("#sidebar input", "patch ORDER")
	p.wait(`document.querySelector(".filter-count").textContent.startsWith("1 of ")`)
	if diff := cmp.Diff([]string{"PATCHUpdate or complete an order"}, p.texts("#sidebar [data-tag] li")); diff != "" {
		t.Errorf("filtered navigation (-want +got):\n%s", diff)
	}
	p.click(`#sidebar a[href="#updateOrder"]`)
	p.wait(`location.hash === "#updateOrder" && Math.abs(document.querySelector("#updateOrder").getBoundingClientRect().top - 80) < 4`)
}

func (s *shop) extensions(t *testing.T) {
	p := s.visit(t, "/docs", look{})
	warning := p.text("#getPet .warning")
	if !strings.HasPrefix(warning, "This operation is deprecated and will be sunset on 31 December 2027") {
		t.Errorf("the deprecation warning is %q", warning)
	}
	if !strings.Contains(warning, "GET /pets?id={petId}") || p.count(`#getPet .warning a[href="#listPets"]`) != 1 {
		t.Errorf("the warning does not name the successor: %q", warning)
	}
	if p.count(".warning") != 1 || p.count("#sidebar s") != 1 {
		t.Error("another operation is shown as deprecated")
	}
	if got := p.text(`#sidebar a[href="#getPet"] s`); got != "Get a pet" {
		t.Errorf("struck through in the navigation: %q", got)
	}
	above := get[bool](p, `!!(document.querySelector("#getPet .warning").compareDocumentPosition(document.querySelector("#getPet .text")) & Node.DOCUMENT_POSITION_FOLLOWING)`)
	if !above {
		t.Error("the warning is below the text")
	}
	for path, item := range s.document(t)["paths"].(map[string]any) {
		for method, value := range item.(map[string]any) {
			operation, isOperation := value.(map[string]any)
			if !isOperation {
				continue
			}
			label, _ := operation["x-stability"].(string)
			want := []string{}
			if label != "" {
				want = append(want, label)
			}
			id := operation["operationId"].(string)
			for _, place := range []string{fmt.Sprintf(`#sidebar a[href="#%s"] .badge`, id), fmt.Sprintf("#%s-title .badge", id)} {
				if diff := cmp.Diff(want, p.texts(place)); diff != "" {
					t.Errorf("%s %s: badges at %s (-want +got):\n%s", method, path, place, diff)
				}
			}
		}
	}
	if got := p.text("#model-PetStatus"); !strings.Contains(got, "Clients can order the pet while it has stock") {
		t.Errorf("x-enumDescriptions are not shown: %q", got)
	}
}

func (s *shop) internal(t *testing.T) {
	document := s.document(t)
	paths := document["paths"].(map[string]any)
	paths["/categories"].(map[string]any)["post"].(map[string]any)["x-internal"] = true
	paths["/livez"].(map[string]any)["x-internal"] = true
	paths["/pets"].(map[string]any)["get"].(map[string]any)["parameters"].([]any)[0].(map[string]any)["x-internal"] = true
	paths["/pets"].(map[string]any)["post"].(map[string]any)["x-stability"] = "experimental"
	p := s.visit(t, "/docs", look{url: s.serveDocument(t, document)})
	for _, id := range []string{"createCategory", "getLiveness"} {
		if p.count("#"+id) > 0 || p.count(`[href="#`+id+`"]`) > 0 {
			t.Errorf("%s is shown", id)
		}
	}
	if names := p.texts("#listPets .property-name > code"); slices.Contains(names, "status") || !slices.Contains(names, "categoryId") {
		t.Errorf("parameters of listPets: %v", names)
	}
	if got := p.texts(`#createPet-title .badge, #sidebar a[href="#createPet"] .badge`); !slices.Equal(got, []string{"experimental", "experimental"}) {
		t.Errorf("badges: %v", got)
	}
}

// samplesInSight checks the layout of the samples: in every cURL sample, the method
// and the path of the request are visible without scrolling, and no code block
// overflows. In windows of at least 1280 pixels, no line of a sample wraps.
func (s *shop) samplesInSight(t *testing.T) {
	type sample struct {
		ID      string
		Found   bool // a line begins with curl, the method and the path
		InSight bool // that line is in the visible part of its block
	}
	const request = `[...document.querySelectorAll("article.operation")].map((article) => {
		const [method, path] = [...article.querySelector(".endpoint").children].map((e) => e.textContent);
		const code = article.querySelector("[role=tabpanel] code");
		// The beginning of the path of this request is in a variable, because the line would be too long.
		const short = path.replace("/webhooks/{webhookId}/deliveries/{deliveryId}/", "$path/");
		const pattern = short.replaceAll(".", "\\.").replaceAll("$", "\\$").replaceAll(/\{\w+\}/g, '[^/"]+');
		const option = method === "GET" ? "--get" : "-X " + method;
		const match = new RegExp("^curl " + option + ' "[^"]*' + pattern + '"', "m").exec(code.textContent);
		if (!match) return { id: article.id };
		const range = document.createRange();
		const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
		let begin = match.index, end = match.index + match[0].length;
		for (let text = texts.nextNode(); end > 0; text = texts.nextNode()) {
			if (begin >= 0 && begin < text.length) range.setStart(text, begin);
			if (end <= text.length) range.setEnd(text, end);
			begin -= text.length;
			end -= text.length;
		}
		const block = code.parentElement.getBoundingClientRect();
		const inside = (r) => r.left >= block.left && r.right <= block.right && r.top >= block.top && r.bottom <= block.bottom;
		return { id: article.id, found: true, inSight: block.right <= innerWidth && [...range.getClientRects()].every(inside) };
	})`
	const blocks = `[...document.querySelectorAll(".panel pre")]`
	const wrapped = `[...document.querySelectorAll(".operation [role=tabpanel] .line")]
		.filter((line) => line.offsetHeight > 1.5 * parseFloat(getComputedStyle(line).lineHeight)).map((line) => line.textContent)`
	for _, how := range []look{{width: 1280, height: 800}, {width: 1440, height: 900}, {width: 1440, height: 900, dark: true}, {width: 390, height: 844}, {width: 390, height: 844, dark: true}} {
		p := s.visit(t, "/docs", how)
		p.wait(`document.querySelector("#model-Error")`)
		keep := func(name string) {
			get[bool](p, `(document.querySelector("#rotateAPIKey .calls").scrollIntoView(), true)`)
			p.keep(fmt.Sprintf("samples-%d-dark-%t%s", how.width, how.dark, name))
		}
		keep("")
		check := func(when string) {
			t.Helper()
			for _, sample := range get[[]sample](p, request) {
				if !sample.Found || !sample.InSight {
					t.Errorf("%+v, %s: method and path of %s: found %t, visible %t", how, when, sample.ID, sample.Found, sample.InSight)
				}
			}
		}
		check("without a key")
		for tab := 1; tab <= 3; tab++ {
			p.click(fmt.Sprintf("#placeOrder [role=tab]:nth-child(%d)", tab))
			overflowing := get[int](p, blocks+`.filter((e) => e.scrollWidth > e.clientWidth).length`)
			lines := get[[]string](p, wrapped)
			t.Logf("%+v, language %d: %d of %d code blocks overflow, %d lines of samples wrap", how, tab, overflowing, p.count(".panel pre"), len(lines))
			if overflowing > 0 {
				t.Errorf("%+v: %d code blocks overflow", how, overflowing)
			}
			if how.width >= 1280 && len(lines) > 0 {
				t.Errorf("%+v: these lines wrap: %q", how, lines)
			}
		}
		p.click("#placeOrder [role=tab]:nth-child(1)")
		get[bool](p, fmt.Sprintf(`(sessionStorage.setItem("petstore.key", %q), true)`, s.key))
		p.do(chromedp.Reload())
		p.wait(fmt.Sprintf(`document.querySelector("#model-Error") && document.querySelector("#placeOrder [role=tabpanel]").textContent.includes(%q)`, masked(s.key)))
		check("with a key")
		selected := `(() => {
			const code = document.querySelector("#placeOrder [role=tabpanel] code");
			getSelection().selectAllChildren(code);
			const same = getSelection().toString() === code.textContent;
			getSelection().removeAllRanges();
			return same;
		})()`
		if !get[bool](p, selected) {
			t.Errorf("%+v: a selected and copied sample has other line breaks", how)
		}
		keep("-key")
	}
}

// written are the pages that the tests of every page visit.
var written = []string{
	"/docs", "/docs/quickstart", "/docs/authentication", "/docs/requests", "/docs/lists", "/docs/retries",
	"/docs/concurrency", "/docs/limits", "/docs/stock", "/docs/events", "/docs/webhooks", "/docs/sandboxes", "/docs/faults", "/docs/errors",
}

func (s *shop) deepLinks(t *testing.T) {
	for fragment, id := range map[string]string{
		"#setInventory": "setInventory", "#tag-pets": "tag-pets", "#group-Pets": "group-Pets", "#model-Error": "model-Error",
		"#/messages/queueMessage": "queueMessage", "#/pets/getPet": "getPet",
	} {
		p := s.visit(t, "/docs"+fragment, look{})
		there := fmt.Sprintf(`document.getElementById(%q) && Math.abs(document.getElementById(%[1]q).getBoundingClientRect().top - 80) < 4`, id)
		p.wait(there)
		p.do(chromedp.Reload())
		p.wait(there)
	}
}

func (s *shop) scrolling(t *testing.T) {
	p := s.visit(t, "/docs", look{})
	for _, id := range []string{"deletePet", "queueMessage", "listPets", "model-Message"} {
		get[bool](p, fmt.Sprintf(`(document.getElementById(%q).scrollIntoView(), true)`, id))
		p.wait(fmt.Sprintf(`document.querySelector('#sidebar [aria-current="location"]')?.getAttribute("href") === "#%s"`, id))
		visible := get[bool](p, `(() => {
			const link = document.querySelector('#sidebar [aria-current="location"]').getBoundingClientRect();
			const nav = document.querySelector("#sidebar nav").getBoundingClientRect();
			return link.top >= nav.top - 1 && link.bottom <= nav.bottom + 1;
		})()`)
		if !visible {
			t.Errorf("the navigation entry of %s is not visible", id)
		}
	}
}

func (s *shop) keyboard(t *testing.T) {
	p := s.visit(t, "/docs", look{})
	p.wait(`document.readyState === "complete"`) // while a page loads, Chromium may focus the target of a fragment again
	p.press(kb.Tab)
	if got := get[string](p, "document.activeElement.textContent"); got != "Skip to content" {
		t.Fatalf("the first focus stop is %q", got)
	}
	if top := get[float64](p, `document.activeElement.getBoundingClientRect().top`); top < 0 {
		t.Error("the focused skip link is not visible")
	}
	p.press(kb.Enter)
	p.wait(`document.activeElement.id === "content"`)
	p.press("k", chromedp.ModifierCtrl)
	if got := get[string](p, "document.activeElement.type"); got != "search" {
		t.Fatalf("Ctrl+K leads to %q", got)
	}
	stops := 0
	for stops < 200 && get[string](p, `document.activeElement.getAttribute("href") ?? ""`) != "#createPet" {
		p.press(kb.Tab)
		stops++
		if outline := get[string](p, "getComputedStyle(document.activeElement).outlineStyle"); outline == "none" {
			t.Errorf("the focus is not visible on %s", get[string](p, "document.activeElement.outerHTML"))
		}
	}
	p.press(kb.Enter)
	p.wait(`location.hash === "#createPet" && document.activeElement.id === "createPet"`)
	// From here, the next stops belong to the operation.
	path := []string{}
	for range 12 {
		p.press(kb.Tab)
		path = append(path, get[string](p, `document.activeElement.className || document.activeElement.role || document.activeElement.localName`))
		if slices.Contains(path, "try-button") {
			break
		}
	}
	if !slices.Contains(path, "anchor") {
		t.Errorf("after the link, the stops are %v", path)
	}

	p.click("#sidebar .key-button")
	p.press(kb.Escape)
	p.wait(`!document.querySelector("dialog").open`)
	if got := get[string](p, "document.activeElement.className"); got != "key-button" {
		t.Errorf("after the dialog the focus is on %q", got)
	}
}

func (s *shop) dark(t *testing.T) {
	background := func(p *tab) string { return get[string](p, "getComputedStyle(document.body).backgroundColor") }
	bright, night := s.visit(t, "/docs", look{}), s.visit(t, "/docs#getPet", look{dark: true})
	if got := background(bright); got != "rgb(255, 255, 255)" {
		t.Errorf("light: %s", got)
	}
	if got := background(night); got != "rgb(16, 21, 28)" {
		t.Errorf("dark: %s", got)
	}
	night.keep("dark")
	for _, want := range []string{"rgb(255, 255, 255)", "rgb(16, 21, 28)"} {
		night.click(".theme-button")
		if got := background(night); got != want {
			t.Errorf("switched: %s, want %s", got, want)
		}
	}
}

func (s *shop) phone(t *testing.T) {
	for _, path := range written {
		for _, width := range []int64{320, 390} {
			p := s.visit(t, path, look{width: width, height: 800})
			get[bool](p, `document.querySelectorAll("#listPets summary").forEach((summary) => summary.click()) ?? true`)
			if path == "/docs" {
				p.wait(`document.querySelector("#listPets .response-more .panel")`)
			}
			if got := get[int64](p, "document.documentElement.scrollWidth"); got > width {
				widest := get[string](p, `[...document.querySelectorAll("main *")].find((e) => e.getBoundingClientRect().right > innerWidth + 1)?.outerHTML.slice(0, 200) ?? ""`)
				t.Errorf("%s is %d pixels wide in a window of %d: %s", path, got, width, widest)
			}
			if width == 390 {
				p.keep("phone" + strings.ReplaceAll(path, "/", "-"))
			}
			if visible := get[string](p, `getComputedStyle(document.querySelector("#sidebar")).visibility`); visible != "hidden" {
				t.Errorf("%s: the menu is open", path)
			}
			p.click(".menu-button")
			p.wait(`getComputedStyle(document.querySelector("#sidebar")).visibility === "visible" && document.activeElement.closest("#sidebar")`)
			if width == 390 && path == "/docs" {
				p.keep("phone-menu")
			}
			p.press(kb.Escape)
			p.wait(`getComputedStyle(document.querySelector("#sidebar")).visibility === "hidden" && document.activeElement.matches(".menu-button[aria-expanded=false]")`)
			p.click(".menu-button")
			p.click(`#sidebar li:nth-child(2) a[href^="#"]`)
			p.wait(`getComputedStyle(document.querySelector("#sidebar")).visibility === "hidden" && location.hash`)
		}
	}
}

func (s *shop) responses(t *testing.T) {
	p := s.visit(t, "/docs#placeOrder", look{})
	summaries := p.texts("#placeOrder summary")
	i := slices.IndexFunc(summaries, func(text string) bool { return strings.HasPrefix(text, "409") })
	for _, code := range []string{"pet_not_available", "insufficient_stock"} {
		if i < 0 || !strings.Contains(summaries[i], code) {
			t.Errorf("the responses do not name %s: %q", code, summaries)
		}
	}
	at := fmt.Sprintf("#placeOrder .response:nth-of-type(%d) ", i+1)
	p.click(at + "summary")
	p.wait(fmt.Sprintf(`document.querySelector(%q)`, at+".property"))
	if names := p.texts(at + ".property-name > code"); !slices.Contains(names, "X-Request-Id") {
		t.Errorf("the headers are %v", names)
	}
	p.keep("response")
	p.click(at + `a[href$="/docs/errors#insufficient_stock"]`)
	p.wait(`location.pathname === "/docs/errors" && document.querySelector(":target")?.id === "insufficient_stock"`)
}

func (s *shop) writtenPages(t *testing.T) {
	for _, how := range []look{{height: 1600, width: 1280}, {height: 1600, width: 1280, dark: true}, {height: 1600, width: 390}} {
		s.visit(t, "/docs/webhooks", how).keep(fmt.Sprintf("webhooks-%d-dark-%t", how.width, how.dark))
	}
	p := s.visit(t, "/docs/quickstart", look{height: 1600, width: 1280})
	p.keep("quickstart")
	if got := p.text("#key .panel:last-of-type code"); !strings.Contains(got, "PETSTORE_URL="+s.url+"\n") {
		t.Errorf("the environment block is %q", got)
	}
	if p.count(".panel .copy") != p.count("code[data-run]")+5 { // without those that set up a program
		t.Error("a command has no copy button")
	}
	p.click("#send .copy")
	p.wait(`document.querySelector("#send .copy").textContent === "Copied"`)
	if got := p.text("#response"); !strings.Contains(got, "queued") {
		t.Errorf("the response is %q", got)
	}
	p.click(`#unauthorized a`)
	p.wait(`location.pathname === "/docs/errors" && document.querySelector(":target")?.id === "missing_api_key" && document.readyState === "complete"`)
	p.keep("errors")
	p.click(`nav.pages a`)
	p.wait(`location.pathname === "/docs" && document.querySelector("#listPets") && document.readyState === "complete"`)
}

// accessibility runs axe-core.
func (s *shop) accessibility(t *testing.T) {
	if *axePath == "" {
		t.Fatal("-axe does not name axe.min.js of the npm package axe-core; make browser fetches it")
	}
	axe, err := os.ReadFile(*axePath)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range written {
		for _, how := range []look{{}, {dark: true}, {width: 390, height: 800}} {
			p := s.visit(t, path, how)
			if path == "/docs" {
				if how.width == 0 {
					p.authorize(s.key, "")
				}
				// A panel of each kind, with its outcome.
				get[bool](p, `["listPets", "createPet", "getPet"].forEach((id) => document.querySelector("#" + id + " .try-button").click()) ?? true`)
				get[bool](p, `document.querySelectorAll("#getPet summary").forEach((summary) => summary.click()) ?? true`)
				p.wait(`document.querySelector("#createPet textarea") && document.querySelector("#getPet .response-more .panel")`)
				if how.width == 0 {
					p.click("#listPets .send-button")
					p.wait(`document.querySelector("#listPets .outcome")`)
				}
			}
			type finding struct {
				ID, Impact, Help string
				Nodes            []struct{ HTML, FailureSummary string }
			}
			get[bool](p, string(axe)+"; true")
			found := get[struct {
				Violations []finding
				Passes     []struct{ ID string }
			}](p, `axe.run(document, { resultTypes: ["violations"] })`)
			if len(found.Passes) < 20 {
				t.Errorf("%s: axe checked only %d rules", path, len(found.Passes))
			}
			for _, violation := range found.Violations {
				t.Errorf("%s %+v: %s %s (%s), %d times, as %+v", path, how, violation.Impact, violation.ID, violation.Help, len(violation.Nodes), violation.Nodes[0])
			}
			t.Logf("axe-core on %s %+v: %d rules pass, %d violations", path, how, len(found.Passes), len(found.Violations))
		}
	}
}

// weight logs the cost of a first visit.
func (s *shop) weight(t *testing.T) {
	for _, path := range written {
		p := s.visit(t, path, look{})
		if path == "/docs" {
			p.wait(`document.querySelector("#model-Error")`)
		}
		ready := get[float64](p, "performance.now()")
		p.wait(`performance.getEntriesByName("first-contentful-paint").length > 0`)
		paint := get[float64](p, `performance.getEntriesByName("first-contentful-paint")[0].startTime`)
		shift := get[float64](p, `new Promise((resolve) => {
			new PerformanceObserver((list) => resolve(list.getEntries().reduce((sum, e) => sum + e.value, 0))).observe({ type: "layout-shift", buffered: true });
			setTimeout(() => resolve(0), 1000);
		})`)
		p.mu.Lock()
		received, requests := p.received, len(p.requests)
		p.mu.Unlock()
		t.Logf("%-16s first contentful paint %.0f ms, complete after %.0f ms, layout shift %.3f, %d requests, %.1f kB", path, paint, ready, shift, requests, received/1000)
		if received > 600_000 {
			t.Errorf("%s transfers %.0f bytes", path, received)
		}
		if shift > 0.01 {
			t.Errorf("%s shifts by %.3f while it loads", path, shift)
		}
	}
}
