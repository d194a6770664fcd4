//go:build browser

package docs_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// maxNodes is the number of elements of a page before a form opens.
const maxNodes = 2500

// pictured are the pages that TestViews takes pictures of.
var pictured = []string{
	"/docs", "/docs/quickstart", "/docs/lists", "/docs/events", "/docs/webhooks", "/docs/errors", "/docs/changelog",
	"/docs/reference/pets", "/docs/reference/store", "/docs/reference/events", "/docs/reference/webhooks", "/docs/reference/models",
}

// TestViews runs axe-core on every page in narrow and wide windows. It takes pictures of
// twelve pages at three widths, light and dark.
func TestViews(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, path := range written {
		looks := []look{{width: 1440, height: 900}, {width: 390, height: 844, dark: true}}
		if slices.Contains(pictured, path) {
			looks = append(looks, look{width: 900, height: 900}, look{width: 900, height: 900, dark: true}, look{width: 390, height: 844}, look{width: 1440, height: 900, dark: true})
		}
		if path == wholeReference {
			looks = looks[:1] // axe-core needs long for its 12,000 elements, which other pages have in all looks
		}
		t.Run(strings.TrimPrefix(path, "/docs/"), func(t *testing.T) {
			for i, how := range looks {
				p := s.visit(t, path, how)
				if i == 0 {
					p.weigh(t, path)
				}
				p.wantAccessible(t, fmt.Sprintf("%+v", how))
				if slices.Contains(pictured, path) {
					p.keep(fmt.Sprintf("view%s-%d-dark-%t", strings.ReplaceAll(path, "/", "-"), how.width, how.dark))
				}
			}
		})
	}
	t.Run("printed", s.printed)
}

// printed looks at a page as a printer does.
func (s *shop) printed(t *testing.T) {
	t.Helper()
	for _, path := range []string{"/docs/reference/store", "/docs/quickstart", wholeReference} {
		p := s.visit(t, path, look{width: 800, height: 1100, dark: true})
		p.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
			_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"})
			return err
		}))
		for _, selector := range []string{".skip", ".bar", "#sidebar", ".copy", "[role=tablist]"} {
			has(p, false, fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.checkVisibility())`, selector))
		}
		has(p, "rgb(255, 255, 255)", `getComputedStyle(document.querySelector(".panel")).backgroundColor`)
		if path == wholeReference && p.count(".try-button") > 0 {
			t.Errorf("%s has forms", path)
		}
		p.keep("print" + strings.ReplaceAll(path, "/", "-"))
	}
}

// maxBytes is the compressed size of a page of the reference with all its files.
const maxBytes = 150_000

// weigh measures a first visit.
func (p *tab) weigh(t *testing.T, path string) {
	t.Helper()
	p.wait(`performance.getEntriesByName("first-contentful-paint").length > 0`)
	paint := get[float64](p, `performance.getEntriesByName("first-contentful-paint")[0].startTime`)
	shift := get[float64](p, `new Promise((resolve) => {
		new PerformanceObserver((list) => resolve(list.getEntries().reduce((sum, e) => sum + e.value, 0))).observe({ type: "layout-shift", buffered: true });
		setTimeout(() => resolve(0), 1000);
	})`)
	nodes := p.count("*")
	p.mu.Lock()
	received, requests := p.received, len(p.requests)
	p.mu.Unlock()
	t.Logf("%-28s first contentful paint %.0f ms, layout shift %.3f, %d requests, %.1f kB, %d elements", path, paint, shift, requests, received/1000, nodes)
	if received > maxBytes {
		t.Errorf("%s transfers %.0f bytes", path, received)
	}
	if shift > 0.01 {
		t.Errorf("%s shifts by %.3f while it loads", path, shift)
	}
	if nodes > maxNodes && path != wholeReference {
		t.Errorf("%s has %d elements", path, nodes)
	}
}
