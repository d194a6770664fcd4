package api

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// deprecation is what clients are told, with every answer, of an operation that
// is to end.
type deprecation struct {
	fields http.Header // Deprecation (RFC 9745) and Sunset (RFC 8594)
	// end is when the sunset is over.
	end time.Time

	// links is the Link field (RFC 8288) up to the successor: target, which the
	// parameter of the path completes where it is an id, or else anyID.
	links, target, parameter, anyID string
}

// describedOperation is what the server reads of an operation of the description.
type describedOperation struct {
	ID         string   `json:"operationId"`
	Tags       []string `json:"tags"`
	Deprecated bool     `json:"deprecated"`
	Since      string   `json:"x-deprecated-since"`
	Sunset     string   `json:"x-deprecated-sunset"`
	Successor  string   `json:"x-deprecated-successor"`
}

// deprecations reads the description, as JSON, and gives the deprecated
// operations by method and path. The links begin with base.
func deprecations(document []byte, base string) (map[string]*deprecation, error) {
	var described struct {
		Paths map[string]map[string]jsontext.Value `json:"paths"`
	}
	if err := json.Unmarshal(document, &described); err != nil {
		return nil, fmt.Errorf("api: openapi.yaml: %w", err)
	}
	all := map[string]*deprecation{}
	for path, item := range described.Paths {
		for member, value := range item {
			if value.Kind() != '{' {
				continue // parameters, or a summary
			}
			var operation describedOperation
			if err := json.Unmarshal(value, &operation); err != nil {
				return nil, fmt.Errorf("api: openapi.yaml: %s %s: %w", member, path, err)
			}
			if !operation.Deprecated {
				continue
			}
			d, err := newDeprecation(path, operation, base)
			if err != nil {
				return nil, fmt.Errorf("api: openapi.yaml: %s %s: %w", member, path, err)
			}
			all[strings.ToUpper(member)+" "+path] = d
		}
	}
	return all, nil
}

func newDeprecation(path string, operation describedOperation, base string) (*deprecation, error) {
	since, err := time.Parse(time.DateOnly, operation.Since)
	if err != nil {
		return nil, fmt.Errorf("x-deprecated-since: %w", err)
	}
	sunset, err := time.Parse(time.DateOnly, operation.Sunset)
	if err != nil {
		return nil, fmt.Errorf("x-deprecated-sunset: %w", err)
	}
	if sunset.Before(since) {
		return nil, errors.New("x-deprecated-sunset lies before x-deprecated-since")
	}
	target, parameter, named := strings.Cut(operation.Successor, "{")
	known := strings.HasSuffix(parameter, "}") && strings.Contains(path, "{"+parameter)
	if !strings.HasPrefix(target, "/") || named && !known {
		return nil, errors.New("x-deprecated-successor is no path that ends, if at all, with a parameter of this one")
	}
	if len(operation.Tags) == 0 {
		return nil, errors.New("there is no tag to find it by in the docs")
	}
	anyID := target
	if named {
		anyID, _, _ = strings.Cut(target, "?")
	}
	end := sunset.AddDate(0, 0, 1)
	return &deprecation{
		fields: http.Header{
			"Deprecation": {"@" + strconv.FormatInt(since.Unix(), 10)},
			"Sunset":      {end.Add(-time.Second).Format(http.TimeFormat)},
		},
		end:       end,
		links:     fmt.Sprintf(`<%s/docs#/%s/%s>; rel="deprecation", <%s`, base, operation.Tags[0], operation.ID, base),
		anyID:     anyID,
		target:    target,
		parameter: strings.TrimSuffix(parameter, "}"),
	}, nil
}

// announce tells the client, whatever the answer will be.
func (d *deprecation) announce(c *gin.Context) {
	target := d.anyID
	if id := c.Param(d.parameter); isID(id) {
		target = d.target + id
	}
	header := c.Writer.Header()
	maps.Copy(header, d.fields)
	header["Link"] = []string{d.links + target + `>; rel="successor-version"`}
}

// isID reports whether a segment of a path is an id that could be there.
func isID(segment string) bool {
	id, err := strconv.ParseInt(segment, 10, 64)
	return err == nil && id > 0 && strconv.FormatInt(id, 10) == segment
}
