package api_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"petstore/internal/api"
	"petstore/internal/tools/need"
)

// wantCoding fails the test unless the response has this Content-Encoding ("" for
// none) and varies by Accept-Encoding.
func (r *response) wantCoding(coding string) *response {
	r.t.Helper()
	r.wantHeader("Content-Encoding", coding)
	if vary := r.header.Values("Vary"); len(vary) != 1 || strings.TrimSuffix(vary[0], ", Accept") != "Origin, Accept-Encoding" {
		r.t.Errorf("%s: Vary %q", r.what, vary)
	}
	return r
}

// TestCompressedLists: lists from 1 KiB on are compressed on request, with the same content.
func TestCompressedLists(t *testing.T) {
	t.Parallel()
	p := start(t)
	const atMost = 1023
	created := p.post("/categories", object{"name": "a", "description": "d"}).want(201)
	path, size := created.header.Get("Location"), len(created.body)+len("[]")
	small := p.do("PATCH", path, object{"description": strings.Repeat("d", atMost-size+1)})
	small.want(200).wantHeader("Vary", "Origin") // a single resource is never compressed
	for _, step := range []struct {
		length int
		coding string
	}{{atMost, ""}, {atMost + 1, "gzip"}} {
		plain := p.get("/categories").want(200).wantCoding("")
		if len(plain.body) != step.length {
			t.Fatalf("the list has %d bytes, want %d", len(plain.body), step.length)
		}
		zipped := p.do("GET", "/categories", nil, "Accept-Encoding", "gzip").want(200).wantCoding(step.coding)
		need.Same(t, string(plain.body), string(zipped.body), "%d bytes (want: plain, got: %s)", step.length, step.coding)
		length, err := strconv.Atoi(zipped.header.Get("Content-Length"))
		if err != nil || (step.coding != "" && length > step.length/2) {
			t.Errorf("%d bytes in the coding %q have the Content-Length %q", step.length, step.coding, zipped.header.Get("Content-Length"))
		}
		p.patch(path, object{"description": strings.Repeat("d", atMost-size+2)}).want(200)
	}
	for _, one := range []struct {
		target string
		status int
	}{{path, 200}, {"/categories?" + strings.Repeat("x", 2000), 400}, {"/nothing", 404}, {"/livez", 200}} {
		resp := p.do("GET", one.target, nil, "Accept-Encoding", "gzip").want(one.status)
		resp.wantHeader("Content-Encoding", "").wantHeader("Vary", "Origin")
	}
}

// TestCompressionAtOnce: reused gzip writers do not mix up responses.
func TestCompressionAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t)
	for i := range 8 {
		p.post("/categories", object{"name": fmt.Sprint(i), "description": strings.Repeat(strconv.Itoa(i), 1500)}).want(201)
	}
	atOnce(t, 64, func(i int) error {
		want := i % 8
		resp, err := p.try("GET", fmt.Sprintf("/categories?name=%d", want), nil, "Accept-Encoding", "gzip")
		if err != nil {
			return err
		}
		if got := decode[[]category](resp); len(got) != 1 || got[0].Name != strconv.Itoa(want) || *got[0].Description != strings.Repeat(strconv.Itoa(want), 1500) {
			return fmt.Errorf("category %d was returned as %+v", want, got)
		}
		return nil
	})
}

// TestSpecETag: each form of the spec has a tag for each coding.
func TestSpecETag(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	again := p.with(func(*api.Options) {})
	another := p.with(func(o *api.Options) { o.BaseURL = "https://petstore.example" })
	seen := map[string]string{}
	for _, target := range []string{"/openapi.json", "/openapi-3.1.json", "/openapi.yaml"} {
		for _, coding := range []string{"", "gzip"} {
			resp := p.do("GET", target, nil, "Accept-Encoding", coding).want(200).wantCoding(coding)
			etag := resp.header.Get("ETag")
			if other, twice := seen[etag]; twice || etag == "" {
				t.Errorf("%s in the coding %q has the same tag %s as %s", target, coding, etag, other)
			}
			seen[etag] = target + " " + coding
		}
	}
	for etag, of := range seen {
		target, coding, _ := strings.Cut(of, " ")
		for ours := range seen {
			given := []string{"Accept-Encoding", coding, "If-None-Match", `"other", W/` + ours}
			if ours != etag {
				p.do("HEAD", target, nil, given...).want(200)
				continue
			}
			for _, method := range []string{"GET", "HEAD"} {
				got := p.do(method, target, nil, given...).want(304).header
				for _, name := range []string{"Date", "X-Request-Id", "Api-Version", "X-Content-Type-Options"} {
					got.Del(name)
				}
				want := http.Header{"Etag": {etag}, "Cache-Control": {"public, no-cache"}, "Vary": {"Origin, Accept-Encoding"}}
				need.Same(t, want, got, "%s %s, 304: header", method, target)
			}
		}
		p.do("GET", target, nil, "Accept-Encoding", coding, "If-None-Match", "*").want(304)
		p.do("GET", target, nil, "Accept-Encoding", coding, "If-None-Match", "nonsense").want(200)
		// the tags survive a restart and are the same in all processes
		again.do("GET", target, nil, "Accept-Encoding", coding, "If-None-Match", etag).want(304)
		another.do("GET", target, nil, "Accept-Encoding", coding, "If-None-Match", etag).want(200)
	}
}
