//go:build browser

package docs_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// written are the pages that the tests of every page visit.
var written = []string{
	"/docs", "/docs/quickstart", "/docs/authentication", "/docs/requests", "/docs/lists", "/docs/retries", "/docs/idempotency",
	"/docs/concurrency", "/docs/limits", "/docs/stock", "/docs/events", "/docs/webhooks", "/docs/sandboxes", "/docs/record", "/docs/console", "/docs/faults",
	"/docs/report", "/docs/transfer",
	"/docs/reference/pets", "/docs/reference/categories", "/docs/reference/store", "/docs/reference/inventory", "/docs/reference/messages",
	"/docs/reference/events", "/docs/reference/webhooks", "/docs/reference/accounts", "/docs/reference/sandboxes", "/docs/reference/clients", "/docs/reference/meta",
	"/docs/reference/models", "/docs/errors", "/docs/changelog", wholeReference,
}

// wholeReference is the page for printing.
const wholeReference = "/docs/reference/all"

func TestPages(t *testing.T) {
	t.Parallel()
	s := open(t)
	t.Run("deep links", s.deepLinks)
	t.Run("the sidebar and the address follow the scroll", s.scrolling)
	t.Run("the address keeps the place that a link leads to", s.chosenPlace)
	t.Run("pages link to each other", s.turning)
	t.Run("keyboard", s.keyboard)
	t.Run("dark", s.dark)
	t.Run("quickstart", s.quickstart)
	t.Run("unknown address", s.unknown)
	t.Run("phone", s.phone)
	t.Run("phone without JavaScript", s.withoutScripts)
}

func (s *shop) deepLinks(t *testing.T) {
	// Some places have no entry in the sidebar, which then shows the entry that they belong to.
	for _, link := range []struct{ address, entry string }{
		{"/docs/reference/inventory#setInventory", "#setInventory"},
		{"/docs/reference/models#model-Error", "#model-Error"},
		{"/docs/errors#insufficient_stock", "#insufficient_stock"},
		{"/docs/events#stream", "#stream"},
		{"/docs/reference/events#order.placed", "#types"},
		{"/docs/reference/pets#model-Pet", ""},
		{"/docs/webhooks#by-hand", "#receivers"},
	} {
		_, id, _ := strings.Cut(link.address, "#")
		p := s.visit(t, link.address, look{})
		there := fmt.Sprintf(`Math.abs(document.getElementById(%q).getBoundingClientRect().top - 80) < 4`, id)
		p.wait(there)
		p.do(chromedp.Reload())
		p.wait(there)
		p.scroll(-20)
		has(p, link.entry, currentEntry)
		has(p, "#"+id, "location.hash")
	}
}

// currentEntry is an expression for the entry of the sidebar that the reader is at.
const currentEntry = `(document.querySelector('#sidebar [aria-current="location"]')?.getAttribute("href") ?? "")`

// scroll scrolls the page by some pixels, and waits until the page has followed.
func (p *tab) scroll(pixels int) {
	p.t.Helper()
	get[bool](p, fmt.Sprintf(`new Promise((resolve) => {
		addEventListener("scroll", () => requestAnimationFrame(() => requestAnimationFrame(() => resolve(true))), { once: true });
		scrollBy(0, %d);
	})`, pixels))
}

// chosenPlace chooses a place that is too near to the end of its page for the top of the window.
func (s *shop) chosenPlace(t *testing.T) {
	for _, path := range []string{"/docs/errors", "/docs/reference/models", "/docs/quickstart"} {
		p := s.visit(t, path, look{height: 1600, width: 1440})
		get[bool](p, `(scrollTo(0, document.documentElement.scrollHeight), true)`)
		last := get[string](p, `[...document.querySelectorAll("#sidebar .nav-parts a")].at(-1).getAttribute("href")`)
		p.wait(currentEntry + fmt.Sprintf(` === %q`, last))
		chosen := get[string](p, `[...document.querySelectorAll("#sidebar .nav-parts a")].at(-2).getAttribute("href")`)
		p.click(fmt.Sprintf(`#sidebar .nav-parts a[href=%q]`, chosen))
		p.wait(currentEntry + fmt.Sprintf(` === %q`, chosen))
		p.scroll(-20)
		has(p, chosen+" "+chosen, `location.hash + " " + `+currentEntry)
	}
}

func (s *shop) scrolling(t *testing.T) {
	for path, ids := range map[string][]string{
		"/docs/reference/webhooks": {"rotateWebhook", "deleteWebhook", "listWebhooks"},
		"/docs/webhooks":           {"message", "create"},
		"/docs/errors":             {"unavailable", "pet_not_found"},
	} {
		p := s.visit(t, path, look{})
		for _, id := range ids {
			get[bool](p, fmt.Sprintf(`(document.getElementById(%q).scrollIntoView(), true)`, id))
			p.wait(fmt.Sprintf(`location.hash === "#%s" && document.querySelector('#sidebar [aria-current="location"]')?.getAttribute("href") === "#%[1]s"`, id))
			visible := get[bool](p, `(() => {
				const link = document.querySelector('#sidebar [aria-current="location"]').getBoundingClientRect();
				const nav = document.querySelector("#sidebar").getBoundingClientRect();
				return link.top >= nav.top - 1 && link.bottom <= nav.bottom + 1;
			})()`)
			if !visible {
				t.Errorf("the link to %s in the sidebar is not visible", id)
			}
		}
		get[bool](p, "(scrollTo(0, 0), true)")
		p.wait(`location.hash === ""`)
	}
}

// turning walks from the first page to the last one and back.
func (s *shop) turning(t *testing.T) {
	p := s.visit(t, "/docs/quickstart", look{})
	links := p.count("#sidebar .nav-list > li")
	for i := 1; i < links; i++ {
		before := get[string](p, "location.pathname")
		p.click(".turn-next")
		p.wait(fmt.Sprintf(`location.pathname !== %q && document.readyState === "complete" && document.querySelector(".turn-previous")`, before))
		has(p, before, `new URL(document.querySelector(".turn-previous").href).pathname`)
	}
	if p.count(".turn-next") != 0 {
		t.Errorf("the last page is %s, after %d pages", get[string](p, "location.pathname"), links)
	}
}

func (s *shop) keyboard(t *testing.T) {
	p := s.visit(t, "/docs/reference/pets", look{})
	p.wait(`document.readyState === "complete"`) // while a page loads, Chromium may focus the target of a fragment again
	p.press(kb.Tab)
	has(p, "Skip to content", "document.activeElement.textContent")
	if top := get[float64](p, `document.activeElement.getBoundingClientRect().top`); top < 0 {
		t.Error("the focused skip link is not visible")
	}
	p.press(kb.Enter)
	p.wait(`document.activeElement.id === "content"`)
	for range 20 {
		p.press(kb.Tab)
		if outline := get[string](p, "getComputedStyle(document.activeElement).outlineStyle"); outline == "none" {
			t.Errorf("the focus is not visible on %s", get[string](p, "document.activeElement.outerHTML"))
		}
	}
}

func (s *shop) dark(t *testing.T) {
	background := func(p *tab) string { return get[string](p, "getComputedStyle(document.body).backgroundColor") }
	bright, night := s.visit(t, "/docs", look{}), s.visit(t, "/docs/reference/pets#getPet", look{dark: true})
	if got := background(bright); got != "rgb(255, 255, 255)" {
		t.Errorf("light: %s", got)
	}
	if got := background(night); got != "rgb(16, 21, 28)" {
		t.Errorf("dark: %s", got)
	}
	for _, want := range []string{"rgb(255, 255, 255)", "rgb(16, 21, 28)"} {
		night.click(".theme-button")
		if got := background(night); got != want {
			t.Errorf("switched: %s, want %s", got, want)
		}
	}
}

func (s *shop) quickstart(t *testing.T) {
	p := s.visit(t, "/docs/quickstart", look{})
	const commands = `[...document.querySelectorAll("main code.language-sh")].map((code) => code.textContent).join("\n")`
	if got := get[string](p, commands); !strings.Contains(got, "PETSTORE_URL="+s.url+"\n") {
		t.Errorf("the commands do not set the URL of this server: %s", got)
	}
	if panels, buttons := p.count("main .panel"), p.count("main .panel .copy"); panels != buttons || panels < 9 {
		t.Errorf("%d panels have %d copy buttons", panels, buttons)
	}
	p.copies(`document.querySelector("#send ~ .panel .copy")`, func() { p.click("#send ~ .panel .copy") })

	// The commands follow the reader's key.
	const setting = `[...document.querySelectorAll("main .panel")].find((panel) => panel.textContent.includes("PETSTORE_API_KEY="))`
	p.allowClipboard()
	for _, key := range []string{s.key, "petstore_" + strings.Repeat("x", 30)} {
		p.authorize(key, s.url)
		const button = setting + `.querySelector(".copy")`
		p.wait(button + `.textContent === "Copy"`)
		p.copies(button, func() { get[bool](p, `(`+button+`.click(), true)`) })
		shown, copied := get[string](p, setting+`.querySelector("code").textContent`), get[string](p, "navigator.clipboard.readText()")
		if !strings.Contains(shown, "PETSTORE_API_KEY="+masked(key)) || copied != strings.Replace(shown, masked(key), key, 1) {
			t.Errorf("with the key %s, the page shows %q and copies %q", key, shown, copied)
		}
	}
	p.click(".bar .key-button")
	p.click(".dialog .forget")
	p.wait(setting + `.querySelector("code").textContent.includes("PETSTORE_API_KEY=<API_KEY>")`)
	p.click(`main a[href$="errors#missing_api_key"]`)
	p.wait(`location.pathname === "/docs/errors" && document.querySelector(":target")?.id === "missing_api_key"`)
}

func (s *shop) unknown(t *testing.T) {
	p := s.visit(t, "/docs/reference/cats", look{})
	p.expectFailures("404")
	has(p, "Page not found", `document.querySelector("h1").textContent`)
	p.click(`main a`)
	p.wait(`location.pathname === "/docs"`)
	has(p, http.StatusNotFound, `fetch("/nowhere", { headers: { Accept: "*/*" } }).then((response) => response.status)`)
	p.wait("true")
	p.expectFailures("404")
}

func (s *shop) phone(t *testing.T) {
	for _, path := range written {
		p := s.visit(t, path, look{width: 320, height: 800})
		p.fits("in a window of 320 pixels")
		has(p, "hidden", `getComputedStyle(document.querySelector("#sidebar")).visibility`)
	}
	moving := s.visit(t, "/docs/lists", look{width: 390, height: 844, motion: true})
	moving.click(".menu-button")
	moving.wait(`document.activeElement.closest("#sidebar")`)
	p := s.visit(t, "/docs/reference/store", look{width: 390, height: 844})
	for _, id := range []string{"listOrders", "placeOrder", "cancelOrder"} {
		distance := get[float64](p, fmt.Sprintf(`document.querySelector("#%s .panel").getBoundingClientRect().top - document.querySelector("#%[1]s h2").getBoundingClientRect().bottom`, id))
		if distance < 0 || distance > 500 {
			t.Errorf("%.0f pixels are between the heading of %s and its sample", distance, id)
		}
	}
	p.click(".menu-button")
	p.wait(`getComputedStyle(document.querySelector("#sidebar")).visibility === "visible" && document.activeElement.closest("#sidebar")`)
	p.press(kb.Escape)
	p.wait(`getComputedStyle(document.querySelector("#sidebar")).visibility === "hidden" && document.activeElement.matches(".menu-button[aria-expanded=false]")`)
	p.click(".menu-button")
	p.click(`#sidebar a[href$="docs/lists"]`)
	p.wait(`location.pathname === "/docs/lists"`)
}

func (s *shop) withoutScripts(t *testing.T) {
	wide := s.visit(t, "/docs/reference/store", look{width: 1440, height: 900, plain: true})
	p := s.visit(t, "/docs/reference/store", look{width: 390, height: 844, plain: true})
	p.fits("without scripts")
	p.counts(0, ".try-button, [role=tab]")
	wide.counts(1, ".bar .key-button") // so that its neighbors do not move when scripts run
	for _, p := range []*tab{p, wide} {
		t.Cleanup(func() { p.expectFailures("of a Script") }) // the browser does not load scripts
		if got := get[[]string](p, `[...document.querySelectorAll("button")].filter((e) => e.checkVisibility()).map((e) => e.className)`); len(got) > 0 {
			t.Errorf("buttons that do nothing are visible: %v", got)
		}
	}
	// Timers do not run, so nothing can wait for the page that a link leads to.
	if reached := get[bool](p, `(() => {
		const link = document.querySelector("#sidebar a");
		const { left, top } = link.getBoundingClientRect();
		return top < innerHeight / 2 && link.contains(document.elementFromPoint(left + 30, top + 5));
	})()`); !reached {
		t.Error("the first link of the sidebar is not in view")
	}
	has(p, false, `document.querySelector("#sidebar").getBoundingClientRect().bottom > document.querySelector("#content").getBoundingClientRect().top`)
}
