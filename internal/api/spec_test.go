package api_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/goccy/go-yaml"

	"petstore/internal/api"
	"petstore/internal/tools/need"
)

// TestSpec: the JSON and YAML forms have the same content, according to an independent parser.
func TestSpec(t *testing.T) {
	t.Parallel()
	p := start(t).as("x")
	inJSON, inYAML := p.get("/openapi.json").want(200), p.get("/openapi.yaml").want(200)
	for _, resp := range []*response{inJSON, inYAML} {
		need.Contains(t, "the spec", string(resp.body), "9223372036854775807") // 2^63-1 was not rounded
	}
	need.Same(t, document(t, inYAML.body), document(t, inJSON.body), "spec (want: YAML, got: JSON)")
}

// document parses a spec into a comparable value.
func document(t *testing.T, text []byte) any {
	t.Helper()
	read := need.Value(openapi3.NewLoader().LoadFromData(text))(t)
	encoded := need.Value(json.Marshal(read))(t)
	var value any
	need.OK(t, json.Unmarshal(encoded, &value))
	return value
}

// TestBaseURL: with a base URL, the spec names it and links begin with it. Otherwise links are relative,
// whatever Host the request has: behind a TLS proxy, a link to http:// would send the key in the clear.
func TestBaseURL(t *testing.T) {
	t.Parallel()
	const base = "https://petstore.example"
	p := start(t)
	p.newPet("one", 0)
	p.newPet("two", 0)
	for _, header := range [][]string{nil, {"X-Forwarded-Proto", "https"}, {"X-Forwarded-Host", "evil.example"}, {"Forwarded", "proto=https;host=evil.example"}} {
		page := p.do("GET", "/pets?limit=1", nil, header...).want(200)
		need.Same(t, "/pets?limit=1", page.link("first"), "%v: the first page without a base URL", header)
		if next := page.link("next"); !strings.HasPrefix(next, "/pets?cursor=") {
			t.Errorf("%v: without a base URL, the next page is %q", header, next)
		}
	}
	p = p.with(func(o *api.Options) { o.BaseURL = base })
	var upgraded struct{ Servers []struct{ URL string } }
	if err := json.Unmarshal(p.get("/openapi-3.1.json").want(200).body, &upgraded); err != nil || len(upgraded.Servers) != 1 || upgraded.Servers[0].URL != base {
		t.Errorf("/openapi-3.1.json has the servers %+v: %v", upgraded.Servers, err)
	}
	for _, target := range []string{"/openapi.json", "/openapi.yaml"} {
		read := need.Value(openapi3.NewLoader().LoadFromData(p.get(target).want(200).body))(t)
		if len(read.Servers) != 1 || read.Servers[0].URL != base {
			t.Errorf("%s has the servers %+v", target, read.Servers)
		}
	}
	need.Same(t, base+"/pets?limit=1", p.get("/pets?limit=1").want(200).link("first"), "the first page with a base URL")
}

// TestSpecAsJSON checks that openapi.json is openapi.yaml as JSON. With -update it writes the file.
func TestSpecAsJSON(t *testing.T) {
	t.Parallel()
	text := need.Value(os.ReadFile("openapi.yaml"))(t)
	want := need.Value(yaml.YAMLToJSON(text))(t)
	if *update {
		need.OK(t, os.WriteFile("openapi.json", want, 0o600))
	}
	got, err := os.ReadFile("openapi.json")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("openapi.json is not openapi.yaml: run make generate (%v)", err)
	}
}
