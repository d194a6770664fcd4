package api

import (
	"bytes"
	_ "embed"
	"fmt"
	"sync"

	"github.com/gin-gonic/gin"
	"github.com/goccy/go-yaml"

	"petstore/internal/httpjson"
)

//go:embed openapi.yaml
var openapiYAML []byte

// spec is openapi.yaml in both formats that the server returns, and its operations by method
// and path.
type spec struct {
	yaml, json []byte
	operations map[string]specOperation
}

// Spec returns openapi.yaml, as YAML and as JSON. If baseURL is not empty, it
// replaces the URL of the server in the spec.
func Spec(baseURL string) (yaml, json []byte, err error) {
	d, err := specFor(baseURL)
	return d.yaml, d.json, err
}

// parsedSpec returns openapi.yaml, once for all servers of a process. Converting it takes 0.1 s.
var parsedSpec = sync.OnceValues(func() (spec, error) {
	json, err := yaml.YAMLToJSON(openapiYAML)
	if err != nil {
		return spec{}, fmt.Errorf("api: openapi.yaml: %w", err)
	}
	operations, err := specOperations(json)
	return spec{openapiYAML, json, operations}, err
})

func specFor(baseURL string) (spec, error) {
	d, err := parsedSpec()
	if err != nil || baseURL == "" {
		return d, err
	}
	url, err := httpjson.Encode(baseURL) // JSON is valid YAML
	if err != nil {
		return d, err
	}
	for _, form := range []struct {
		text           *[]byte
		server, become string
	}{
		{&d.yaml, "\n  - url: /\n", "\n  - url: " + string(url) + "\n"},
		{&d.json, `"servers": [{"url": "/"`, `"servers": [{"url": ` + string(url)},
	} {
		if bytes.Count(*form.text, []byte(form.server)) != 1 {
			return d, fmt.Errorf("api: openapi.yaml must have exactly one %q", form.server)
		}
		*form.text = bytes.Replace(*form.text, []byte(form.server), []byte(form.become), 1)
	}
	return d, nil
}

func (s *Server) getOpenAPIJSON(c *gin.Context) error {
	return s.openAPIJSON.write(c)
}

func (s *Server) getOpenAPIYAML(c *gin.Context) error {
	return s.openAPIYAML.write(c)
}
