//go:build browser

package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"petstore/internal/tools/need"
)

func TestForms(t *testing.T) {
	t.Parallel()
	s := open(t)
	t.Run("samples: languages, copy, the reader's values", s.samples)
	t.Run("samples: the language is kept on all pages", s.choiceIsKept)
	t.Run("the key is masked, but copied in full", s.maskedKey)
	t.Run("fields, JSON and samples stay in step", s.inStep)
	t.Run("bad input is said at the field and sent", s.badInput)
	t.Run("forms send requests", s.sends)
	t.Run("ids of responses are the next values", s.knownIDs)
	t.Run("streams and long polls stop", s.streams)
	t.Run("the server is away", s.away)
	t.Run("a page comes back", s.comesBack)
	t.Run("the data of the reference is away", s.withoutData)
	t.Run("no form without a panel", s.withoutForm)
	t.Run("keyboard", s.formKeyboard)
	t.Run("hostile values stay text", s.hostileValues)
	t.Run("forced colors", s.forcedColors)
	t.Run("looks", s.formLooks)
}

// wantAccessible runs axe-core.
func (p *tab) wantAccessible(t *testing.T, where string) {
	t.Helper()
	axe, err := os.ReadFile(*axePath)
	if err != nil {
		t.Fatalf("-axe names axe.min.js of the npm package axe-core; make browser fetches it: %v", err)
	}
	get[bool](p, string(axe)+"; true")
	found := get[struct {
		Violations []struct {
			ID, Impact, Help string
			Nodes            []struct{ HTML, FailureSummary string }
		}
		Passes []struct{ ID string }
	}](p, `axe.run(document, { resultTypes: ["violations"] })`)
	if len(found.Passes) < 20 {
		t.Errorf("%s: axe checked only %d rules", where, len(found.Passes))
	}
	for _, v := range found.Violations {
		t.Errorf("%s: %s %s (%s), %d times, as %+v", where, v.Impact, v.ID, v.Help, len(v.Nodes), v.Nodes[0])
	}
}

// openForm opens the form of an operation.
func (p *tab) openForm(id string) {
	p.t.Helper()
	p.click("#" + id + " .try-button")
	p.wait(fmt.Sprintf(`document.querySelector("#%s .try-form")`, id))
}

// expectFailures lets the browser report responses with these statuses in its console.
func (p *tab) expectFailures(statuses ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = slices.DeleteFunc(p.faults, func(fault string) bool {
		return slices.ContainsFunc(statuses, func(status string) bool { return strings.Contains(fault, status) })
	})
}

// control is an expression for the control of a form with this label.
func control(id, label string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("#%s .try-form label")].find((label) => label.textContent === %q).control`, id, label)
}

// enter replaces the text of a field.
func (p *tab) enter(id, label, text string) {
	p.t.Helper()
	get[bool](p, fmt.Sprintf(`(() => {
		const control = %s;
		control.closest("details")?.setAttribute("open", "");
		control.focus();
		control.select?.();
		return true;
	})()`, control(id, label)))
	if text == "" {
		p.press(kb.Backspace)
		return
	}
	p.insert(text)
}

// insert enters text, as an input method or a clipboard does.
func (p *tab) insert(text string) {
	p.t.Helper()
	p.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, input.InsertText, input.InsertTextParams{Text: text})
		return err
	}))
}

// sample returns the sample of an operation.
func (p *tab) sample(id string) string {
	p.t.Helper()
	return p.text("#" + id + " .samples code")
}

// choose selects a language and waits for its sample.
func (p *tab) choose(id, language, begin string) {
	p.t.Helper()
	p.click(fmt.Sprintf("#%s .samples [role=tab]:nth-child(%d)", id, 1+slices.Index(languages, language)))
	p.wait(fmt.Sprintf(`document.querySelector("#%s .samples code").textContent.includes(%q)`, id, begin))
}

var languages = []string{"cURL", "JavaScript", "Python", "Go", "CLI"}

// begins are texts of the samples of each language.
var begins = map[string]string{
	"cURL": "curl ", "JavaScript": "await fetch", "Python": "import urllib.request", "Go": "package main", "CLI": "petstore api ",
}

// authorize enters the reader's key.
func (p *tab) authorize(key, baseURL string) {
	p.t.Helper()
	p.click(".bar .key-button")
	p.wait(`document.activeElement.type === "password"`)
	p.write("dialog input[type=password]", key)
	p.write("dialog input[inputmode=url]", baseURL)
	p.press(kb.Enter)
	p.wait(`!document.querySelector(".dialog") && document.querySelector(".bar .key-button").textContent === "Change key"`)
}

// send sends the form and returns the text of the outcome.
func (p *tab) send(id string) string {
	p.t.Helper()
	get[bool](p, fmt.Sprintf(`(document.querySelector("#%s .outcome")?.remove(), true)`, id))
	p.click("#" + id + " .send-button")
	p.wait(fmt.Sprintf(`document.querySelector("#%s .outcome") && !document.querySelector("#%[1]s .send-button").disabled`, id))
	return p.text("#" + id + " .outcome")
}

// sends sends the form, and fails the test unless its outcome has this beginning and all parts.
func (p *tab) sends(id, beginning string, parts ...string) {
	p.t.Helper()
	got := p.send(id)
	if !strings.HasPrefix(got, beginning) {
		p.t.Errorf("%s: the outcome of %s is %q, want %q at its beginning", p.place(), id, got, beginning)
	}
	p.contains("the outcome of "+id, got, parts...)
}

// sampleHas fails the test unless the sample of an operation has all parts.
func (p *tab) sampleHas(id string, parts ...string) {
	p.t.Helper()
	p.contains("the sample of "+id, p.sample(id), parts...)
}

func (s *shop) samples(t *testing.T) {
	p := s.visit(t, "/docs/reference/messages", look{})
	p.allowClipboard()
	need.Same(t, languages, p.texts("#queueMessage .samples [role=tab]"), "languages")
	first := p.sample("queueMessage")
	for _, language := range languages {
		p.choose("queueMessage", language, begins[language])
		p.sampleHas("getMessage", begins[language])
		p.counts(1, "#queueMessage .samples pre")
	}
	p.press(kb.Home)
	p.press(kb.ArrowLeft) // from the first to the last
	has(p, "CLI", "document.activeElement.textContent")
	if left := get[bool](p, `document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", altKey: true, bubbles: true, cancelable: true }))`); !left || get[string](p, "document.activeElement.textContent") != "CLI" {
		t.Error("the tabs take the keys of the browser for the page before")
	}
	p.choose("queueMessage", "cURL", begins["cURL"])
	if got := p.sample("queueMessage"); got != first {
		t.Errorf("the page made another sample than the spec has:\n%s", got)
	}

	p.authorize(s.key, "https://petstore.example/v1/")
	for language, want := range map[string][]string{
		"cURL":       {`"https://petstore.example/v1/messages"`, `"Authorization: Bearer ` + masked(s.key) + `"`},
		"JavaScript": {`const url = "https://petstore.example/v1";`, `const key = "` + masked(s.key) + `";`},
		"Python":     {`url = "https://petstore.example/v1"`, `key = "` + masked(s.key) + `"`},
		"Go":         {`url := "https://petstore.example/v1/messages"`, `key := "` + masked(s.key) + `"`},
		"CLI":        {"export PETSTORE_URL=https://petstore.example/v1\n", "export PETSTORE_API_KEY=" + masked(s.key) + "\n"},
	} {
		p.choose("queueMessage", language, begins[language])
		shown := p.sample("queueMessage")
		p.contains("the sample in "+language, shown, want...)
		if language != "CLI" && strings.Contains(shown, "PETSTORE_") || strings.Contains(shown, "import os") || strings.Contains(shown, "os.Getenv") {
			t.Errorf("the sample still needs the environment:\n%s", shown)
		}
		// With the browser's clipboard, and without one.
		for _, clipboard := range []string{"true", "!(navigator.clipboard.writeText = () => Promise.reject(new Error()))"} {
			get[bool](p, `navigator.clipboard.writeText("before").then(() => true)`)
			get[bool](p, clipboard)
			p.copies(`document.querySelector("#queueMessage .samples .copy")`, func() { p.click("#queueMessage .samples .copy") })
			if got := get[string](p, "navigator.clipboard.readText()"); got != strings.ReplaceAll(shown, masked(s.key), s.key) || !strings.Contains(got, s.key) {
				t.Errorf("copied %q", got)
			}
			get[bool](p, "delete navigator.clipboard.writeText")
			p.wait(`document.querySelector("#queueMessage .samples .copy").textContent === "Copy"`)
		}
	}
}

func (s *shop) choiceIsKept(t *testing.T) {
	p := s.visit(t, "/docs/reference/pets", look{})
	p.choose("listPets", "Python", begins["Python"])
	p.authorize(s.key, "")
	p.click(".theme-button")
	p.do(chromedp.Navigate(s.url + "/docs/reference/store"))
	p.wait(`document.querySelector("#placeOrder .samples [aria-selected=true]")?.textContent === "Python"`)
	p.wait(fmt.Sprintf(`document.querySelector("#placeOrder .samples code").textContent.includes(%q)`, `key = "`+masked(s.key)))
	has(p, "dark", "document.documentElement.dataset.theme")
	if stored := get[string](p, "JSON.stringify(localStorage)"); strings.Contains(stored, s.key) {
		t.Error("the key is stored beyond the session")
	}

	// The guides have tabs for some of the languages, and show one.
	p.do(chromedp.Navigate(s.url + "/docs/quickstart"))
	p.wait(`document.querySelector(".bar .key-button")`)
	type tabs struct {
		Languages []string
		Selected  string
		Code      int
	}
	for _, path := range written {
		p.do(chromedp.Navigate(s.url + path))
		p.wait(`document.readyState === "complete" && document.querySelector(".bar .key-button")`)
		for _, one := range get[[]tabs](p, `[...document.querySelectorAll(".tabs")].map((place) => ({
			languages: [...place.querySelectorAll("[role=tab]")].map((tab) => tab.textContent),
			selected: place.querySelector("[aria-selected=true]").textContent,
			code: place.querySelectorAll("code").length,
		}))`) {
			want := one.Languages[0]
			if slices.Contains(one.Languages, "Python") {
				want = "Python"
			}
			if one.Selected != want || one.Code != 1 {
				t.Errorf("%s: the tabs are %+v, want %s", path, one, want)
			}
		}
	}

	get[bool](p, `(sessionStorage.setItem("petstore.key.sbx_1", "of a sandbox"), true)`)
	p.click(".bar .key-button")
	p.click(".dialog .forget")
	p.wait(`!sessionStorage.getItem("petstore.key.sbx_1") && !sessionStorage.getItem("petstore.key") && document.querySelector(".bar .key-button").textContent === "Add API key"`)
}

// maskedKey checks that the page never shows the reader's key, but copies it in full.
func (s *shop) maskedKey(t *testing.T) {
	p := s.visit(t, "/docs/reference/accounts", look{})
	p.allowClipboard()
	hidden := func(where string) {
		t.Helper()
		shown := get[string](p, `[document.title, location.href, document.documentElement.outerHTML, document.body.innerText,
			...[...document.querySelectorAll("input:not([type=password]), textarea, select")].map((e) => e.value)].join("\n")`)
		if at := strings.Index(shown, s.key[13:]); at >= 0 {
			t.Errorf("%s: the key is shown: %q", where, shown[max(0, at-200):at])
		}
	}
	p.authorize(s.key, "")
	for _, language := range languages {
		p.choose("getAccount", language, masked(s.key))
		hidden("the sample in " + language)
		p.copies(`document.querySelector("#getAccount .samples .copy")`, func() { p.click("#getAccount .samples .copy") })
		if got := get[string](p, "navigator.clipboard.readText()"); !strings.Contains(got, s.key) || strings.Contains(got, "•") {
			t.Errorf("copied %q", got)
		}
	}
	p.openForm("getAccount")
	has(p, "Sends the key "+masked(s.key), `document.querySelector("#getAccount .key-state").textContent`)
	p.sends("getAccount", "200")
	p.click("#getAccount .outcome summary")
	hidden("the form and its outcome")

	p.click("#getAccount .key-button")
	p.wait(fmt.Sprintf(`document.querySelector(".dialog input[type=password]").value === %q`, s.key))
	hidden("the dialog")
	p.press(kb.Escape)
	p.wait(`!document.querySelector(".dialog") && document.activeElement.matches("#getAccount .key-button")`)

	// A short key is masked completely.
	p.authorize("petstore_short", "")
	has(p, "Sends the key ••••", `document.querySelector("#getAccount .key-state").textContent`)
}

func (s *shop) inStep(t *testing.T) {
	p := s.visit(t, "/docs/reference/store", look{})
	p.openForm("placeOrder")
	raw := func() map[string]any {
		t.Helper()
		var body map[string]any
		if text := get[string](p, `document.querySelector("#placeOrder .raw").value`); json.Unmarshal([]byte(text), &body) != nil {
			t.Fatalf("the JSON is %q", text)
		}
		return body
	}
	value := func(label string) string { return get[string](p, control("placeOrder", label)+".value") }

	// A field changes the JSON and all samples.
	p.enter("placeOrder", "quantity", "7")
	if got := raw()["quantity"]; got != 7.0 {
		t.Errorf("the JSON has the quantity %v", got)
	}
	for language, want := range map[string]string{
		"cURL": `"quantity": 7`, "JavaScript": "quantity: 7", "Python": `"quantity": 7`, "Go": `"quantity": 7`, "CLI": "quantity=7",
	} {
		p.choose("placeOrder", language, begins[language])
		p.sampleHas("placeOrder", want)
	}
	p.choose("placeOrder", "cURL", begins["cURL"])
	p.enter("placeOrder", "shipDate", "")
	if _, has := raw()["shipDate"]; has {
		t.Error("an empty field is in the JSON")
	}
	p.enter("placeOrder", "Idempotency-Key", "one")
	p.sampleHas("placeOrder", "Idempotency-Key: one")

	// The JSON changes the fields and all samples.
	p.click("#placeOrder .switch button:last-child")
	p.wait(`document.querySelector("#placeOrder .raw").checkVisibility() && !document.querySelector("#placeOrder .body-fields").checkVisibility()`)
	p.write("#placeOrder .raw", `{"petId": 9007199254740993, "quantity": 2, "gift": true}`)
	p.wait(`document.querySelector("#placeOrder .samples code").textContent.includes("9007199254740993")`)
	if got := value("petId") + " " + value("quantity") + " " + value("shipDate"); got != "9007199254740993 2 " {
		t.Errorf("the fields are %q", got)
	}
	p.choose("placeOrder", "JavaScript", "9007199254740993")
	p.click("#placeOrder .switch button:first-child")
	p.shows("#placeOrder .body-fields", "The JSON also has gift.")
	p.enter("placeOrder", "quantity", "3")
	want := map[string]any{"petId": 9007199254740992.0, "quantity": 3.0, "gift": true}
	need.Same(t, want, raw(), "the JSON")

	// Invalid JSON can be sent, and the fields wait.
	p.click("#placeOrder .switch button:last-child")
	p.write("#placeOrder .raw", `{"petId": `)
	p.wait(`document.querySelector("#placeOrder .body .field-error:not(:empty)").textContent.startsWith("Not valid JSON")`)
	if !get[bool](p, `document.querySelector("#placeOrder .switch button").disabled`) {
		t.Error("the fields can be shown for invalid JSON")
	}
	p.click("#placeOrder .buttons .plain-button:last-child") // resets
	if got := raw()["quantity"]; got != 2.0 {
		t.Errorf("after a reset, the quantity is %v", got)
	}

	// A long text keeps its lines.
	p.do(chromedp.Navigate(s.url + "/docs/reference/messages"))
	p.wait(`document.querySelector("#queueMessage .samples [role=tab]")`)
	p.openForm("queueMessage")
	p.enter("queueMessage", "message", "one\ntwo")
	p.sampleHas("queueMessage", `"one\ntwo"`)

	// Choices.
	p.do(chromedp.Navigate(s.url + "/docs/reference/pets"))
	p.wait(`document.querySelector("#listPets .samples [role=tab]")`)
	p.choose("listPets", "cURL", begins["cURL"])
	p.openForm("listPets")
	p.click("#listPets .optional summary")
	p.click(`#listPets input[value="available"]`)
	p.click(`#listPets input[value="sold"]`)
	p.enter("listPets", "name", "é & o")
	p.enter("listPets", "id", "1, 2")
	get[bool](p, `(() => { const select = `+control("listPets", "sort")+`; select.value = "-id"; select.dispatchEvent(new Event("change")); return true; })()`)
	p.sampleHas("listPets", "-d status=available \\\n  -d status=sold", "-d id=1 \\\n  -d id=2",
		"--data-urlencode 'name=é & o'", "-d sort=-id", "-d limit=")
}

func (s *shop) badInput(t *testing.T) {
	p := s.visit(t, "/docs/reference/store", look{})
	p.authorize(s.key, "")
	p.openForm("placeOrder")
	complaint := func(label string) string {
		return get[string](p, control("placeOrder", label)+`.closest(".field").querySelector(".field-error").textContent`)
	}
	for _, bad := range []struct{ label, text, want string }{
		{"petId", "", "Required."},
		{"petId", "0", "Must be 1 or more."},
		{"petId", "x", "Must be an integer."},
		{"quantity", "1000001", "Must be 1000000 or less."},
		{"shipDate", "2026-12-24T09:30Z", "Must be a time such as 2026-12-24T09:30:00Z."},
		{"shipDate", "2026-12-24 09:30:00Z", "Must be a time such as 2026-12-24T09:30:00Z."},
		{"Idempotency-Key", "two words", "Does not have the required form."},
		{"Idempotency-Key", "a ключ", `A header cannot have "ключ".`},
	} {
		p.enter("placeOrder", bad.label, bad.text)
		if got := complaint(bad.label); got != bad.want {
			t.Errorf("%s %q: %q, want %q", bad.label, bad.text, got, bad.want)
		}
		if got := get[string](p, control("placeOrder", bad.label)+".ariaInvalid"); got != "true" {
			t.Errorf("%s %q: aria-invalid is %s", bad.label, bad.text, got)
		}
	}
	if got := p.send("placeOrder"); !strings.HasPrefix(got, "Not sent: ") || strings.Contains(got, "server") {
		t.Errorf("with a header that no browser sends: %s", got)
	}
	p.enter("placeOrder", "Idempotency-Key", "")
	if got := complaint("Idempotency-Key"); got != "" {
		t.Errorf("an optional field that is empty: %q", got)
	}
	p.sends("placeOrder", "", "400", "validation_failed", `"/petId"`, `"/quantity"`, `"/shipDate"`,
		"How to fix validation_failed")
	p.expectFailures("400")
}

func (s *shop) sends(t *testing.T) {
	p := s.visit(t, "/docs/reference/categories", look{})
	p.openForm("createCategory")
	if got := p.text("#createCategory .key-state"); !strings.HasPrefix(got, "No API key") {
		t.Errorf("without a key, the form says %q", got)
	}
	p.sends("createCategory", "401")
	p.expectFailures("401")
	p.authorize(s.key, "")
	p.sends("createCategory", "", "201 Created in ", "ms", `"name": "Reptiles"`, "location", "x-request-id")
	p.sends("createCategory", "409")
	p.expectFailures("409")

	p.do(chromedp.Navigate(s.url + "/docs/reference/meta"))
	p.wait(`document.querySelector("#getLiveness .try-button")`)
	p.openForm("getLiveness")
	p.counts(0, "#getLiveness .key")
	p.sends("getLiveness", "200")
	p.openForm("getOpenAPIYAML")
	if got := p.send("getOpenAPIYAML"); !strings.Contains(got, "openapi: 3.0.3") || !strings.Contains(got, "The first 200,000 characters.") {
		t.Errorf("GET /openapi.yaml: %s", got[:min(len(got), 300)])
	}
}

// knownIDs checks that an id of a response is the value of later forms.
func (s *shop) knownIDs(t *testing.T) {
	p := s.visit(t, "/docs/reference/messages", look{})
	p.authorize(s.key, "")
	p.openForm("queueMessage")
	p.sends("queueMessage", "202")
	p.openForm("getMessage")
	p.sends("getMessage", "200")

	id, key := s.sandbox(t, "known-ids", "shop")
	s.as(t, key).do("GET", "/pets?limit=2", nil)
	p.do(chromedp.Navigate(s.url + "/docs/reference/clients"))
	p.wait(`document.querySelector("#listRecordedRequests .try-button")`)
	p.openForm("listRecordedRequests")
	p.enter("listRecordedRequests", "sandboxId", id)
	p.enter("listRecordedRequests", "Prefer", "wait=30")
	p.sends("listRecordedRequests", "", `"req_`)
	p.openForm("getRecordedRequest")
	p.enter("getRecordedRequest", "sandboxId", id)
	p.sends("getRecordedRequest", "200")
}

func (s *shop) streams(t *testing.T) {
	p := s.visit(t, "/docs/reference/events", look{})
	p.authorize(s.key, "")
	p.openForm("listEvents")
	get[bool](p, `(() => { const select = `+control("listEvents", "Accept")+`; select.value = "text/event-stream"; select.dispatchEvent(new Event("change")); return true; })()`)
	for language, want := range map[string]string{"cURL": "--no-buffer", "JavaScript": "TextDecoderStream", "Python": "for line in response", "Go": `"Accept", "text/event-stream"`, "CLI": "-H 'Accept: text/event-stream'"} {
		p.choose("listEvents", language, want)
	}
	p.click("#listEvents .send-button")
	p.wait(`document.querySelector("#listEvents .outcome code")?.textContent.includes("retry:")`)
	if status, _ := s.as(t, s.key).do("POST", "/messages", object{"message": "Streamed"}); status != http.StatusAccepted {
		t.Fatalf("POST /messages: %d", status)
	}
	p.wait(`document.querySelector("#listEvents .outcome code").textContent.includes("message.queued")`)
	stop := `[...document.querySelectorAll("#listEvents .buttons button")].find((button) => button.textContent === "Stop")`
	p.wait(stop + `.checkVisibility()`)
	get[bool](p, `(`+stop+`.click(), true)`)
	p.wait(stop + `.hidden && document.querySelector("#listEvents .outcome").textContent.includes("Stopped after")`)

	// A long poll waits and stops, too.
	get[bool](p, `(() => { const select = `+control("listEvents", "Accept")+`; select.value = "application/json"; select.dispatchEvent(new Event("change")); return true; })()`)
	p.enter("listEvents", "after", "latest")
	p.enter("listEvents", "Prefer", "wait=5")
	p.click("#listEvents .send-button")
	p.wait(`document.querySelector("#listEvents .outcome").textContent.includes("Waiting for") && ` + stop + `.checkVisibility()`)
	get[bool](p, `(`+stop+`.click(), true)`)
	p.wait(`document.querySelector("#listEvents .outcome").textContent.includes("Stopped after")`)
	p.expectFailures("net::ERR_ABORTED")
}

func (s *shop) away(t *testing.T) {
	p := s.visit(t, "/docs/reference/meta", look{})
	p.openForm("getLiveness")
	get[bool](p, `!(window.fetch = () => Promise.reject(new TypeError("Failed to fetch")))`)
	if got := p.send("getLiveness"); got != "No response: Failed to fetch. Is the server running?" {
		t.Errorf("the outcome is %q", got)
	}
	for _, contentType := range []string{"application/json", "text/event-stream"} {
		get[bool](p, fmt.Sprintf(`!(window.fetch = () => Promise.resolve(new Response(new ReadableStream({
			start: (body) => body.enqueue(new TextEncoder().encode("a part")),
			pull: (body) => body.error(new TypeError("network error")),
		}, { highWaterMark: 0 }), { headers: { "Content-Type": %q } })))`, contentType))
		const lost = "The connection is lost. The response is not complete."
		if got := p.send("getLiveness"); !strings.HasPrefix(got, "200") || !strings.HasSuffix(got, lost) {
			t.Errorf("the outcome is %q", got)
		}
		if got := p.text("#getLiveness .unseen[role=status]"); got != lost {
			t.Errorf("the status is %q", got)
		}
	}
}

// comesBack leaves a page and comes back to it, as the Back button does. Headless browsers keep no page.
func (s *shop) comesBack(t *testing.T) {
	p := s.visit(t, "/docs/reference/pets", look{})
	p.authorize(s.key, "")
	for _, one := range []struct {
		meanwhile string
		loads     int
	}{{"", 0}, {`sessionStorage.setItem("petstore.id.wh", "wh_1")`, 0}, {`sessionStorage.removeItem("petstore.key")`, 1}} {
		loads := get[int](p, `(() => {
			let loads = 0;
			navigation.addEventListener("navigate", () => loads++);
			dispatchEvent(new PageTransitionEvent("pagehide", { persisted: true }));
			`+one.meanwhile+`;
			dispatchEvent(new PageTransitionEvent("pageshow", { persisted: true }));
			return loads;
		})()`)
		if loads != one.loads {
			t.Errorf("after %q, the page loads %d times", one.meanwhile, loads)
		}
	}
	p.wait(`document.querySelector(".bar .key-button")?.textContent === "Add API key"`)
}

// withoutData checks forms and samples while the data that they need is missing or late.
func (s *shop) withoutData(t *testing.T) {
	p := s.visit(t, "/docs/reference/meta", look{})
	const missing = `!(window.fetch = () => Promise.resolve(new Response("", { status: 404 })))`
	first := p.sample("getLiveness")
	get[bool](p, `!(window.whole = window.fetch)`)
	get[bool](p, missing)
	p.choose("getLiveness", "Python", "The sample cannot load: the server returned 404.")
	has(p, false, `document.querySelector("#getLiveness .samples .copy").checkVisibility()`)
	p.choose("getLiveness", "cURL", first)
	p.click("#getLiveness .try-button")
	p.wait(`document.querySelector("#getLiveness .try [role=alert]")?.textContent.startsWith("The form cannot load: the server returned 404.")`)

	// Two clicks, while the data comes, open one form.
	get[bool](p, `!(window.fetch = (...request) => new Promise((resolve) => (window.arrive = () => resolve(window.whole(...request)))))`)
	get[bool](p, `(() => { const button = document.querySelector("#getLiveness .try-button"); button.click(); button.click(); return true; })()`)
	get[bool](p, `(window.arrive(), true)`)
	p.wait(`document.querySelector("#getLiveness .try-form")?.checkVisibility()`)
	if got := p.text("#getLiveness .try-button"); p.count("#getLiveness .try-form") != 1 || p.count("#getLiveness .try [role=alert]") > 0 || !strings.HasPrefix(got, "Close") {
		t.Errorf("after two clicks: %d forms, button %q: %s", p.count("#getLiveness .try-form"), got, p.text("#getLiveness .try"))
	}
	p.choose("getLiveness", "Python", begins["Python"])
	has(p, true, `document.querySelector("#getLiveness .samples .copy").checkVisibility()`)
}

// withoutForm checks that no button, key or link sends GET /store/orders.
func (s *shop) withoutForm(t *testing.T) {
	p := s.visit(t, "/docs/reference/store#listOrders", look{})
	p.counts(0, "#listOrders :is(form, input, textarea, select, .try)")
	get[bool](p, `document.querySelector("#listOrders .anchor").focus() ?? true`)
	for range p.count("#listOrders :is(a[href^='#'], button, summary, pre)") {
		p.press(" ")
		p.press(kb.Tab)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for target := range p.requests {
		if strings.Contains(target, "/store/orders") {
			t.Errorf("the page sent %s", target)
		}
	}
}

func (s *shop) formKeyboard(t *testing.T) {
	p := s.visit(t, "/docs/reference/categories#createCategory", look{})
	get[bool](p, fmt.Sprintf(`(sessionStorage.setItem("petstore.key", %q), true)`, s.key))
	p.do(chromedp.Reload())
	p.wait(`document.querySelector("#createCategory .try-button")`)
	get[bool](p, `(document.querySelector("#createCategory .try-button").focus(), true)`)
	p.press(kb.Enter)
	p.wait(`document.querySelector("#createCategory .try-form")`)
	seen := []string{}
	for range 12 {
		p.press(kb.Tab)
		seen = append(seen, get[string](p, `document.activeElement.labels?.[0]?.textContent || document.activeElement.ariaLabel || document.activeElement.textContent`))
		if outline := get[string](p, "getComputedStyle(document.activeElement).outlineStyle"); outline == "none" {
			t.Errorf("the focus is not visible on %s", seen[len(seen)-1])
		}
		if seen[len(seen)-1] == "name" {
			p.insert("Typed")
		}
	}
	for _, want := range []string{"Change key", "Fields", "JSON", "About name", "name", "Send POST", "Reset"} {
		if !slices.ContainsFunc(seen, func(text string) bool { return strings.HasPrefix(text, want) }) {
			t.Errorf("the keyboard does not reach %s: %q", want, seen)
		}
	}
	get[bool](p, `(`+control("createCategory", "name")+`.select(), true)`)
	p.insert("Typed with keys")
	get[bool](p, `(`+control("createCategory", "name")+`.focus(), true)`)
	p.press(kb.Enter)
	p.wait(`document.querySelector("#createCategory .outcome")?.textContent.includes("Typed with keys")`)
	// The button that sends keeps the focus.
	get[bool](p, `(document.querySelector("#createCategory .send-button").focus(), true)`)
	p.press(kb.Enter)
	p.wait(`document.querySelector("#createCategory .outcome").textContent.includes("409") && document.activeElement.matches("#createCategory .send-button")`)
	p.expectFailures("409")
}

// hostileValues checks that no value of the reader or of a response becomes part of the page.
func (s *shop) hostileValues(t *testing.T) {
	const hostile = "</script></textarea><img src=x onerror=alert(1)>'\"`\\${alert(1)} \u2028"
	p := s.visit(t, "/docs/reference/messages", look{})
	p.authorize(s.key, "")
	p.openForm("queueMessage")
	p.enter("queueMessage", "message", hostile)
	for _, language := range languages {
		p.choose("queueMessage", language, "</script>")
	}
	p.sends("queueMessage", "", "202", "<img src=x")
	p.counts(0, "main img")
	p.click(".search-button")
	p.wait(paletteIsOpen)
	p.insert(hostile)
	p.wait(`document.querySelector(".palette-status").textContent.includes("<img")`)
}

// forcedColors checks that a page of few colors shows what is chosen, and shows code as plain text.
func (s *shop) forcedColors(t *testing.T) {
	p := s.visit(t, "/docs/reference/pets", look{})
	p.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "forced-colors", Value: "active"}}})
		return err
	}))
	p.openForm("createPet")
	p.keep("forms-forced-colors")
	if colors := get[[]string](p, `(() => {
		const code = document.querySelector("#createPet .samples code");
		return [getComputedStyle(code).forcedColorAdjust, ...new Set([...["", "::highlight(code-text)", "::highlight(code-name)"].map((part) => getComputedStyle(code, part).color), getComputedStyle(document.body).color])];
	})()`); len(colors) != 2 || colors[0] != "none" || p.count("#createPet .samples code *") > 0 {
		t.Errorf("code has the colors %q", colors)
	}
	p.click(".search-button")
	p.wait(paletteIsOpen)
	p.insert("pets")
	p.wait(`document.querySelector(".palette [aria-selected=true]")`)
	p.keep("search-forced-colors")
	for _, chosen := range []string{".palette [aria-selected=true]", "#createPet [role=tab][aria-selected=true]", "#createPet .switch [aria-pressed=true]", "#sidebar a[aria-current=page]"} {
		has(p, "solid", fmt.Sprintf(`getComputedStyle(document.querySelector(%q)).outlineStyle`, chosen))
	}
}

// formLooks takes screenshots of forms, and runs axe-core on them.
func (s *shop) formLooks(t *testing.T) {
	for _, how := range []look{{}, {dark: true}, {width: 900, height: 1000}, {width: 900, height: 1000, dark: true}, {width: 390, height: 844}, {width: 390, height: 844, dark: true}} {
		name := fmt.Sprintf("%d-dark-%t", how.width, how.dark)
		p := s.visit(t, "/docs/reference/pets", how)
		get[bool](p, fmt.Sprintf(`(sessionStorage.setItem("petstore.key", %q), true)`, s.key))
		p.do(chromedp.Navigate(s.url + "/docs/reference/pets?again"))
		p.wait(`document.querySelector("#listPets .try-button")`)
		for _, id := range []string{"listPets", "createPet", "getPet"} {
			p.openForm(id)
		}
		get[bool](p, `(document.querySelectorAll(".optional, .field-ask").forEach((e) => e.localName === "details" ? e.open = true : e.click()), true)`)
		p.enter("getPet", "petId", "x")
		p.send("getPet")
		p.expectFailures("400")
		p.send("listPets")
		for _, id := range []string{"listPets", "createPet", "getPet"} {
			get[bool](p, fmt.Sprintf(`(document.querySelector("#%s .try-form").scrollIntoView(), true)`, id))
			p.keep("form-" + id + "-" + name)
		}
		p.wantAccessible(t, "forms, "+name)
		p.fits(name)
		p.click("#createPet .switch button:last-child")
		p.keep("form-json-" + name)
		p.click("#createPet .key-button")
		p.wait(`document.querySelector(".dialog[open]")`)
		p.keep("form-key-" + name)
		p.wantAccessible(t, "the dialog, "+name)
	}
}
