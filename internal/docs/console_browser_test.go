//go:build browser

package docs_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"petstore/internal/tools/need"
)

func TestConsole(t *testing.T) {
	t.Parallel()
	s := open(t)
	t.Run("welcome", s.welcome)
	t.Run("sign in and out", s.signsIn)
	t.Run("another key before the response", s.replacedKey)
	t.Run("requests", s.requests)
	t.Run("texts of a client stay texts", s.hostileRequests)
	t.Run("cURL", s.curlOfRequest)
	t.Run("many requests", s.manyRequests)
	t.Run("events", s.events)
	t.Run("webhooks", s.webhooks)
	t.Run("sandboxes", s.sandboxes)
	t.Run("samples", s.samplesOfStores)
	t.Run("report", s.report)
	t.Run("API keys", s.apiKeys)
	t.Run("scopes", s.scopes)
	t.Run("ended sandbox", s.endedSandbox)
	t.Run("revoked key", s.revokedKey)
	t.Run("the server is lost and comes back", s.lostServer)
	t.Run("a response is lost", s.lostResponses)
	t.Run("the data of the reference is away", s.consoleWithoutData)
	t.Run("keyboard", s.consoleKeyboard)
	t.Run("looks", s.consoleLooks)
}

// object is a JSON object.
type object = map[string]any

// client sends requests with a key.
type client struct {
	t        *testing.T
	url, key string
}

func (s *shop) as(t *testing.T, key string) client {
	t.Helper()
	return client{t, s.url, key}
}

// do sends a request, and returns the response; 0: the connection was closed.
func (c client) do(method, path string, body any, header ...string) (status int, response object) {
	t := c.t
	t.Helper()
	var content []byte
	switch body := body.(type) {
	case nil:
	case string:
		content = []byte(body)
	default:
		content = []byte(encoded(body))
	}
	request := need.Value(http.NewRequestWithContext(t.Context(), method, c.url+path, bytes.NewReader(content)))(t)
	request.Header.Set("Authorization", "Bearer "+c.key)
	if content != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	got, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil
	}
	defer got.Body.Close()
	text := need.Value(io.ReadAll(got.Body))(t)
	_ = json.Unmarshal(text, &response)
	return got.StatusCode, response
}

// sandbox creates a sandbox and returns its id and its key.
func (s *shop) sandbox(t *testing.T, name, sample string) (id, key string) {
	t.Helper()
	status, made := s.as(t, s.key).do("POST", "/sandboxes", object{"name": name, "sample": sample})
	if status != http.StatusCreated {
		t.Fatalf("POST /sandboxes: %d %v", status, made)
	}
	return made["id"].(string), made["apiKey"].(object)["secret"].(string)
}

// signIn opens the console and signs in.
func (s *shop) signIn(t *testing.T, key, place string, how look) *tab {
	t.Helper()
	p := s.visit(t, "/console"+place, how)
	t.Cleanup(func() { p.expectFailures("net::ERR_ABORTED") }) // the page ends its streams
	p.wait(`document.querySelector(".key-form input")`)
	p.enterKey(key)
	p.wait(`document.querySelector("main.console h1")`)
	return p
}

// enterKey replaces the text of the form for a key, and sends it.
func (p *tab) enterKey(key string) {
	p.t.Helper()
	get[bool](p, `(document.querySelector(".key-form input").value = "", true)`)
	p.click(".key-form input")
	p.insert(key)
	p.press(kb.Enter)
}

// rows waits until the list has a number of rows.
func (p *tab) rows(count int) {
	p.t.Helper()
	p.wait(fmt.Sprintf(`document.querySelectorAll(".rows > li").length === %d`, count))
}

// button clicks the button with a text. The selector names a part of the page.
func (p *tab) button(part, text string) {
	p.t.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll(%q)].find((e) => e.textContent === %q && !e.disabled && e.checkVisibility())`, part+" :is(button, a)", text)
	p.wait(find)
	get[bool](p, fmt.Sprintf(`(%s.focus(), %[1]s.click(), true)`, find))
}

// confirm clicks a button, and the one with the same text in the dialog that it opens.
func (p *tab) confirm(part, text string) {
	p.t.Helper()
	p.button(part, text)
	p.button("dialog", text)
	p.closed()
}

// fieldOf is an expression for the control of a field in a dialog or an editor.
func fieldOf(part, label string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(%q)].find((label) => label.textContent === %q && label.checkVisibility()).control`, part+" label", label)
}

// fillIn replaces the value of a field.
func (p *tab) fillIn(part, label, text string) {
	p.t.Helper()
	get[bool](p, fmt.Sprintf(`(() => {
		const control = %s;
		control.focus();
		if (control.localName === "select") control.value = %q;
		else control.select();
		control.dispatchEvent(new Event("change", { bubbles: true }));
		return true;
	})()`, fieldOf(part, label), text))
	if get[bool](p, `document.activeElement.localName !== "select"`) {
		p.insert(text)
	}
}

// tick ticks a box of a dialog.
func (p *tab) tick(label string) {
	p.t.Helper()
	get[bool](p, fmt.Sprintf(`(%s.click(), true)`, fieldOf("dialog", label)))
}

// closed waits until no dialog is open.
func (p *tab) closed() {
	p.t.Helper()
	p.wait(`!document.querySelector("dialog[open]")`)
}

// secret reads the secret of a dialog and closes it.
func (p *tab) secret() string {
	p.t.Helper()
	p.wait(`document.querySelector("dialog[open] .secret code")`)
	secret := p.text("dialog[open] .secret code")
	p.button("dialog", "I have stored it")
	p.closed()
	return secret
}

// wantSecret is [tab.secret] for a secret that must have this beginning.
func (p *tab) wantSecret(beginning string) {
	p.t.Helper()
	if secret := p.secret(); !strings.HasPrefix(secret, beginning) {
		p.t.Errorf("the secret is %q, want %s…", secret, beginning)
	}
}

func (s *shop) welcome(t *testing.T) {
	p := s.visit(t, "/console", look{width: 390, height: 844})
	p.wait(`document.querySelector(".key-form input")`)
	p.shows("main", "petstore dev", "petstore key create")
	has(p, "14.4px", `getComputedStyle(document.querySelector(".welcome pre")).paddingTop`) // without a button above the code
	has(p, false, `document.querySelector("#sidebar").checkVisibility()`)
	for key, want := range map[string]string{"": "Enter an API key", "naïve key": "Enter an API key", s.key + "x": "invalid_api_key"} {
		p.enterKey(key)
		p.wait(fmt.Sprintf(`document.querySelector(".key-form [role=alert]")?.textContent.includes(%q)`, want))
	}
	p.expectFailures("401")
	// Without JavaScript, the page says so.
	status, _ := s.as(t, "").do("GET", "/console", nil)
	if text := get[string](p, `fetch("/console").then((r) => r.text())`); status != http.StatusOK || !strings.Contains(text, "The console needs JavaScript") || !strings.Contains(text, `docs/webhooks">webhooks</a> get the same data with curl`) {
		t.Errorf("%d %s", status, text)
	}
}

func (s *shop) signsIn(t *testing.T) {
	p := s.signIn(t, s.key, "", look{})
	// The key is neither in the address, nor in the HTML, nor kept longer than the tab.
	for _, place := range []string{"location.href", "document.documentElement.outerHTML", "JSON.stringify(localStorage)"} {
		if text := get[string](p, place); strings.Contains(text, s.key) {
			t.Errorf("the key is in %s", place)
		}
	}
	p.do(chromedp.Reload())
	p.wait(`document.querySelector("main.console h1")`)
	p.click(`#sidebar a[href^="#keys"]`)
	p.wait(`document.querySelector("h1").textContent === "API keys" && document.activeElement.localName === "h1" && document.title === "API keys · Petstore console"`)
	p.button("#session", "Sign out")
	p.wait(`document.querySelector(".key-form input") === document.activeElement && location.hash === ""`)
	if stored := get[string](p, "JSON.stringify(sessionStorage)"); strings.Contains(stored, "petstore_") {
		t.Errorf("the tab keeps %s", stored)
	}
	p.do(chromedp.NavigateBack())
	p.wait(`document.querySelector(".key-form input")`)
	// A tab keeps the setting of another one.
	get[bool](p, `(localStorage.setItem("petstore.url", "https://other.example"), true)`)
	p.enterKey(s.key)
	p.wait(`document.querySelector("main.console h1")`)
	has(p, "https://other.example", `localStorage.getItem("petstore.url")`)
	// The key of another account opens its own store.
	id, key := s.sandbox(t, "another account", "empty")
	p = s.signIn(t, key, "#events/acc_1/evt_1", look{})
	p.wait(fmt.Sprintf(`document.querySelector(".state.live") && document.querySelector("#store-select").value === %q && location.hash === "#events"`, id))
	// Without storage in the browser, a key of a sandbox lasts as long as the page, or until the reader signs out.
	p = s.visit(t, "/console", look{})
	t.Cleanup(func() { p.expectFailures("net::ERR_ABORTED") }) // the page ends its streams
	get[bool](p, `Boolean(Object.defineProperty(window, "sessionStorage", { get: () => { throw new Error("The browser blocks site data."); } }))`)
	for range 2 {
		get[bool](p, fmt.Sprintf(`(location.hash = "#events/%s", true)`, id))
		p.wait(`document.querySelector("#sign-in .key-form")`)
		p.enterKey(s.key)
		p.wait(`document.querySelector("main.console .key-form")`)
		p.enterKey(key)
		p.wait(`document.querySelector(".state.live")`)
		p.button("#session", "Sign out")
	}
}

// replacedKey enters a second key before the response to the first one.
func (s *shop) replacedKey(t *testing.T) {
	_, first := s.sandbox(t, "first", "empty")
	_, second := s.sandbox(t, "second", "empty")
	p := s.visit(t, "/console", look{})
	t.Cleanup(func() { p.expectFailures("net::ERR_ABORTED") }) // the page ends its streams
	p.wait(`document.querySelector(".key-form input")`)
	get[bool](p, `(() => {
		const { fetch } = window;
		const { setItem } = Storage.prototype;
		Object.assign(window, { responses: [], kept: [] });
		window.fetch = async (url, options) => {
			const response = await fetch(url, options);
			if (String(url).endsWith("/account")) await new Promise((resolve) => window.responses.push(resolve));
			return response;
		};
		Storage.prototype.setItem = function (name, value) {
			if (name === "petstore.key") window.kept.push(value);
			setItem.call(this, name, value);
		};
		return true;
	})()`)
	for i, key := range []string{first, second} {
		p.enterKey(key)
		p.wait(fmt.Sprintf(`window.responses.length === %d`, i+1))
	}
	get[bool](p, `(window.responses.forEach((respond) => respond()), true)`)
	p.wait(`document.querySelector("main.console h1")`)
	need.Same(t, []string{second}, get[[]string](p, "window.kept"), "the tab has kept the keys")
}

func (s *shop) requests(t *testing.T) {
	p := s.signIn(t, s.key, "", look{})
	p.wait(`document.querySelector("h1").textContent === "Requests"`)
	p.click(`#sidebar a[href^="#events"]`)
	id, key := s.sandbox(t, "requests", "shop")
	s.as(t, key).do("GET", "/pets?limit=2", nil)
	p.click(`#sidebar a[href^="#requests"]`)
	p.button("main", id+"requests") // the account has no record
	p.rows(1)
	p.wait(`document.querySelector(".state.live")`)

	// Requests appear as they end.
	s.as(t, key).do("PUT", "/sandboxes/current/faults", object{"rules": []object{{"operation": "getAccount", "effect": "close", "when": "before"}}})
	s.as(t, key).do("POST", "/store/orders?key="+key, object{"petId": 1, "quantity": 2}, "Idempotency-Key", "order-7")
	s.as(t, key).do("GET", "/pets/999999999", nil)
	p.rows(4)
	s.as(t, key).do("GET", "/account", nil)
	p.wait(`document.querySelectorAll(".rows > li").length >= 5`) // a client may try again
	p.shows(".rows > li", "none", "GET/account", "fault: close")

	// The exchange: headers, bodies, redactions and the fault.
	get[bool](p, `(document.querySelector(".rows > li a").click(), true)`) // the rows may still move
	p.wait(`document.querySelector(".detail h2")?.textContent.includes("/account")`)
	p.shows(".detail", "Fault rule 1 of the sandbox injected: close.", "no response")
	p.fillIn(".filters", "Status", "400")
	p.press(kb.Enter)
	p.rows(1)
	p.click(".rows > li a")
	p.wait(`document.querySelector(".detail h2")?.textContent.includes("/store/orders")`)
	got := p.text(".detail")
	p.contains("the exchange", got, "/store/orders?key=[redacted]", "A secret stood where none belongs: request.query", "placeOrder",
		"order-7", "invalid_parameter", "24 bytes, which the server did not read", key[:17]+"…", "Idempotency-Key")
	if strings.Contains(got, key) {
		t.Errorf("the key is in %s", got)
	}

	// Filters are part of the address.
	p.do(chromedp.Reload())
	p.rows(1)
	p.wait(`location.hash.includes("status=400") && ` + fieldOf(".filters", "Status") + `.value === "400" && document.querySelector(".detail h2")`)
	p.fillIn(".filters", "Status", "nonsense")
	p.press(kb.Enter)
	p.wait(`document.querySelector(".empty .problem-note")?.textContent.includes("status")`)
	p.expectFailures("400")
	p.fillIn(".filters", "Status", "4xx")
	p.press(kb.Enter)
	p.rows(2)
	for _, operation := range p.texts(".filters option")[1:] {
		if status, _ := s.as(t, s.key).do("GET", "/sandboxes/"+id+"/requests?operation="+operation, nil); status != http.StatusOK {
			t.Errorf("the filter offers %s, and the server returns %d", operation, status)
		}
	}
	p.fillIn(".filters", "Operation", "getPet")
	p.rows(1)
	p.fillIn(".filters", "Operation", "")
	p.rows(2)
	p.click(".rows > li:last-child a")
	p.wait(`document.querySelector(".detail h2")?.textContent.includes("/store/orders")`)
	p.button(".detail dd:has(+ *), .detail dd", "show all")
	p.wait(`location.hash.includes("apiKeyId=") && !location.hash.includes("status")`)

	// Paused, the list waits.
	p.wait(`document.querySelector(".state.live") && document.querySelectorAll(".rows > li").length >= 5`)
	before := p.count(".rows > li")

	// The page gets no pointerup while a context menu is open.
	for _, events := range []string{`new PointerEvent("pointerdown", { button: 2, bubbles: true })`, `new PointerEvent("pointerdown", { button: 0, bubbles: true }), new PointerEvent("contextmenu", { bubbles: true })`} {
		get[bool](p, `[`+events+`].every((event) => document.querySelector(".rows a").dispatchEvent(event))`)
		s.as(t, key).do("GET", "/messages", nil)
		before++
		p.rows(before)
	}
	p.button(".tools", "Pause")
	s.as(t, key).do("GET", "/categories", nil)
	p.wait(`document.querySelector(".tools [aria-pressed]").textContent === "Resume (1)"`)
	p.counts(before, ".rows > li")
	p.button(".tools", "Resume (1)")
	before++
	p.rows(before)

	// A filter discards what waits.
	p.button(".tools", "Pause")
	s.as(t, key).do("GET", "/categories", nil)
	before++
	p.wait(`document.querySelector(".tools [aria-pressed]").textContent === "Resume (1)"`)
	p.fillIn(".filters", "Operation", "listCategories")
	p.wait(`document.querySelector(".tools [aria-pressed]").textContent === "Resume"`)
	p.fillIn(".filters", "Operation", "")
	p.rows(before)

	// HAR and the end.
	folder := t.TempDir()
	p.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.CallBrowser(ctx, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
			Behavior: browser.SetDownloadBehaviorBehaviorAllow, BrowserContextID: chromedp.FromContext(ctx).BrowserContextID, DownloadPath: folder,
		})
		return err
	}))
	const note = `document.querySelector(".tools .problem-note")?.textContent.trim()`
	get[bool](p, `Boolean(Object.assign(window, { whole: window.fetch, later: window.setTimeout }))`)
	responds := func(response string) {
		get[bool](p, `!(window.fetch = () => Promise.resolve(new Response(`+response+`)))`)
	}
	get[bool](p, `Boolean(window.setTimeout = (run, milliseconds) => window.later(run, milliseconds / 100))`) // the console tries again sooner
	responds(`"", { status: 429, headers: { "Retry-After": "20" } }`)
	p.button(".tools", "Save HAR")
	p.wait(note + `.includes("Trying again in 20 s")`)
	for response, want := range map[string]string{`"", { status: 503 }`: "The server returned 503.", `"<html>Log in"`: "The response does not come from Petstore.", `new ReadableStream({ start: (body) => body.error() })`: "The connection is lost."} {
		responds(response)
		p.wait(note + fmt.Sprintf(`.startsWith("%s Trying again in") && document.querySelectorAll(".tools .problem-note").length === 1`, want))
	}
	responds(`"", { status: 400 }`)
	p.wait(note + ` === "The server returned 400."`)
	get[bool](p, `Boolean(Object.assign(window, { fetch: window.whole, setTimeout: window.later }))`)
	p.button(".tools", "Save HAR")
	saved, err := os.ReadFile(filepath.Join(folder, id+".har"))
	for until := time.Now().Add(patience); err != nil && time.Now().Before(until); <-time.After(20 * time.Millisecond) {
		saved, err = os.ReadFile(filepath.Join(folder, id+".har"))
	}
	var archive struct {
		Log struct {
			Entries []struct{ Request struct{ URL string } }
		}
	}
	if err := errors.Join(err, json.Unmarshal(saved, &archive)); err != nil || len(archive.Log.Entries) != before {
		t.Errorf("the archive has %d entries (%v)", len(archive.Log.Entries), err)
	}
	p.wait(`!` + note + ` && document.activeElement.textContent === "Save HAR"`)
	p.button(".tools", "Clear")
	p.wait(`document.querySelector("dialog[open]").textContent.includes("` + id + `")`)
	p.button("dialog", "Clear")
	p.closed()
	p.wait(`document.querySelector(".empty")?.textContent.includes("No request matches")`)
	p.rows(0)

	// A reader who leaves while the server clears the record leaves the list, too.
	p.button(".tools", "Clear")
	get[bool](p, `!(window.fetch = (url, options) => options.method === "DELETE" ? new Promise((resolve) => (window.respond = () => resolve(new Response()))) : (window.last = url, window.whole(url, options)))`)
	p.button("dialog", "Clear")
	get[bool](p, `(location.hash = "#sandboxes", true)`)
	p.wait(`document.querySelector("h1").textContent === "Sandboxes" && document.querySelector(".rows > li")`)
	get[bool](p, `(window.last = "", window.respond(), true)`)
	p.closed()
	has(p, "", `window.last`)

	// A reader who signs out while an archive loads can enter another key. The archive ends.
	get[bool](p, `!(window.fetch = (url, options) => options.headers.Accept !== "application/har+json" || window.load ? window.whole(url, options) : new Promise((resolve) => (window.load = () =>
		resolve(new Response('{"log": {"entries": []}}', { headers: { "Content-Type": "application/json", Link: '</>; rel="next"' } })))))`)
	get[bool](p, `(location.hash = "#requests/`+id+`", true)`)
	p.button(".tools", "Save HAR")
	p.wait(`window.load`)
	get[bool](p, `Boolean(window.tools = document.querySelector(".tools"))`)
	p.button("#session", "Sign out")
	p.insert("half a key")
	get[bool](p, `(window.load(), true)`)
	p.wait(`!window.tools.querySelector(":disabled")`)
	has(p, "half a key", `document.querySelector(".key-form input").value`)
}

const script = `<script>alert(1)</script><img src=x onerror=alert(2)>`

func (s *shop) hostileRequests(t *testing.T) {
	id, key := s.sandbox(t, script, "empty")
	long := strings.Repeat("long ", 20_000)
	s.as(t, key).do("POST", "/categories?"+url.QueryEscape(script), object{"name": script, "description": script}, "Idempotency-Key", "<b>", "X-Hostile", script)
	s.as(t, key).do("POST", "/categories", object{"name": script + "2"})
	s.as(t, key).do("POST", "/messages", object{"message": long})
	s.as(t, key).do("POST", "/messages", "\xff\xfe\x00\x01binary")
	p := s.signIn(t, s.key, "#requests/"+id, look{})
	p.rows(4)
	for i, want := range []string{"//4AAWJpbmFyeQ==", "of which the record has 16,384", script + "2", "X-Hostile"} {
		p.click(fmt.Sprintf(".rows > li:nth-child(%d) a", i+1))
		p.wait(fmt.Sprintf(`document.querySelector(".detail").textContent.includes(%q)`, strings.ReplaceAll(want, `"`, `\"`)))
	}
	p.shows(".detail", script, "<b>")
	// Both bodies have colours, and no code that has left the page.
	p.click(".rows > li:nth-child(3) a")
	p.wait(`document.querySelector(".detail h2")?.textContent.includes("/categories") && document.querySelectorAll(".detail pre code").length === 2`)
	p.wait(`(() => {
		const coloured = [...CSS.highlights.get("code-name")].map(({ startContainer }) => startContainer.parentElement);
		return coloured.every((code) => code.isConnected) && [...document.querySelectorAll(".detail pre code")].every((code) => coloured.includes(code));
	})()`)
	// In a key of the sandbox, in events, and in names.
	p.click(`#sidebar a[href^="#events"]`)
	p.wait(`document.querySelector(".key-form")`)
	p.enterKey(s.key)
	p.wait(`document.querySelector(".key-form .problem-note")?.textContent.includes("belongs to acc_")`)
	p.enterKey(key)
	p.rows(1)
	p.click(".rows > li a")
	p.wait(`document.querySelector(".detail pre")?.textContent.includes("<script>")`)
	p.click(`#sidebar a[href^="#sandboxes"]`)
	p.wait(`document.querySelector(".rows")?.textContent.includes("<img")`)
	p.counts(0, "main :is(script, img), #sidebar :is(script, img)")
	// An address may have anything, too.
	p.do(chromedp.Navigate(s.url + "/console#requests/sbx_" + url.PathEscape(script) + "/%zz?status=%3Cimg%3E"))
	p.wait(`document.querySelector(".empty .problem-note")`)
	p.do(chromedp.Navigate(s.url + "/console#__proto__/x/y"))
	p.wait(`document.querySelector("h1").textContent === "Requests"`)
	p.expectFailures("400", "404")
}

// curlOfRequest runs a copied command.
func (s *shop) curlOfRequest(t *testing.T) {
	id, key := s.sandbox(t, "curl", "empty")
	p := s.signIn(t, s.key, "#requests/"+id, look{})
	p.allowClipboard()
	copied := func() string {
		p.copies(`document.querySelector(".copying")`, func() { p.button(".detail", "Copy as cURL") })
		return get[string](p, "navigator.clipboard.readText()")
	}
	name := "It's $(touch /tmp/x) `x` \"q\" \\ é"
	s.as(t, key).do("POST", "/categories?a=$(id)&b='`x`", object{"name": name}, "X-Odd", "it's $HOME")
	p.rows(1)
	p.click(".rows > li a")
	p.wait(`document.querySelector(".detail h2")?.textContent.startsWith("POST/categories")`)
	command := copied()
	if strings.Contains(command, key) {
		t.Errorf("the command has the key: %s", command)
	}
	run := exec.CommandContext(t.Context(), "sh", "-c", command)
	run.Env = append(run.Environ(), "PETSTORE_URL="+s.url, "PETSTORE_API_KEY="+key)
	if output, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v %s", command, err, output)
	}
	p.rows(2)
	pair := get[[]string](p, fmt.Sprintf(`(async () => {
		const read = async (path) => (await fetch("/sandboxes/%s/requests" + path, { headers: { Authorization: "Bearer " + sessionStorage["petstore.key"] } })).json();
		return Promise.all((await read("")).map(async ({ id }) => {
			const { method, path, query, status, request } = await read("/" + id);
			const headers = request.headers.filter(({ name }) => !/^(accept.*|content-length|user-agent)$/i.test(name));
			return JSON.stringify([method, path, decodeURIComponent(query), status, headers, request.body], null, 1);
		}));
	})()`, id))
	need.Same(t, pair[1], pair[0], "%s\nsends another request (want: record, got: command)", command)
	s.as(t, key).do("HEAD", "/pets", nil)
	p.rows(3)
	p.click(".rows > li a")
	p.wait(`document.querySelector(".detail .method")?.textContent === "HEAD"`)
	if command := copied(); !strings.HasPrefix(command, "curl --head ") {
		t.Errorf("curl would wait for the body: %s", command)
	}
	p.wait(`document.querySelector(".copying").textContent === "Copy as cURL"`)

	// A secret makes a body shorter, but the record has the whole one. A response may have a new secret.
	s.as(t, key).do("GET", "/pets?token="+key, nil)
	s.as(t, key).do("POST", "/account/api-keys", object{"name": "new", "scope": "read"})
	s.as(t, key).do("POST", "/messages", object{"message": key})
	p.rows(6)
	for i, want := range []struct{ line, misplaced string }{{"POST/messages", "request.body"}, {"POST/account/api-keys", ""}, {"GET/pets?token=[redacted]", "request.query"}} {
		p.click(fmt.Sprintf(".rows > li:nth-child(%d) a", i+1))
		p.wait(fmt.Sprintf(`document.querySelector(".detail h2")?.textContent === %q`, want.line))
		got := p.text(".detail")
		p.contains("the exchange", got, "[redacted]", want.misplaced)
		if strings.Contains(got, "A secret stood") != (want.misplaced != "") || strings.Contains(got, "of which the record has") {
			t.Errorf("the exchange is %s", got)
		}
		command := copied()
		if strings.Contains(command, "# The record has only") || strings.Contains(command, "# Replace [redacted].") != (want.misplaced != "") {
			t.Errorf("the command says %s", command)
		}
	}
}

// manyRequests checks that the page stays small while many requests arrive.
func (s *shop) manyRequests(t *testing.T) {
	id, key := s.sandbox(t, "many", "empty")
	p := s.signIn(t, s.key, "#requests/"+id, look{})
	p.wait(`document.querySelector(".state.live")`)
	for i := range 1200 {
		s.as(t, key).do("GET", fmt.Sprintf("/pets?limit=%d", i%100+1), nil)
	}
	p.wait(`document.querySelector(".rows a")?.dataset.id.endsWith("_1200")`)
	if rows, nodes := p.count(".rows > li"), p.count("*"); rows != 200 || nodes > maxNodes {
		t.Errorf("%d rows, %d elements", rows, nodes)
	}
	p.wait(`/\d+ new requests/.test(document.querySelector(".unseen[role=status]").textContent)`)
	// The link continues below the rows that are left.
	p.button(".turn-pages", "Older")
	p.wait(`location.hash.includes("before=") && document.querySelectorAll(".rows > li").length === 100`)
	if rows := p.texts(".rows .row-text"); rows[0] != "/pets?limit=100" || rows[99] != "/pets?limit=1" {
		t.Errorf("the older requests begin with %s and end with %s", rows[0], rows[99])
	}
	p.button(".turn-pages", "Newest")
	p.wait(`!location.hash.includes("before=") && document.querySelector(".state.live")`)
	p.do(chromedp.Reload())
	p.rows(100)
	p.button(".turn-pages", "Older")
	p.wait(`location.hash.includes("before=") && document.querySelectorAll(".rows > li").length === 100 && !document.querySelector(".state").textContent`)
	p.button(".turn-pages", "Newest")
	p.wait(`!location.hash.includes("before=") && document.querySelector(".state.live")`)

	// Long requests make short pages.
	id, key = s.sandbox(t, "long requests", "empty")
	p.do(chromedp.Navigate(s.url + "/console?long#requests/" + id))
	p.wait(`document.querySelector(".state.live")`)
	for range 100 {
		s.as(t, key).do("GET", "/pets?name="+strings.Repeat("x", 6000), nil)
	}
	p.rows(100)
	p.do(chromedp.Reload())
	p.button(".turn-pages", "Older")
	p.wait(`location.hash.includes("before=") && document.querySelector(".turn-pages").textContent === "Newest"`)
	if rows := p.count(".rows > li"); rows == 0 || rows >= 100 {
		t.Errorf("the second page has %d rows", rows)
	}
}

func (s *shop) events(t *testing.T) {
	id, key := s.sandbox(t, "events", "empty")
	p := s.signIn(t, key, "#events", look{})
	p.wait(`document.querySelector(".state.live") && document.querySelector(".empty").textContent.includes("No events yet")`)
	s.as(t, key).do("POST", "/categories", object{"name": "One"})
	s.as(t, key).do("POST", "/messages", object{"message": "Two"})
	p.rows(2)
	p.shows(".rows > li", "message.queued")
	p.fillIn(".filters", "Type", "category.created")
	p.rows(1)
	p.wait(`document.querySelector(".state.live")`)
	s.as(t, key).do("POST", "/messages", object{"message": "Three"})
	s.as(t, key).do("POST", "/categories", object{"name": "Four"})
	p.rows(2)
	s.as(t, key).do("POST", "/categories", object{"name": "a\u2028b"}) // which ends no line of the stream
	p.rows(3)
	p.click(".rows > li:nth-child(2) a")
	p.wait(`document.querySelector(".detail pre")?.textContent.includes('"name": "Four"')`)
	p.shows(".detail", "evt_", "/categories/")
	// The next day, the time of a row has a date.
	if got := p.text(".detail time"); !strings.Contains(got, "UTC") && !strings.Contains(got, "GMT") {
		t.Errorf("the time is %q, without a zone", got)
	}
	for add, want := range map[string]string{"0": `^\d\d:\d\d:\d\d$`, "86400000": `^\d+ \w+,? \d\d:\d\d:\d\d$`} {
		get[bool](p, `Boolean(window.Date = class extends (window.realDate ??= Date) { constructor(...time) { super(...(time.length > 0 ? time : [window.realDate.now() + `+add+`])); } })`)
		p.fillIn(".filters", "Type", "")
		p.fillIn(".filters", "Type", "category.created")
		p.wait(fmt.Sprintf(`new RegExp(%q).test(document.querySelector(".rows time")?.textContent)`, want))
	}
	// The console leaves no trace.
	if status, _ := s.as(t, s.key).do("GET", "/sandboxes/"+id+"/requests?operation=listEvents", nil); status != http.StatusOK {
		t.Errorf("the record: %d", status)
	}
	has(p, 0, fmt.Sprintf(`fetch("/sandboxes/%s/requests?limit=200", { headers: { Authorization: "Bearer " + sessionStorage["petstore.key"] } }).then((r) => r.json()).then((all) => all.filter(({ method }) => method === "GET").length)`, id))
	// A long feed begins with the newest event.
	for i := range 1000 {
		s.as(t, key).do("POST", "/messages", object{"message": fmt.Sprint(i)})
		if i == 300 {
			p.do(chromedp.Navigate(s.url + "/console?all#events"))
			p.rows(200)
			p.wait(`document.querySelector(".turn-pages").textContent === "Oldest"`)
		}
	}
	p.do(chromedp.Navigate(s.url + "/console#events"))
	p.rows(1)
	p.button(".turn-pages", "Oldest")
	p.rows(100)
	p.shows(".rows > li", "category.created")
	p.button(".turn-pages", "Later")
	p.wait(`document.querySelector(".row-sequence")?.textContent === "101"`)

	// Long events make short pages.
	_, key = s.sandbox(t, "long events", "empty")
	queue := func(number int) {
		for range number {
			s.as(t, key).do("POST", "/messages", object{"message": strings.Repeat("😀", 4000)})
		}
	}
	queue(40)
	p = s.signIn(t, key, "#events?after=oldest", look{})
	p.wait(`document.querySelector(".turn-pages").textContent === "NewestLater"`)
	if rows := p.count(".rows > li"); rows == 0 || rows >= 40 {
		t.Errorf("the first page has %d rows", rows)
	}
	p.button(".turn-pages", "Later")
	p.wait(`document.querySelector(".rows > li:last-child .row-sequence")?.textContent === "40" && document.querySelector(".turn-pages").textContent === "Newest"`)
	queue(961)
	p.button(".turn-pages", "Newest")
	p.wait(`document.querySelector(".turn-pages").textContent === "Oldest" && document.querySelector(".state.live")`)
	p.rows(1)
}

func (s *shop) webhooks(t *testing.T) {
	_, key := s.sandbox(t, "webhooks", "empty")
	var answer atomic.Int32
	answer.Store(http.StatusOK)
	receiver := need.Server(t, func(w http.ResponseWriter, _ *http.Request) {
		status := int(answer.Load())
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
	})
	p := s.signIn(t, key, "#webhooks", look{})
	p.wait(`document.querySelector(".empty").textContent.includes("No webhooks yet")`)

	p.button(".tools", "New webhook")
	p.counts(0, "dialog .field-error:not(:empty)")
	p.fillIn("dialog", "url", "ftp://example.com")
	p.tick("order.placed")
	p.button("dialog", "Create")
	p.wait(`document.querySelector("dialog .problem-note")?.textContent.includes("/url")`)
	if got := p.text("dialog .problem-note"); strings.Contains(got, "`") || strings.Contains(got, "errors") || p.count("dialog .problem-note li code") < 2 {
		t.Errorf("the form says %s", got)
	}
	p.expectFailures("422", "400")
	p.fillIn("dialog", "url", receiver.URL+"/%3Cscript%3E")
	p.tick("category.created")
	p.fillIn("dialog", "description", script)
	p.button("dialog", "Create")
	p.wantSecret("whsec_")
	p.rows(1)
	p.wait(`document.querySelector(".detail h2")?.textContent.startsWith("` + receiver.URL + `")`)

	p.confirm(".detail", "Send a test")
	p.wait(`document.querySelector(".deliveries .chip-delivered")`)
	answer.Store(http.StatusServiceUnavailable)
	s.as(t, key).do("POST", "/categories", object{"name": "Sent"})
	p.wait(`document.querySelector(".deliveries li .chip").textContent === "pending" && document.querySelector(".deliveries li .status")?.textContent === "503"`)
	p.click(".deliveries li summary")
	p.wait(`document.querySelector(".deliveries li td")?.checkVisibility()`)
	p.shows(".deliveries li", "category.created", "ms", "Next attempt")
	answer.Store(http.StatusOK)
	p.confirm(".deliveries li details[open]", "Retry")
	p.wait(`document.querySelector(".deliveries li .chip").textContent === "delivered" && document.querySelectorAll(".deliveries li:first-child tbody tr").length >= 2`)
	p.confirm(".detail", "Probe")
	p.wait(`document.querySelectorAll(".deliveries li").length === 6`)
	p.confirm(".detail", "Replay")
	p.wait(`document.querySelector(".detail").textContent.includes("1 new deliveries")`)
	p.fillIn(".detail", "Status", "failed")
	p.wait(`document.querySelectorAll(".deliveries li").length === 0 && document.querySelector(".detail").textContent.includes("No delivery matches")`)
	p.fillIn(".detail", "Status", "")
	p.wait(`document.querySelectorAll(".deliveries li").length === 7`)

	p.button(".detail", "Edit")
	p.tick("order.placed")
	p.tick("category.created")
	p.button("dialog", "Save")
	p.wait(`document.querySelector("dialog .problem-note")?.textContent.includes("/types")`)
	if got := p.text("dialog .problem-note"); strings.Contains(got, "null") || p.text("dialog fieldset .field-error") != "Required." {
		t.Errorf("without types, the form says %s", got)
	}
	p.expectFailures("400")
	p.tick("order.placed")
	p.tick("category.created")
	p.fillIn("dialog", "description", "Changed\ntwice")
	has(p, "input", fieldOf("dialog", "url")+".localName")
	p.button("dialog", "Save")
	p.closed()
	p.wait(`document.querySelector(".detail dl").textContent.includes("Changed\ntwice")`)
	if got := p.text(".detail dl"); !strings.Contains(got, "order.placed, category.created") && !strings.Contains(got, "category.created, order.placed") {
		t.Errorf("the webhook is %s", got)
	}
	setStatus := func(status string) {
		p.button(".detail", "Edit")
		p.fillIn("dialog", "status", status)
		p.button("dialog", "Save")
	}
	setStatus("disabled")
	p.wait(`document.querySelector(".detail dl").textContent.includes("disabled (manual)") && ![...document.querySelectorAll(".detail button")].some((e) => e.textContent === "Replay")`)
	setStatus("enabled")
	p.wait(`document.querySelector(".detail dl").textContent.includes("enabled")`)
	p.button(".detail", "Rotate secret")
	p.wait(`document.querySelector("dialog").textContent.includes("the old secret stops at once")`)
	p.fillIn("dialog", "graceSeconds", "60")
	p.button("dialog", "Rotate secret")
	p.wantSecret("whsec_")
	p.click(".deliveries li summary")
	p.button(".deliveries li details[open]", "Event")
	p.wait(`document.querySelector("h1").textContent === "Events" && document.querySelector(".detail pre")?.textContent.includes("Sent")`)
	p.do(chromedp.NavigateBack())
	p.wait(`document.querySelector("h1").textContent === "Webhooks" && document.querySelector(".detail h2")`)

	// Older deliveries, and back.
	for range 50 {
		s.as(t, key).do("POST", "/categories", object{"name": rand.Text()})
	}
	p.button(".detail", "Older")
	p.wait(`document.querySelectorAll(".deliveries > li").length === 7`)
	p.button(".detail", "Newest")
	p.wait(`document.querySelectorAll(".deliveries > li").length === 50 && ![...document.querySelectorAll(".detail button")].some((e) => e.textContent === "Newest" && e.checkVisibility())`)

	// The console shows what others change, and what the server disables.
	hook := get[string](p, `location.hash.split("/").pop()`)
	answer.Store(http.StatusGone)
	p.confirm(".detail", "Send a test")
	p.wait(`document.querySelector(".detail dl").textContent.includes("disabled (gone)") && document.querySelector(".rows .chip-disabled")`)
	s.as(t, key).do("PATCH", "/webhooks/"+hook, object{"status": "enabled"})
	p.click(`#sidebar a[href^="#webhooks"]`)
	p.wait(`!document.querySelector(".split.chosen") && document.querySelector(".rows .chip-enabled")`)
	p.click(".rows a")
	p.confirm(".detail", "Delete")
	p.rows(0)

	// The row of a delivery of another day fits a narrow window.
	answer.Store(0)
	_, other := s.as(t, key).do("POST", "/webhooks", object{"url": receiver.URL, "types": []string{"*"}})
	hook = other["id"].(string)
	s.as(t, key).do("POST", "/categories", object{"name": "Pending"}) // the console polls more often then
	get[bool](p, `Boolean(window.Date = class extends Date { constructor(...time) { super(...(time.length > 0 ? time : [Date.now() + 86_400_000])); } })`)
	get[bool](p, fmt.Sprintf(`(location.hash += "/%s", true)`, hook))
	p.wait(`document.querySelector(".deliveries .chip-pending + * + .status")?.textContent === "no response"`)
	p.do(chromedp.EmulateViewport(320, 700))
	has(p, true, `document.querySelector(".deliveries time").textContent.length > "00:00:00".length`)
	p.fits("320 pixels")
	p.keep("console-deliveries-320")
	p.do(chromedp.EmulateViewport(1440, 900))

	// A webhook that somebody else deletes leaves the list.
	s.as(t, key).do("DELETE", "/webhooks/"+hook, nil)
	p.wait(fmt.Sprintf(`document.querySelector(".detail").textContent.includes("There is no %s any more.")`, hook))
	p.rows(0)
	p.counts(0, ".detail button, .problem-note")
	p.expectFailures("404")

	// A reader who leaves while the list loads again stays at the other part.
	p.button(".tools", "New webhook")
	p.fillIn("dialog", "url", receiver.URL)
	p.tick("order.placed")
	p.button("dialog", "Create")
	p.wait(`document.querySelector("dialog[open] .secret code")`)
	get[bool](p, `!(window.fetch = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))))`)
	p.secret()
	p.click(`#sidebar a[href^="#keys"]`)
	p.wait(`document.querySelector("h1").textContent === "API keys"`)
	if place := get[string](p, `new Promise((resolve) => setTimeout(() => resolve(location.hash), 50))`); strings.Contains(place, "wh_") {
		t.Errorf("the address is %s", place)
	}
}

func (s *shop) sandboxes(t *testing.T) {
	p := s.signIn(t, s.key, "#sandboxes", look{})
	p.wait(`document.querySelector(".rows > li, .empty p")`)
	p.button(".tools", "New sandbox")
	p.fillIn("dialog", "name", "console-made")
	p.fillIn("dialog", "expiresAt", "2020-01-01T00:00:00Z")
	p.button("dialog", "Create")
	p.wait(`document.querySelector("dialog .problem-note")?.textContent.includes("/expiresAt")`)
	p.expectFailures("400", "422")
	get[bool](p, `(() => { const control = `+fieldOf("dialog", "expiresAt")+`; control.value = ""; control.dispatchEvent(new Event("input")); return true; })()`)
	p.button("dialog", "Create")
	key := p.secret()
	p.wait(`document.querySelector(".detail h2")?.textContent.startsWith("console-made")`)
	id := p.text(".detail h2 code")
	if status, _ := s.as(t, key).do("POST", "/categories", object{"name": "Gone after the reset"}); status != http.StatusCreated {
		t.Errorf("the key gets %d", status)
	}
	p.button(".detail", "Add rule")

	// Beside the details, a narrow window has only the messages of the list.
	p.do(chromedp.EmulateViewport(900, 900))
	get[bool](p, `!(window.whole = window.fetch) || !(window.fetch = (url, options) => options.method === "GET" && /sandboxes\?/.test(url) ? Promise.resolve(new Response("", { status: 503 })) : window.whole(url, options))`)
	p.confirm(".detail", "Reset")
	p.wait(`document.querySelector(".list .problem-note")?.checkVisibility()`)
	get[bool](p, `!(window.fetch = window.whole)`)
	p.wait(`document.querySelector(".tools [role=status]").textContent.includes("has its sample again") && document.querySelectorAll(".rule").length === 1`)
	has(p, true, `document.querySelector(".tools [role=status]").checkVisibility() && !document.querySelector(".tools button, .rows").checkVisibility()`)
	p.do(chromedp.EmulateViewport(1440, 900))
	p.button(".detail", "Discard changes")
	p.wait(`document.querySelectorAll(".rule").length === 0`)
	if _, account := s.as(t, key).do("GET", "/store/inventory/1", nil); account["quantity"] != 100.0 {
		t.Errorf("inventory after the reset: %v", account)
	}

	// Fault rules.
	p.button(".detail", "Add rule")
	p.fillIn(".rule", "operation", "getPet")
	p.button(".detail", "Add rule")
	p.fillIn(".rule:nth-child(2)", "operation", "placeOrder")
	p.fillIn(".rule:nth-child(2)", "effect", "delay")
	p.button(".detail", "Save rules")
	p.wait(`document.querySelector(".detail .problem-note")?.textContent.includes("/rules/1/delayMs")`)
	p.expectFailures("400")
	p.fillIn(".rule:nth-child(2)", "delayMs", "5")
	p.button(".detail", "Save rules")
	p.wait(`document.querySelector(".detail form > .hint").textContent.includes("Saved")`)
	if _, rules := s.as(t, key).do("GET", "/sandboxes/current/faults", nil); encoded(rules["rules"]) != `[{"effect":"status","first":1,"matched":0,"operation":"getPet","status":503},{"delayMs":5,"effect":"delay","first":1,"matched":0,"operation":"placeOrder"}]` {
		t.Errorf("the rules are %s", encoded(rules))
	}

	// A late response does not remove what the reader has added since.
	const hold = `!(window.fetch = (url, options) => !url.endsWith("/faults") ? window.whole(url, options) : new Promise((resolve, reject) => {
		window.respond = () => resolve(window.whole(url, options));
		options.signal.addEventListener("abort", () => reject(options.signal.reason));
	}))`
	get[bool](p, hold)
	p.button(".detail", "Save rules")
	p.wait(`window.respond`)
	p.button(".detail", "Add rule")
	get[bool](p, `(window.fetch = window.whole, window.respond(), true)`)
	p.wait(`document.querySelector(".detail form > .hint").textContent.includes("Saved")`)
	p.counts(3, ".rule")
	get[bool](p, `!(window.fetch = () => Promise.resolve(new Response("", { status: 503 })))`)
	p.button(".detail", "Discard changes")
	p.wait(`document.querySelector(".detail .problem-note")?.textContent.includes("Trying again in")`)
	p.button(".detail", "Add rule")
	get[bool](p, `!(window.fetch = window.whole)`)
	p.wait(`!document.querySelector(".detail .problem-note")`)
	p.counts(4, ".rule")
	p.button(".detail", "Discard changes")
	p.wait(`document.querySelectorAll(".rule").length === 2`)

	p.button(".rule", "Remove")
	p.wait(`document.querySelectorAll(".rule").length === 1 && document.querySelector(".rule legend").textContent === "Rule 1"`)
	p.button(".detail", "Discard changes")
	p.wait(`document.querySelectorAll(".rule").length === 2 && document.querySelector(".rule").textContent.includes("counted 0")`)
	s.as(t, key).do("GET", "/pets/1", nil)
	p.button(".detail", "Refresh")
	p.wait(`document.querySelectorAll(".rule").length === 2 && document.querySelector(".rule").textContent.includes("counted 1")`)
	p.confirm(".detail", "Reset")
	p.wait(`document.querySelector(".rule").textContent.includes("counted 0")`)
	p.fillIn(".rule", "status", "500")
	p.button(".detail", "Discard changes")
	p.wait(`document.querySelectorAll(".rule").length === 2 && ` + fieldOf(".rule", "status") + `.value === "503"`)
	p.button(".detail", "Delete all")
	p.wait(`document.querySelectorAll(".rule").length === 0`)

	// Its store is in the sidebar, and the console knows its key. Leaving ends what runs.
	get[bool](p, hold)
	p.button(".detail", "Save rules")
	p.button(".detail", "Requests")
	p.wait(fmt.Sprintf(`document.querySelector("h1").textContent === "Requests" && document.querySelector("#store-select").value === %q`, id))
	p.click(`#sidebar a[href^="#events"]`)
	p.wait(`document.querySelector(".rows")?.textContent.includes("store.reset")`)
	get[bool](p, `!(window.fetch = window.whole)`)
	p.click(`#sidebar a[href^="#sandboxes"]`)
	p.wait(fmt.Sprintf(`document.querySelector('.rows a[data-id=%q]')`, id))
	p.click(fmt.Sprintf(`.rows a[data-id=%q]`, id))
	p.confirm(".detail", "Delete")
	p.wait(fmt.Sprintf(`!document.querySelector('.rows a[data-id=%q]')`, id))
	p.expectFailures("ERR_ABORTED")
}

// samplesOfStores saves the store of a sandbox, starts another one as it, and deletes the sample.
func (s *shop) samplesOfStores(t *testing.T) {
	id, key := s.sandbox(t, "sampled", "empty")
	s.as(t, key).do("POST", "/categories", object{"name": "Saved"})
	p := s.signIn(t, s.key, "#sandboxes/"+id+"/"+id, look{})
	p.wait(`document.querySelector("[aria-label=Samples] .rows")?.textContent.includes("shop")`)
	p.button(".detail", "Add rule")
	p.button(".detail", "Save as sample")
	p.fillIn("dialog", "name", "Black Friday")
	p.button("dialog", "Save")
	p.wait(`document.querySelector("dialog .problem-note")?.textContent.includes("/name")`)
	p.expectFailures("400")
	p.fillIn("dialog", "name", "black-friday")
	p.button("dialog", "Save")
	p.closed()
	p.wait(`document.querySelector("[aria-label=Samples] .rows").textContent.includes("black-friday") && document.querySelectorAll(".rule").length === 1`)
	p.keep("console-samples-1440")
	p.wantAccessible(t, "samples")
	p.button(".tools", "New sandbox")
	p.fillIn("dialog", "name", "forked")
	p.fillIn("dialog", "sample", "black-friday")
	p.button("dialog", "Create")
	forked := p.secret()
	if _, one := s.as(t, forked).do("GET", "/categories/1001", nil); one["name"] != "Saved" {
		t.Errorf("the sandbox has %v", one)
	}
	p.wait(`document.querySelector(".detail h2").textContent.startsWith("forked")`)
	p.button(".detail", "Add rule")
	p.confirm("[aria-label=Samples]", "Delete")
	p.wait(`document.querySelector("[aria-label=Samples] .rows")?.textContent.includes("black-friday") === false && document.activeElement.matches("[aria-label=Samples]")`)
	has(p, "Deleted.", `document.querySelector(".tools [role=status]").textContent`)
	p.counts(1, ".rule")
}

// report loads an exercise, lets a client make a mistake, and reads the verdict.
func (s *shop) report(t *testing.T) {
	id, key := s.sandbox(t, "report", "shop")
	p := s.signIn(t, s.key, "#sandboxes/"+id+"/"+id, look{})
	p.wait(`[...document.querySelectorAll(".detail label")].some((e) => e.textContent === "Exercise" && e.checkVisibility())`)
	p.fillIn(".detail", "Exercise", "lost-responses")
	p.button(".detail", "Load exercise")
	p.wait(`document.querySelector(".detail form > .hint").textContent === "Loaded lost-responses." && document.querySelectorAll(".rule").length > 0`)
	p.fillIn(".detail", "Exercise", "flaky-webhooks")
	p.button(".detail", "Load exercise")
	p.wait(`[...document.querySelectorAll(".rule select")].some(({ value }) => value === "deliverWebhook")`)
	p.button(".detail", "Delete all")
	p.wait(`document.querySelectorAll(".rule").length === 0`)
	for range 3 {
		s.as(t, key).do("GET", "/pets?token="+key, nil)
	}
	s.as(t, s.key).do("GET", "/sandboxes/"+id+"/requests?limit=1", nil, "Prefer", "wait=30") // the record has it a little later
	get[bool](p, `!(window.whole = window.fetch) || !(window.fetch = (url, options) => new Promise((resolve) => (window.respond = () => resolve(window.whole(url, options)))))`)
	p.button(".detail", "Judge")
	p.wait(`window.respond && document.querySelector(".detail [aria-label=Report] button").disabled`) // a second report costs again
	get[bool](p, `(window.fetch = window.whole, window.respond(), true)`)
	p.wait(`document.querySelectorAll("[aria-label=Verdicts] > li").length > 10 && document.activeElement.textContent === "Judge"`)
	if first := p.text("[aria-label=Verdicts] > li summary"); !strings.HasPrefix(first, "failed") {
		t.Errorf("the first verdict is %q", first)
	}
	has(p, 0, `Promise.all([...new Set([...document.querySelectorAll("[aria-label=Verdicts] a")].map(({ href }) => href).filter((href) => !href.includes("#requests/")))].map(async (href) => !(await fetch(href)).ok)).then((all) => all.filter(Boolean).length)`)
	p.keep("console-report-1440")
	p.wantAccessible(t, "report")
	p.click(`[aria-label=Verdicts] a[href*="#requests/"]`)
	p.wait(`document.querySelector("h1").textContent === "Requests" && document.querySelector(".detail h2")?.textContent.includes("/pets?token=[redacted]")`)
}

func (s *shop) apiKeys(t *testing.T) {
	_, key := s.sandbox(t, "keys", "empty")
	p := s.signIn(t, key, "#keys", look{})
	p.rows(1)
	p.button(".tools", "New API key")
	p.fillIn("dialog", "name", script)
	p.fillIn("dialog", "scope", "read")
	p.button("dialog", "Create")
	p.wait(`document.querySelector("dialog[open] .secret code")`)
	// Without TLS, browsers have no clipboard API.
	p.allowClipboard()
	get[bool](p, `!(navigator.clipboard.writeText = () => Promise.reject(new Error()))`)
	p.copies(`document.querySelector("dialog .secret .copy")`, func() { p.click("dialog .secret .copy") })
	if got, want := get[string](p, "navigator.clipboard.readText()"), p.text("dialog .secret code"); got != want {
		t.Errorf("copied %q, want the secret", got)
	}
	p.press(kb.Escape)
	p.press(kb.Escape)                                                                  // a second one closes what refuses the first one
	get[bool](p, `Boolean(document.querySelector("dialog").closedBy = "closerequest")`) // as in other browsers
	p.press(kb.Escape)
	get[bool](p, `!(document.execCommand = () => false)`)
	p.click("dialog .secret .copy")
	p.wait(`document.querySelector("dialog .secret .copy").textContent === "Not copied"`)
	made := p.secret()
	p.rows(2)
	p.wait(`document.querySelector(".detail h2")?.textContent.includes("<script>")`)
	p.button(".detail", "Rotate")
	p.button("dialog", "Rotate")
	rotated := p.secret()
	if status, _ := s.as(t, rotated).do("GET", "/account", nil); status != http.StatusOK || rotated == made {
		t.Errorf("the new secret gets %d", status)
	}
	p.wait(`document.querySelector(".detail code")?.textContent === "` + rotated[:17] + `"`)
	p.button(".detail", "Revoke")
	p.button("dialog", "Cancel")
	p.closed()
	p.wait(`document.activeElement.textContent === "Revoke"`)
	p.confirm(".detail", "Revoke")
	p.wait(`document.querySelector(".detail dl").textContent.includes("Revoked") && document.querySelector(".rows .chip-revoked")`)

	// The key of the console itself.
	p.click(`.rows > li:first-child a`)
	p.wait(`document.querySelector(".detail").textContent.includes("The console uses this key")`)
	p.button(".detail", "Rotate")
	p.button("dialog", "Rotate")
	if want, got := masked(p.secret()), p.text("#session code"); got != want {
		t.Errorf("the sidebar shows %s, want %s", got, want)
	}
	p.wait(`document.querySelectorAll(".rows > li").length === 2 && document.querySelector(".detail").textContent.includes("The console uses this key")`)
	p.button(".detail", "Revoke")
	p.shows("dialog", "and asks for another one afterwards")
	p.button("dialog", "Revoke")
	p.wait(`document.querySelector("dialog .problem-note")?.textContent.includes("last_admin_key") && document.activeElement.textContent === "Revoke"`)
	p.expectFailures("409")
	p.button("dialog", "Cancel")

	// A form ends with its view.
	p.click(`#sidebar a[href^="#events"]`)
	p.wait(`document.querySelector("h1").textContent === "Events"`)
	p.click(`#sidebar a[href^="#keys"]`)
	p.button(".tools", "New API key")
	p.do(chromedp.NavigateBack())
	p.wait(`document.querySelector("h1").textContent === "Events"`)
	p.closed()
}

func (s *shop) scopes(t *testing.T) {
	_, key := s.sandbox(t, "scopes", "empty")
	_, made := s.as(t, key).do("POST", "/account/api-keys", object{"name": "reader", "scope": "read"})
	p := s.signIn(t, made["secret"].(string), "", look{})
	p.wait(`document.querySelector("h1").textContent === "Events" && document.querySelector(".state.live")`)
	for _, part := range []string{"requests", "webhooks", "sandboxes", "keys"} {
		p.click(`#sidebar a[href^="#` + part + `"]`)
		p.wait(`document.querySelector(".notice")?.textContent.includes("needs an API key of the scope admin. Your key has the scope read.")`)
		p.counts(0, "main :is(button, input)")
	}
}

func (s *shop) endedSandbox(t *testing.T) {
	id, key := s.sandbox(t, "ended", "empty")
	p := s.signIn(t, s.key, "#requests/"+id, look{})
	p.wait(`document.querySelector(".state.live")`)
	q := s.signIn(t, key, "#events", look{})
	q.wait(`document.querySelector(".state.live")`)
	s.as(t, s.key).do("DELETE", "/sandboxes/"+id, nil)
	q.wait(`document.querySelector(".key-form .problem-note")?.textContent.includes("its sandbox has ended")`)
	q.expectFailures("401", "ERR_")
	p.do(chromedp.Reload())
	p.wait(`document.querySelector(".empty .problem-note")?.textContent.includes("sandbox_not_found")`)
	p.expectFailures("404")
}

func (s *shop) revokedKey(t *testing.T) {
	_, key := s.sandbox(t, "revoked", "empty")
	issue := func() (secret string, revoke func()) {
		_, made := s.as(t, key).do("POST", "/account/api-keys", object{"name": "short", "scope": "admin"})
		return made["secret"].(string), func() { s.as(t, key).do("DELETE", fmt.Sprintf("/account/api-keys/%.0f", made["id"]), nil) }
	}
	secret, revoke := issue()
	p := s.signIn(t, secret, "#webhooks", look{})
	p.wait(`document.querySelector(".empty p")`)
	p.button(".tools", "New webhook")
	revoke()
	p.fillIn("dialog", "url", "https://example.com/")
	p.button("dialog", "Create")
	p.wait(`!document.querySelector("dialog[open]") && document.querySelector(".key-form .problem-note")?.textContent.includes("does not work any more") && document.activeElement.matches(".key-form input")`)
	p.expectFailures("401", "400")

	// A new secret stays until the reader has stored it.
	_, hook := s.as(t, key).do("POST", "/webhooks", object{"url": "https://example.com/", "types": []string{"order.placed"}})
	secret, revoke = issue()
	p = s.signIn(t, secret, "#webhooks//"+hook["id"].(string), look{})
	p.button(".detail", "Rotate secret")
	p.button("dialog", "Rotate secret")
	p.wait(`document.querySelector("dialog[open] .secret code")`)
	revoke()
	p.wait(`document.querySelector(".key-form .problem-note")`)
	p.expectFailures("401")
	p.wantSecret("whsec_")
}

func (s *shop) lostServer(t *testing.T) {
	id, key := s.sandbox(t, "lost", "empty")
	var isAway atomic.Bool // but it keeps its port
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isAway.Load() {
			panic(http.ErrAbortHandler)
		}
		s.server.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close) // after the tab
	t.Cleanup(server.CloseClientConnections)
	p := s.signIn(t, s.key, "#requests/"+id, look{url: server.URL, width: 900, height: 900})
	s.as(t, key).do("GET", "/pets", nil)
	p.rows(1)
	p.wait(`document.querySelector(".state.live")`)
	isAway.Store(true)
	server.CloseClientConnections()
	p.wait(`/Disconnected. Trying again in \d+ s./.test(document.querySelector(".state").textContent)`)
	p.click(".rows > li a") // also says that the server is away
	p.wait(`document.querySelector(".detail .problem-note")?.textContent.includes("does not respond")`)
	has(p, true, `document.querySelector(".detail .back").checkVisibility() && document.activeElement.matches(".detail")`)
	s.as(t, key).do("GET", "/categories", nil)
	s.as(t, key).do("GET", "/messages", nil)
	isAway.Store(false)
	p.wait(`document.querySelector(".state.live")`)
	p.rows(3)
	p.wait(`document.querySelector(".detail h2")?.textContent.includes("/pets")`)
	if got := p.texts(".rows .row-text"); strings.Join(got, " ") != "/messages /categories /pets" {
		t.Errorf("the rows are %q", got)
	}
	p.button(".detail", "All requests")
	p.wait(`document.querySelector(".rows").checkVisibility()`)
	p.expectFailures("ERR_")
}

// lostResponses ends a connection inside the body of a response.
func (s *shop) lostResponses(t *testing.T) {
	id, key := s.sandbox(t, "lost responses", "empty")
	var lost atomic.Bool        // whether the next response of the list, or to a form, is lost
	var silent atomic.Bool      // whether no response comes
	seen := make(chan struct{}) // closed after the note, which the page shows until the list has a response
	server := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		if silent.Load() {
			<-r.Context().Done()
			return
		}
		isList := strings.HasSuffix(r.URL.Path, "/requests")
		if isLost := (isList || r.Method == http.MethodPost) && lost.CompareAndSwap(true, false); !isLost {
			if isList {
				<-seen
			}
			s.server.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, `[{"id":`)
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		panic(http.ErrAbortHandler)
	})
	see := sync.OnceFunc(func() { close(seen) })
	t.Cleanup(see)
	lost.Store(true)
	p := s.signIn(t, key, "#requests/"+id, look{url: server.URL})
	t.Cleanup(func() { p.expectFailures("ERR_") })
	p.wait(`document.querySelector(".empty .problem-note")?.textContent.includes("The connection is lost. Trying again in 1 s.")`)
	see()
	p.wait(`document.querySelector(".state.live")`)
	p.click(`#sidebar a[href^="#keys"]`)
	p.rows(1)
	p.button(".tools", "New API key")
	p.fillIn("dialog", "name", "lost")
	p.fillIn("dialog", "scope", "read")
	lost.Store(true)
	p.button("dialog", "Create")
	p.wait(`document.querySelector("dialog[open] .problem-note")?.textContent.trim() === "The connection is lost."`)
	p.button("dialog", "Create")
	p.wantSecret("petstore_")
	p.rows(2)

	// The console does not wait forever: in this test, 300 ms.
	get[bool](p, `!(window.timeout = AbortSignal.timeout)`)
	get[bool](p, `!(AbortSignal.timeout = (most) => window.timeout.call(AbortSignal, most / 100))`)
	silent.Store(true)
	p.click(`#sidebar a[href^="#events"]`)
	p.wait(`document.querySelector(".empty .problem-note")?.textContent.includes("The server does not respond. Trying again in")`)
	get[bool](p, `!(AbortSignal.timeout = window.timeout)`)
	silent.Store(false)
	p.wait(`document.querySelector(".state.live")`)
}

// consoleWithoutData checks that the console says when its data is missing, and keeps the key.
func (s *shop) consoleWithoutData(t *testing.T) {
	var status atomic.Int32
	server := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		switch now := int(status.Load()); {
		case !strings.HasSuffix(r.URL.Path, "/reference.json") || now == http.StatusOK:
			s.server.ServeHTTP(w, r)
		case now == 0:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(now)
		}
	})
	p := s.visit(t, "/console", look{url: server.URL})
	t.Cleanup(func() { p.expectFailures("404", "ERR_") })
	p.wait(`document.querySelector(".key-form input")`)
	p.enterKey(s.key)
	p.wait(`document.querySelector(".key-form .problem-note")?.textContent.includes("The console cannot load. Reload the page. Trying again in")`)
	status.Store(http.StatusNotFound)
	get[bool](p, fmt.Sprintf(`(sessionStorage.setItem("petstore.key", %q), true)`, s.key))
	p.do(chromedp.Reload())
	p.wait(`document.querySelector("#sign-in .problem-note")?.textContent.trim() === "The console cannot load. Reload the page."`)
	status.Store(http.StatusOK)
	p.do(chromedp.Reload())
	p.wait(`document.querySelector("main.console h1")`)
}

func (s *shop) consoleKeyboard(t *testing.T) {
	id, key := s.sandbox(t, "keyboard", "empty")
	for _, path := range []string{"/pets", "/categories", "/messages"} {
		s.as(t, key).do("GET", path, nil)
	}
	p := s.signIn(t, s.key, "#requests/"+id, look{})
	p.rows(3)
	get[bool](p, `(document.querySelector(".theme-button").focus(), true)`)
	seen := []string{}
	for range 18 {
		p.press(kb.Tab)
		seen = append(seen, get[string](p, `document.activeElement.labels?.[0]?.textContent || document.activeElement.textContent`))
		if outline := get[string](p, "getComputedStyle(document.activeElement).outlineStyle"); outline == "none" {
			t.Errorf("the focus is not visible on %s", seen[len(seen)-1])
		}
		if get[bool](p, `document.activeElement.matches(".rows a")`) {
			break
		}
	}
	p.contains("the keyboard's way", strings.Join(seen, "\n"),
		"Store", "Requests", "API keys", "Sign out", "Pause", "Save HAR", "Clear", "Operation", "Idempotency-Key")
	p.press(kb.ArrowDown)
	p.press(kb.ArrowDown)
	p.press(kb.ArrowUp)
	p.press(kb.Enter)
	p.wait(`document.querySelector(".detail h2")?.textContent.includes("/categories") && document.activeElement.matches(".rows [aria-current]")`)
	p.press(kb.Tab) // past the rows, to the pages or the exchange
	if get[bool](p, `document.activeElement.matches(".rows a")`) {
		t.Error("each row is a stop of the Tab key")
	}
	// Without details, the keyboard continues at the row.
	get[bool](p, `(document.querySelector(".detail button").focus(), location.hash = location.hash.replace(/\/req_.*/, ""), true)`)
	p.wait(`document.activeElement.matches(".rows a") && document.activeElement.textContent.includes("/categories") && !document.querySelector(".split.chosen")`)
	// The skip link does not change the place.
	get[bool](p, `(document.querySelector(".skip").focus(), true)`)
	p.press(kb.Enter)
	p.wait(`document.activeElement.id === "content" && location.hash.startsWith("#requests/")`)
	// A dialog closes with Escape, and the focus returns.
	get[bool](p, `([...document.querySelectorAll(".tools button")].find((e) => e.textContent === "Clear").focus(), true)`)
	p.press(kb.Enter)
	p.wait(`document.querySelector("dialog[open]")?.contains(document.activeElement)`)
	p.press(kb.Escape)
	p.wait(`!document.querySelector("dialog") && document.activeElement.textContent === "Clear"`)
	p.press("/")
	p.wait(paletteIsOpen)
	p.press(kb.Escape)

	// Arrow keys move through the choices of a select, and only a button loads an exercise.
	get[bool](p, fmt.Sprintf(`(location.hash = "#sandboxes/%s/%[1]s", true)`, id))
	p.wait(`[...document.querySelectorAll(".detail label")].some((e) => e.textContent === "Exercise" && e.checkVisibility())`)
	exercise := fieldOf(".detail", "Exercise")
	p.wait(`[...document.querySelectorAll(".detail button")].find((e) => e.textContent === "Load exercise").disabled`)
	get[bool](p, `(`+exercise+`.focus(), true)`)
	p.press(kb.ArrowDown)
	p.press(kb.ArrowDown)
	has(p, 2, exercise+`.selectedIndex`)
	if _, rules := s.as(t, key).do("GET", "/sandboxes/current/faults", nil); encoded(rules["rules"]) != "[]" {
		t.Errorf("after two arrow keys, the rules are %s", encoded(rules["rules"]))
	}
	p.button(".detail", "Load exercise")
	p.wait(`document.querySelector(".detail form > .hint").textContent === "Loaded " + ` + exercise + `.value + "."`)
	p.click(`#sidebar a[href^="#requests"]`)
	p.rows(4)
	get[bool](p, `(document.querySelector("#store-select").focus(), true)`)
	other, _ := s.sandbox(t, "made later", "empty")
	p.press(kb.ArrowUp)
	p.wait(fmt.Sprintf(`!document.querySelector('#sidebar a[href^="#requests"]').hash.includes(%q)`, id))
	has(p, "store-select", "document.activeElement.id")
	p.press(kb.Home) // to the account, with a new list
	p.wait(fmt.Sprintf(`document.querySelector("#store-select").textContent.includes(%q)`, other))
	has(p, "store-select", "document.activeElement.id")
}

// consoleLooks takes screenshots, and runs axe-core on each part.
func (s *shop) consoleLooks(t *testing.T) {
	id, key := s.sandbox(t, "shop-tests", "shop")
	receiver := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		var event struct{ Type string }
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil || event.Type == "category.created" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	_, hook := s.as(t, key).do("POST", "/webhooks", object{"url": receiver.URL + "/hooks/petstore", "types": []string{"*"}, "description": "The warehouse"})
	s.as(t, key).do("POST", "/webhooks", object{"url": "https://example.com/orders", "types": []string{"order.placed"}})
	s.as(t, key).do("PUT", "/sandboxes/current/faults", object{"rules": []object{{"operation": "placeOrder", "effect": "status", "status": 503, "first": 1}, {"operation": "*", "effect": "delay", "delayMs": 300, "probability": 0.1, "seed": 42}}})
	for i := range 4 {
		s.as(t, key).do("GET", "/pets?status=available&limit=20&sort=-name", nil)
		s.as(t, key).do("POST", "/store/orders", object{"petId": i + 1, "quantity": 2}, "Idempotency-Key", fmt.Sprintf("order-%d", i/2))
		s.as(t, key).do("POST", "/categories", object{"name": fmt.Sprintf("Category %d", i/2), "description": "Made by a test"})
		s.as(t, key).do("GET", "/pets/99999", nil)
		s.as(t, key).do("POST", "/pets", object{"name": "", "categoryId": "x"})
		s.as(t, key).do("POST", "/messages?token="+key, object{"message": "Hello"})
	}
	for _, how := range []look{{width: 1440, height: 900}, {width: 1440, height: 900, dark: true}, {width: 900, height: 900}, {width: 390, height: 844}, {width: 390, height: 844, dark: true}} {
		name := fmt.Sprintf("%d-dark-%t", how.width, how.dark)
		p := s.visit(t, "/console", how)
		p.wait(`document.querySelector(".key-form input")`)
		look := func(part string) {
			p.fits(name)
			p.keep("console-" + part + "-" + name)
			p.wantAccessible(t, part+", "+name)
		}
		look("welcome")
		get[bool](p, fmt.Sprintf(`(sessionStorage.setItem("petstore.key", %q), sessionStorage.setItem("petstore.key.%s", %q), true)`, s.key, id, key))
		to := func(place string, until string) {
			p.do(chromedp.Navigate(s.url + "/console?" + fmt.Sprint(len(place)) + "#" + place))
			p.wait(`document.querySelector("main.console") && ` + until)
		}
		to("requests/"+id, `document.querySelector(".state.live") && document.querySelectorAll(".rows > li").length > 20`)
		look("requests")
		p.click(`.rows > li:has(.chip-fault) a`)
		p.wait(`document.querySelector(".detail .panel")`)
		look("fault")
		to("requests/"+id+"?operation=queueMessage", `document.querySelectorAll(".rows > li").length === 4`)
		p.click(`.rows > li a`)
		p.wait(`document.querySelector(".detail .panel")`)
		get[bool](p, `(document.querySelectorAll(".detail details").forEach((e) => (e.open = true)), true)`)
		look("exchange")
		to("events/"+id, `document.querySelector(".state.live")`)
		p.click(`.rows > li a`)
		p.wait(`document.querySelector(".detail .panel")`)
		look("events")
		to("webhooks/"+id+"/"+hook["id"].(string), `document.querySelector(".deliveries summary")`)
		p.click(".deliveries li:has(.status-5xx) summary")
		look("webhooks")
		p.button(".detail", "Edit")
		p.wait(`document.querySelector("dialog[open]")`)
		look("edit")
		to("sandboxes/"+id+"/"+id, `document.querySelectorAll(".rule").length === 2`)
		look("sandboxes")
		to("keys/"+id, `document.querySelector(".rows > li")`)
		p.click(".rows > li a")
		look("keys")
		to("requests", `document.querySelector(".notice .rows")`)
		look("choose")
		if how.width == 390 {
			p.click(".menu-button")
			p.wait(`getComputedStyle(document.querySelector("#sidebar")).visibility === "visible"`)
			look("menu")
		}
		p.expectFailures("ERR_ABORTED")
	}
}
