package gate

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// deprecation has the headers of every response of a deprecated operation. Responses share
// them: do not modify.
type deprecation struct {
	since, sunset []string // the values of Deprecation (RFC 9745) and Sunset (RFC 8594)
	// end is the end of the day of the sunset.
	end time.Time

	links     string // the Link header (RFC 8288) up to the path of the successor
	successor string // such as /pets?id={petId}
}

// SpecOperation has the fields of an operation in the spec that the server uses.
type SpecOperation struct {
	ID         string   `json:"operationId"`
	Tags       []string `json:"tags"`
	Deprecated bool     `json:"deprecated"`
	Since      string   `json:"x-deprecated-since"`
	Sunset     string   `json:"x-deprecated-sunset"`
	Successor  string   `json:"x-deprecated-successor"`
}

// ParseOperations returns the operations of the spec, a JSON document, by method and path.
func ParseOperations(document []byte) (map[string]SpecOperation, error) {
	var described struct {
		Paths map[string]map[string]jsontext.Value `json:"paths"`
	}
	if err := json.Unmarshal(document, &described); err != nil {
		return nil, fmt.Errorf("gate: openapi.yaml: %w", err)
	}
	all := map[string]SpecOperation{}
	for path, item := range described.Paths {
		for method, value := range item {
			if value.Kind() != '{' {
				continue // not an operation, but parameters or a summary
			}
			var operation SpecOperation
			if err := json.Unmarshal(value, &operation); err != nil {
				return nil, fmt.Errorf("gate: openapi.yaml: %s %s: %w", method, path, err)
			}
			all[strings.ToUpper(method)+" "+path] = operation
		}
	}
	return all, nil
}

// deprecations returns the deprecated ones of the operations of the spec. Their links begin
// with base. TestDeprecationsOfTheSpec checks their values.
func deprecations(operations map[string]SpecOperation, base string) map[string]*deprecation {
	all := map[string]*deprecation{}
	for name, operation := range operations {
		if operation.Deprecated {
			all[name] = newDeprecation(operation, base)
		}
	}
	return all
}

func newDeprecation(operation SpecOperation, base string) *deprecation {
	since, _ := time.Parse(time.DateOnly, operation.Since)
	sunset, _ := time.Parse(time.DateOnly, operation.Sunset)
	end := sunset.AddDate(0, 0, 1)
	return &deprecation{
		since:     []string{"@" + strconv.FormatInt(since.Unix(), 10)},
		sunset:    []string{end.Add(-time.Second).Format(http.TimeFormat)},
		end:       end,
		links:     fmt.Sprintf(`<%s/docs/reference/%s#%s>; rel="deprecation", <%s`, base, operation.Tags[0], operation.ID, base),
		successor: operation.Successor,
	}
}

// announce sets the headers, for a success or an error.
func (d *deprecation) announce(c *gin.Context) {
	successor := d.successor
	if target, parameter, named := strings.Cut(successor, "{"); named {
		if id := c.Param(strings.TrimSuffix(parameter, "}")); isID(id) {
			successor = target + id
		} else { // the successor for all ids
			successor, _, _ = strings.Cut(target, "?")
		}
	}
	header := c.Writer.Header()
	header["Deprecation"], header["Sunset"] = d.since, d.sunset
	header["Link"] = []string{d.links + successor + `>; rel="successor-version"`}
}

// isID reports whether a segment of a path is a valid id.
func isID(segment string) bool {
	_, err := strconv.ParseUint(segment, 10, 63)
	return err == nil && segment[0] != '0'
}

// sunset sets the headers of a deprecated operation. The error is
// [ErrOperationSunset] after the sunset, if the server enforces it.
func (g *Gate) sunset(c *gin.Context, d *deprecation) error {
	if d == nil {
		return nil
	}
	d.announce(c)
	if g.options.EnforceSunset && !g.options.Now().Before(d.end) {
		return ErrOperationSunset
	}
	return nil
}
