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
	"os"
	"os/exec"
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

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/delivery"
	"petstore/internal/egress"
	"petstore/internal/gate"
	"petstore/internal/pgtest"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
	"petstore/internal/webhook"
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
	server   *api.Server
	browser  context.Context
}

func open(t *testing.T) *shop {
	t.Helper()
	database := pgtest.New(t)
	pool := pgtest.Open(t, database.URL, 4)
	queries := db.New(pool)
	reader := need.Value(account.Ensure(t.Context(), queries, "reader"))(t)
	_, secret, err := auth.Issue(t.Context(), queries, auth.NewKey{AccountID: reader.ID, Name: "docs", Scope: auth.Admin})
	need.OK(t, err)
	log, guard := slog.New(slog.DiscardHandler), egress.New(egress.Options{Allow: egress.Loopback})
	worker := delivery.New(delivery.Options{DB: pool, Client: guard.Client(delivery.Timeout), Vault: &webhook.Vault{}, Metrics: telemetry.NewMetrics(), Log: log})
	server := need.Value(api.New(api.Options{Egress: guard, Announce: worker.Wake, Deliver: worker.Deliver, Options: gate.Options{
		DB: pool, Verifier: auth.NewVerifier(queries, db.New(pool.Writing())), Log: log,
		MaxBodyBytes: 1 << 20, RequestTimeout: 6 * time.Second,
	}}))(t)
	for _, run := range []func(context.Context){worker.Run, server.Record} {
		need.Background(t, run)
	}
	listening := need.Server(t, server.ServeHTTP)
	return &shop{url: listening.URL, key: secret.Reveal(), server: server, browser: startBrowser(t)}
}

// shell is Debian's Chromium without windows. Its tabs take half of the CPU time.
const shell = "chromium-headless-shell"

func startBrowser(t *testing.T) context.Context {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.NoSandbox, // a container with root has no sandbox
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"),
	)
	if path, err := exec.LookPath(shell); err == nil {
		options = append(options, chromedp.ExecPath(path))
	}
	allocator, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewContext(allocator)
	t.Cleanup(stop)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("Chromium does not start (Debian's package is %s): %v", shell, err)
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
	plain         bool   // without JavaScript
	motion        bool   // with transitions
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
	motion := "reduce"
	if how.motion {
		motion = "no-preference"
	}
	need.OK(t, chromedp.Do(ctx)) // the tab lives as long as the first context that uses it
	need.OK(t, chromedp.Listen(ctx, func(event any) { p.note(event, base) }))
	p.do(
		chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
			_, network := chromedp.Call(ctx, network.Enable, network.EnableParams{})
			_, log := chromedp.Call(ctx, log.Enable, struct{}{})
			_, audits := chromedp.Call(ctx, audits.Enable, struct{}{})
			_, media := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: motion}},
			})
			_, scripts := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: how.plain})
			return errors.Join(network, log, audits, media, scripts)
		}),
		chromedp.EmulateViewport(how.width, how.height),
		chromedp.Navigate(base+path),
	)
	p.wait(`document.readyState === "complete" && document.querySelector("#sidebar a")`)
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
		if !strings.HasPrefix(e.Request.URL, base+"/") && !strings.HasPrefix(e.Request.URL, "data:") && !strings.HasPrefix(e.Request.URL, "blob:"+base+"/") {
			fault("a request to %s", e.Request.URL)
		}
	case *network.EventLoadingFinished:
		p.received += e.EncodedDataLength
	case *network.EventLoadingFailed:
		fault("loading failed: %s of a %s", e.ErrorText, e.Type)
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
	need.OK(p.t, chromedp.Do(ctx, steps...))
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

// copies does something that copies, and waits until an element says so, which it does for two seconds.
func (p *tab) copies(element string, do func()) {
	p.t.Helper()
	get[bool](p, fmt.Sprintf(`(() => {
		const element = %s;
		window.copied = new Promise((resolve) => new MutationObserver(() => element.textContent === "Copied" && resolve(true)).observe(element, { childList: true }));
		return true;
	})()`, element))
	do()
	get[bool](p, "window.copied")
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

// place returns the path of the page and the fragment, for the messages of the checks below.
func (p *tab) place() string {
	p.t.Helper()
	return get[string](p, "location.pathname + location.hash")
}

// has fails the test unless an expression has a value.
func has[T comparable](p *tab, want T, expression string) {
	p.t.Helper()
	if got := get[T](p, expression); got != want {
		p.t.Errorf("%s: %s is %v, want %v", p.place(), expression, got, want)
	}
}

// counts fails the test unless the page has a number of elements.
func (p *tab) counts(want int, selector string) {
	p.t.Helper()
	has(p, want, fmt.Sprintf(`document.querySelectorAll(%q).length`, selector))
}

// shows fails the test unless the text of an element has all parts.
func (p *tab) shows(selector string, parts ...string) {
	p.t.Helper()
	p.contains(selector, p.text(selector), parts...)
}

// fits fails the test if the page is wider than the window.
func (p *tab) fits(how string) {
	p.t.Helper()
	if more := get[int](p, "document.documentElement.scrollWidth - innerWidth"); more > 0 {
		const widest = `[...document.querySelectorAll("main *")].find((e) => e.getBoundingClientRect().right > innerWidth + 1)`
		p.t.Errorf("%s, %s: the page is %d pixels too wide: %s", p.place(), how, more, get[string](p, widest+`?.outerHTML.slice(0, 200) ?? ""`))
	}
}

// contains fails the test unless a text of the page has all parts.
func (p *tab) contains(what, text string, parts ...string) {
	p.t.Helper()
	need.Contains(p.t, p.place()+": "+what, text, parts...)
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
	picture := need.Value(chromedp.Run(ctx, chromedp.CaptureScreenshot()))(p.t)
	need.OK(p.t, os.MkdirAll(*screenshots, 0o755))
	need.OK(p.t, os.WriteFile(filepath.Join(*screenshots, name+".png"), picture, 0o644))
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
