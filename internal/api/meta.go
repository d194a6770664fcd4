package api

import (
	"bytes"
	_ "embed"
	"fmt"
	"sync"

	"github.com/gin-gonic/gin"
	"github.com/goccy/go-yaml"
)

//go:embed openapi.yaml
var openapiYAML []byte

// description is openapi.yaml as it is served.
type description struct{ yaml, json []byte }

// Description returns openapi.yaml, and the same as JSON. Where baseURL is not
// empty, it is the server that the description names.
func Description(baseURL string) (yaml, json []byte, err error) {
	d, err := describe(baseURL)
	return d.yaml, d.json, err
}

// described is openapi.yaml in both forms, made once: it takes a tenth of a second.
var described = sync.OnceValues(func() (description, error) {
	json, err := yaml.YAMLToJSON(openapiYAML)
	if err != nil {
		return description{}, fmt.Errorf("api: openapi.yaml: %w", err)
	}
	return description{yaml: openapiYAML, json: json}, nil
})

func describe(baseURL string) (description, error) {
	d, err := described()
	if err != nil || baseURL == "" {
		return d, err
	}
	url, err := encode(baseURL) // in JSON, which is YAML too
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
			return d, fmt.Errorf("api: openapi.yaml names not exactly one server as %q", form.server)
		}
		*form.text = bytes.Replace(*form.text, []byte(form.server), []byte(form.become), 1)
	}
	return d, nil
}

func (s *Server) getOpenAPIJSON(c *gin.Context) error {
	return s.openAPIJSON.answer(c)
}

func (s *Server) getOpenAPIYAML(c *gin.Context) error {
	return s.openAPIYAML.answer(c)
}

// health is what /livez and /readyz answer when all is well.
type health struct {
	Status string            `json:"status"`
	Checks map[string]string `json:"checks,omitempty"`
}

// getLiveness says that the process runs.
func (s *Server) getLiveness(c *gin.Context) error {
	c.Header("Cache-Control", "no-store")
	return answer(c, health{Status: "ok"})
}
