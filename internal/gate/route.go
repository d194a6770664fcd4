package gate

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/docs"
	"petstore/internal/httpjson"
)

// Route is one operation of openapi.yaml.
type Route struct {
	Method string
	// Path is the path pattern. A {name} in it matches one segment.
	Path string
	// Operation is the operationId.
	Operation string
	// Scope is the scope that the API key needs; 0: the operation needs no key.
	Scope      auth.Scope
	Attributes Attributes
	Deprecated *Deprecation // nil: it is not
	// Handle sends the response, or returns an error before it sends anything.
	Handle func(*gin.Context) error
}

// Attributes are the facts about an operation that decide what happens before and after its
// handler. TestRoutesAsDescribed compares them with openapi.yaml.
type Attributes uint16

// The attributes of an operation.
const (
	// Body means that a request has a JSON body, which the handler reads.
	Body Attributes = 1 << iota
	optional
	// Counted means that the operation is a list with Prefer: count=exact, which makes a
	// request expensive.
	Counted
	// Expensive means that each request is expensive.
	Expensive
	// Waits means that a request may wait for a change with Prefer: wait.
	Waits
	// Streams means that a request may get a stream of events.
	Streams
	// NoFaults means that no fault rule of a sandbox applies. Otherwise a rule could stop the
	// requests that remove it.
	NoFaults
	// AllNodes means that the operation needs all nodes of a sharded cluster. It changes accounts
	// or keys, of which each node has a copy, or uses the rows of a sandbox.
	AllNodes
	// NoRecord means that the record of a sandbox does not have the requests. Otherwise
	// everybody who reads the record would fill it.
	NoRecord
	// Archives means that a list may be an HTTP Archive.
	Archives
	// Markdown means that the response may be Markdown.
	Markdown
	// Probe means that load balancers send the requests. The metrics do not count them, because a
	// process that gets nothing else fails no client.
	Probe

	// OptionalBody is a Body that a request may omit. It then counts as {}.
	OptionalBody = Body | optional
)

// has reports whether an operation has all of these attributes.
func (r Route) has(attributes Attributes) bool { return r.Attributes&attributes == attributes }

// HasFaults reports whether fault rules of a sandbox may name the operation.
func (r Route) HasFaults() bool { return r.Scope != 0 && !r.has(NoFaults) }

// The media types of responses besides JSON.
const (
	// StreamType is the content type of Server-Sent Events
	// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
	StreamType = "text/event-stream"
	// ArchiveType is the content type of HTTP Archives, which has no registration.
	ArchiveType = "application/har+json"
	// MarkdownType is the content type of Markdown.
	MarkdownType = "text/markdown"
)

// accepted reports whether Accept allows a response of the operation.
func (r Route) accepted(header http.Header) bool {
	return httpjson.AcceptsJSON(header) || r.has(Streams) && httpjson.Prefers(header, StreamType) || r.has(Archives) && httpjson.Prefers(header, ArchiveType) ||
		r.has(Markdown) && httpjson.Prefers(header, MarkdownType)
}

// ExpensiveCost is the number of requests that an expensive one counts as. Exact counts
// and the inventory summary read an index entry for every matching row. For 400,000 rows
// that takes 0.33 s of CPU time. A new sandbox and a reset load a sample.
const ExpensiveCost = 10

// cost returns the number of requests that a request counts as in the limits of its key
// and its account. [Gate.Charge] adds what a handler finds out later.
func (r Route) cost(request *http.Request) int {
	if r.has(Expensive) || r.has(Counted) && httpjson.PrefersCount(request.Header) {
		return ExpensiveCost
	}
	return 1
}

// ownRoutes lists the operations on the server itself.
func (g *Gate) ownRoutes(spec Spec) []Route {
	file := func(contentType string, text func() ([]byte, error)) func(*gin.Context) error {
		made := docs.NewDownload(contentType, text)
		return func(c *gin.Context) error { return writeFile(c, made) }
	}
	yaml := func() ([]byte, error) { return spec.YAML, nil }
	json := func() ([]byte, error) { return spec.JSON, nil }
	return []Route{
		{"GET", "/openapi.json", "getOpenAPIJSON", 0, 0, nil, file(httpjson.ContentType, json)},
		{"GET", "/openapi-3.1.json", "getOpenAPI31JSON", 0, 0, nil, file(httpjson.ContentType, spec.JSON31)},
		{"GET", "/openapi.yaml", "getOpenAPIYAML", 0, 0, nil, file("application/yaml", yaml)}, // RFC 9512
		{"GET", "/livez", "getLiveness", 0, Probe, nil, g.getLiveness},
		{"GET", "/readyz", "getReadiness", 0, Probe, nil, g.getReadiness},
	}
}

// methods are registered for every literal path, so that no pattern matches it instead.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// getOrHead has the methods of reads.
var getOrHead = methods[:2]

// redirects has the page that each path redirects to, and the status.
var redirects = map[string]struct {
	to     string
	status int
}{
	"/":                    {docs.HomePath, http.StatusFound},
	docs.HomePath + "/":    {docs.HomePath, http.StatusPermanentRedirect},
	docs.ConsolePath + "/": {docs.ConsolePath, http.StatusPermanentRedirect},
}

// newEngine registers the routes, with HEAD for every GET and OPTIONS for every path.
// Other requests get 404 or 405.
func (g *Gate) newEngine() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	// Match segments before decoding them.
	engine.UseEscapedPath, engine.UnescapePathValues = true, true
	engine.RedirectTrailingSlash = false
	// gin's own search for other methods panics on some paths (v1.12.0 walks several
	// trees with the stack of one), so notFound distinguishes 405 from 404.
	engine.HandleMethodNotAllowed = false
	engine.RemoteIPHeaders = []string{"X-Forwarded-For"} // from trusted proxies only; anyone can send X-Real-IP
	engine.Use(g.logRequest)
	engine.NoRoute(g.handler(Route{Handle: g.notFound}))

	g.patterns = map[string]string{}
	for _, r := range g.routes {
		g.patterns[ginPath(r.Path)] = r.Path
		registered := []string{r.Method}
		if r.Method == http.MethodGet {
			registered = getOrHead
		}
		engine.Match(registered, ginPath(r.Path), g.handler(r)) // without the regular expression of Handle
	}
	for path, file := range g.api.Pages {
		engine.Match(getOrHead, path, g.handler(Route{Handle: func(c *gin.Context) error { return writeFile(c, file) }}))
	}
	for path, target := range redirects {
		engine.Match(getOrHead, path, g.handler(Route{Handle: func(c *gin.Context) error {
			c.Redirect(target.status, g.options.BaseURL+target.to)
			return nil
		}}))
	}
	g.addOptions(engine)
	return engine
}

// addOptions adds OPTIONS to the paths of an engine. A literal path gets the other methods too.
func (g *Gate) addOptions(engine *gin.Engine) {
	registered := map[string][]string{} // methods by path
	for _, r := range engine.Routes() {
		registered[r.Path] = append(registered[r.Path], r.Method)
	}
	g.allowed = map[string]string{}
	for path, allowed := range registered {
		allowed = append(allowed, http.MethodOptions)
		slices.Sort(allowed)
		allow := strings.Join(allowed, ", ")
		g.allowed[path] = allow
		preflight := preflightHeaders(allow)
		engine.OPTIONS(path, g.handler(Route{Handle: func(c *gin.Context) error {
			c.Header("Allow", allow)
			if isPreflight(c.Request) {
				maps.Copy(c.Writer.Header(), preflight)
			}
			c.Status(http.StatusNoContent)
			return nil
		}}))
		if !strings.Contains(path, ":") {
			others := slices.DeleteFunc(slices.Clone(methods), func(method string) bool { return slices.Contains(allowed, method) })
			engine.Match(others, path, g.handler(Route{Handle: g.notFound}))
		}
	}
}

// deepest is more than the segments of any route. Longer paths cost nothing: a client without a key may
// send thousands of segments, and a page would have as many steps up in each link.
const deepest = 20

// notFound handles requests that match no route. Browsers get a page. Otherwise, the error is
// [ErrRouteNotFound] or [ErrMethodNotAllowed].
func (g *Gate) notFound(c *gin.Context) error {
	if c.Request.Method == http.MethodOptions && c.Request.URL.Path == "*" { // the server as a whole (RFC 9110, section 9.3.7)
		c.Header("Allow", strings.Join(slices.Sorted(slices.Values(methods)), ", "))
		c.Status(http.StatusNoContent)
		return nil
	}
	path := c.Request.URL.EscapedPath()
	if strings.Count(path, "/") > deepest {
		return ErrRouteNotFound
	}
	allow, requested := "", strings.Split(path, "/")
	for pattern, methods := range g.allowed {
		if matches(pattern, requested) {
			allow = methods
			if !strings.Contains(pattern, ":") {
				break // the literal path wins
			}
		}
	}
	if allow == "" && isPreflight(c.Request) { // otherwise, a page gets a network error instead of the 404
		maps.Copy(c.Writer.Header(), preflightHeaders(strings.Join(slices.Sorted(slices.Values(methods)), ", ")))
		c.Status(http.StatusNoContent)
		return nil
	}
	if allow == "" {
		return g.sendNotFound(c)
	}
	c.Header("Allow", allow)
	return ErrMethodNotAllowed
}

// matches reports whether the segments of a path match a pattern in the syntax of gin.
func matches(pattern string, path []string) bool {
	return slices.EqualFunc(strings.Split(pattern, "/"), path, func(want, have string) bool {
		return want == have || (strings.HasPrefix(want, ":") && have != "")
	})
}

// matchedPath returns the pattern of a route that matches a path, in the syntax of gin, or "". In gin, an
// empty segment matches a parameter unless it is the last one.
func matchedPath(c *gin.Context) string {
	if slices.ContainsFunc(c.Params, func(p gin.Param) bool { return p.Value == "" }) {
		return ""
	}
	return c.FullPath()
}

var ginSyntax = strings.NewReplacer("{", ":", "}", "")

// ginPath converts a path pattern of OpenAPI to the syntax of gin.
func ginPath(path string) string { return ginSyntax.Replace(path) }
