package api

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"sync"

	"petstore/internal/docs"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
	"petstore/internal/openapi"
)

//go:embed openapi.yaml
var openapiYAML []byte

// openapiJSON is openapiYAML as JSON, from make generate. Converting it takes 0.1 s and 20 MB,
// and the heap of a server would keep that size.
//
//go:embed openapi.json
var openapiJSON []byte

// theSpec is the spec with relative URLs. All servers of a process share it.
var theSpec = gate.Spec{YAML: openapiYAML, JSON: openapiJSON, JSON31: upgrade(openapiYAML)}

// upgrade returns a function that upgrades the spec to OpenAPI 3.1 at its first call, which
// takes 0.2 s.
func upgrade(spec []byte) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) { return openapi.Upgrade(spec) })
}

// SpecFor returns the spec. If baseURL is not empty, it replaces the URL of the server in the
// spec.
func SpecFor(baseURL string) (gate.Spec, error) {
	d := theSpec
	if baseURL == "" {
		return d, nil
	}
	url, err := httpjson.Encode(baseURL) // JSON is valid YAML
	if err != nil {
		return d, err
	}
	for _, form := range []struct {
		text           *[]byte
		server, become string
	}{
		{&d.YAML, "\n  - url: /\n", "\n  - url: " + string(url) + "\n"},
		{&d.JSON, `"servers": [{"url": "/"`, `"servers": [{"url": ` + string(url)},
	} {
		if bytes.Count(*form.text, []byte(form.server)) != 1 {
			return d, fmt.Errorf("api: openapi.yaml must have exactly one %q", form.server)
		}
		*form.text = bytes.Replace(*form.text, []byte(form.server), []byte(form.become), 1)
	}
	d.JSON31 = upgrade(d.YAML)
	return d, nil
}

// docsFiles returns the pages of the docs and their files by path. All servers of a process
// share them.
var docsFiles = sync.OnceValue(func() map[string]*docs.File {
	return docs.New(docs.Site{Spec: theSpec.JSON, Problems: errorReference})
})

// pagesFor returns the files below /docs for a server with a spec that [SpecFor] has returned.
func pagesFor(spec gate.Spec) map[string]*docs.File {
	files := maps.Clone(docsFiles())
	files[docs.CollectionPath] = docs.NewDownload(httpjson.ContentType, func() ([]byte, error) { return docs.Collection(spec.JSON) })
	return files
}
