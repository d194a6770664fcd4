package gate

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
)

// Deprecation says that an operation ends, and what replaces it. TestRoutesAsDescribed compares it
// with openapi.yaml.
type Deprecation struct {
	Since, Sunset string // days, such as 2027-12-31. The operation works until the end of the sunset.
	Docs          string // the path of the operation in the API reference
	Successor     string // a path that may end with a parameter of the path of the operation, such as /pets?id={petId}
}

// deprecation has the headers of every response of a deprecated operation. Responses share
// them: do not modify.
type deprecation struct {
	since, sunset []string // the values of Deprecation (RFC 9745) and Sunset (RFC 8594)
	// end is the end of the day of the sunset.
	end time.Time

	links     string // the Link header (RFC 8288) up to the path of the successor
	successor string
}

// newDeprecation returns the headers of a route, whose links begin with base; nil: it is not deprecated.
func newDeprecation(of *Deprecation, base string) *deprecation {
	if of == nil {
		return nil
	}
	since, _ := time.Parse(time.DateOnly, of.Since)
	sunset, _ := time.Parse(time.DateOnly, of.Sunset)
	end := sunset.AddDate(0, 0, 1)
	return &deprecation{
		since:     []string{"@" + strconv.FormatInt(since.Unix(), 10)},
		sunset:    []string{end.Add(-time.Second).Format(http.TimeFormat)},
		end:       end,
		links:     fmt.Sprintf(`<%s%s>; rel="deprecation", <%s`, base, of.Docs, base),
		successor: of.Successor,
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
