//go:build browser

package docs_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"petstore/internal/tools/need"
)

// queries lists words that readers type, and the place that the search must find first. A
// place is the end of a path, with a title if the path has several places.
var queries = []struct{ query, place string }{
	// Subjects, in the reader's words.
	{"pagination", "/lists"},
	{"paging", "/lists"},
	{"rate limit", "/limits"},
	{"rate limits", "/limits"},
	{"throttling", "/limits"},
	{"authentication", "/authentication"},
	{"auth", "/authentication"},
	{"api key", "/authentication"},
	{"getting started", "/quickstart"},
	{"etag", "/concurrency"},
	{"optimistic locking", "/concurrency"},
	{"idempotency", "/idempotency"},
	{"signature", "/webhooks"},
	{"verify signature", "/webhooks"},
	{"long polling", "/events"},
	{"cors", "/requests#browsers"},
	{"retries", "/retries#retries"},
	{"stream", "/events#stream"},
	{"count", "/lists#counts"},
	{"rotate secret", "#rotateWebhook"},
	{"chaos", "/faults"},
	{"health", "/reference/meta"},
	{"fixtures", "/sandboxes"},
	{"availability", "/stock"},
	{"callback", "/webhooks"},
	// Operations.
	{"reset", "#resetSandbox"},
	{"cancel order", "#cancelOrder"},
	{"delete order", "#cancelOrder"},
	{"place an order", "#placeOrder"},
	{"create pet", "#createPet"},
	{"placeOrder", "#placeOrder"},
	{"POST /store/orders", "#placeOrder"},
	{"webhook secret", "#rotateWebhook"},
	{"replay", "#replayWebhook"},
	{"livez", "#getLiveness"},
	{"orders", "#listOrders"},
	{"pets", "/reference/pets"},
	{"pet", "/reference/pets"},
	{"webhooks", "/reference/webhooks"},
	// Names.
	{"shipDate", "#placeOrder shipDate"},
	{"ship date", "#placeOrder shipDate"},
	{"shipdate", "#placeOrder shipDate"},
	{"categoryId", "#listPets categoryId"},
	{"graceSeconds", "#rotateWebhook graceSeconds"},
	{"if-match", "/concurrency"},
	{"Retry-After", "Retry-After"},
	{"X-Total-Count", "/lists#counts"},
	{"Last-Event-ID", "/events#stream"},
	{"RateLimit", "/limits#rate"},
	{"idempotency key", "Idempotency-Key"},
	{"order.placed", "order.placed"},
	{"store.reset", "store.reset"},
	// Errors.
	{"insufficient_stock", "/errors#insufficient_stock"},
	{"insufficient stock", "/errors#insufficient_stock"},
	{"validation failed", "/errors#validation_failed"},
	{"429", "/errors#rate_limited"},
	{"404", "/errors#route_not_found"},
	{"errors", "/errors"},
	{"condition_412", "/report#rules"},
	// The beginning of a word, and mistakes.
	{"pagin", "/lists"},
	{"idempot", "/idempotency"},
	{"authent", "/authentication"},
	{"idempotncy", "/idempotency"},
	{"concurency", "/concurrency"},
	{"insufficient_stok", "/errors#insufficient_stock"},
	{"authetication", "/authentication"},
	{"cancle order", "#cancelOrder"},
	{"webhok", "/reference/webhooks"},
}

// found is an entry of the search.
type found struct{ Kind, Title, Path, Where string }

func TestPalette(t *testing.T) {
	t.Parallel()
	s := open(t)
	t.Run("the first results", s.firstResults)
	t.Run("every result exists", s.everyResult)
	t.Run("keyboard", s.paletteKeyboard)
	t.Run("looks", s.paletteLooks)
}

// searchModule is an expression for the search in the index of the page.
const searchModule = `(async () => {
	const folder = new URL(document.body.dataset.assets, location);
	const [{ prepare, search }, index] = await Promise.all([import(folder + "rank.js"), fetch(folder + "search.json").then((r) => r.json())]);
	return %s;
})()`

func (s *shop) firstResults(t *testing.T) {
	p := s.visit(t, "/docs/quickstart", look{})
	var texts []string
	for _, q := range queries {
		texts = append(texts, q.query)
	}
	list := need.Value(json.Marshal(texts))(t)
	results := get[[][]found](p, fmt.Sprintf(searchModule, `(() => { const all = prepare(index); return `+string(list)+`.map((query) => search(all, query, 4)); })()`))
	for i, q := range queries {
		first := found{}
		if len(results[i]) > 0 {
			first = results[i][0]
		}
		place, title, _ := strings.Cut(q.place, " ")
		if !strings.HasSuffix(first.Path, place) && first.Title != place || title != "" && first.Title != title {
			t.Errorf("%q finds %+v, want %s", q.query, results[i], q.place)
		}
	}
	has(p, 0, fmt.Sprintf(searchModule, `search(prepare(index), "zzzzqqqq").length`))
}

// everyResult checks that each entry of the index leads to a part of a page.
func (s *shop) everyResult(t *testing.T) {
	p := s.visit(t, "/docs/quickstart", look{})
	missing := get[[]string](p, fmt.Sprintf(searchModule, `(async () => {
		const pages = new Map();
		const missing = [];
		for (const { path } of index) {
			const [page, id] = path.split("#");
			if (!pages.has(page)) {
				const response = await fetch("/" + page);
				pages.set(page, response.ok && new DOMParser().parseFromString(await response.text(), "text/html"));
			}
			if (!pages.get(page) || (id && !pages.get(page).getElementById(id))) missing.push(path);
		}
		return missing;
	})()`))
	if len(missing) > 0 {
		t.Errorf("the index leads to parts that do not exist: %v", missing)
	}
}

const paletteIsOpen = `document.querySelector(".palette")?.open === true`

func (s *shop) paletteKeyboard(t *testing.T) {
	p := s.visit(t, "/docs/reference/store", look{})
	selected := `document.querySelector(".palette [aria-selected=true]")`
	get[bool](p, `(document.querySelector(".theme-button").focus(), true)`)
	p.press("/")
	p.wait(paletteIsOpen + ` && document.activeElement.role === "combobox"`)
	p.press("insufficient_stock")
	p.wait(selected + `?.textContent.includes("insufficient_stock")`)
	has(p, "palette-0 true", `document.activeElement.getAttribute("aria-activedescendant") + " " + document.activeElement.ariaExpanded`)
	p.press(kb.ArrowDown)
	p.wait(selected + `.id === "palette-1" && document.activeElement.getAttribute("aria-activedescendant") === "palette-1"`)
	p.press(kb.ArrowUp)
	p.press(kb.ArrowUp) // from the first to the last
	p.wait(selected + ` === document.querySelector(".palette [role=option]:last-child")`)
	p.press(kb.Escape)
	p.wait(`!(` + paletteIsOpen + `) && document.activeElement.matches(".theme-button")`)

	for name, press := range map[string]func(){
		"Ctrl-K": func() { p.press("k", chromedp.ModifierCtrl) },
		"Cmd-K":  func() { p.press("k", chromedp.ModifierMeta) },
		"button": func() { p.click(".search-button") },
	} {
		press()
		p.wait(paletteIsOpen)
		p.press(kb.Escape)
		p.wait(`!(` + paletteIsOpen + `)`)
		t.Log(name)
	}

	// A browser that fills in a field sends a keydown without a key.
	get[bool](p, `document.dispatchEvent(new Event("keydown", { bubbles: true }))`)
	p.wantNoFault()

	// In a field, a slash is a slash.
	p.click("#placeOrder .try-button")
	p.wait(`document.querySelector("#placeOrder .try-form")`)
	p.click("#placeOrder .body-fields input")
	p.press("/")
	if get[bool](p, paletteIsOpen) {
		t.Error("a slash in a field opens the search")
	}

	// Within a page, the focus follows.
	p.press("k", chromedp.ModifierCtrl)
	p.wait(paletteIsOpen)
	p.write(".palette input", "cancel order")
	p.wait(selected + `?.textContent.includes("Cancel an order")`)
	p.press(kb.Enter)
	p.wait(`document.activeElement.id === "cancelOrder" && Math.abs(document.activeElement.getBoundingClientRect().top) < innerHeight / 2`)

	p.press("k", chromedp.ModifierCtrl)
	p.wait(paletteIsOpen)
	p.write(".palette input", "zzzzqqqq")
	p.wait(`document.querySelector(".palette-status").textContent.includes("Nothing matches")`)
	p.write(".palette input", "reset")
	p.wait(selected + `?.textContent.includes("Reset a sandbox")`)
	p.press(kb.Enter)
	p.wait(`location.pathname === "/docs/reference/sandboxes" && location.hash === "#resetSandbox"`)
}

// paletteLooks takes screenshots, and runs axe-core on the open palette.
func (s *shop) paletteLooks(t *testing.T) {
	for _, how := range []look{{}, {dark: true}, {width: 900, height: 800}, {width: 390, height: 844}, {width: 390, height: 844, dark: true}} {
		p := s.visit(t, "/docs/reference/store", how)
		p.click(".search-button")
		p.wait(paletteIsOpen)
		p.press("order")
		p.wait(`document.querySelectorAll(".palette [role=option]").length > 5 && document.querySelector(".palette input").value === "order"`)
		if got := get[int64](p, `document.querySelector(".palette").getBoundingClientRect().right - innerWidth`); got > 0 {
			t.Errorf("%+v: the palette is %d pixels too wide", how, got)
		}
		p.keep(fmt.Sprintf("palette-%d-dark-%t", how.width, how.dark))
		p.wantAccessible(t, fmt.Sprintf("the palette, %+v", how))
	}
}
