package api

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/docs"
)

// route is one operation of openapi.yaml.
type route struct {
	method, path string
	// scope is the scope that the API key needs; 0: the operation needs no key.
	scope  auth.Scope
	handle func(*gin.Context) error
}

const (
	apiKeyPath = "/account/api-keys/{apiKeyId}"
	rotatePath = apiKeyPath + "/rotate"
	resetPath  = "/sandboxes/{sandboxId}/reset"

	rotateWebhookPath = webhooksPath + "/{webhookId}/rotate"
	testWebhookPath   = webhooksPath + "/{webhookId}/test"
	deliveryPath      = deliveriesPath + "/{deliveryId}"
	retryDeliveryPath = deliveryPath + "/retry"
)

// withoutBody lists the paths whose POST reads no body.
var withoutBody = []string{resetPath, testWebhookPath, retryDeliveryPath}

// bodyOptional reports whether a request may omit the body, which then counts as {}.
func (r route) bodyOptional() bool { return r.path == rotatePath || r.path == rotateWebhookPath }

// readsBody reports whether the operation reads the body of a request.
func (r route) readsBody(method string) bool {
	return methodHasBody(method) && !slices.Contains(withoutBody, r.path)
}

// routes lists every operation, in the order of the spec.
func (s *Server) routes() []route {
	return slices.Concat(s.storeRoutes(), s.webhookRoutes(), s.accountRoutes())
}

// storeRoutes lists the operations on a store.
func (s *Server) storeRoutes() []route {
	return []route{
		{"GET", "/pets", auth.Read, s.listPets},
		{"POST", "/pets", auth.Write, s.createPet},
		{"GET", "/pets/{petId}", auth.Read, s.getPet},
		{"PATCH", "/pets/{petId}", auth.Write, s.updatePet},
		{"DELETE", "/pets/{petId}", auth.Write, s.deletePet},

		{"GET", "/categories", auth.Read, s.listCategories},
		{"POST", "/categories", auth.Write, s.createCategory},
		{"GET", "/categories/{categoryId}", auth.Read, s.getCategory},
		{"PATCH", "/categories/{categoryId}", auth.Write, s.updateCategory},
		{"DELETE", "/categories/{categoryId}", auth.Write, s.deleteCategory},

		{"GET", "/store/orders", auth.Read, s.listOrders},
		{"POST", "/store/orders", auth.Write, s.placeOrder},
		{"GET", "/store/orders/{orderId}", auth.Read, s.getOrder},
		{"PATCH", "/store/orders/{orderId}", auth.Write, s.updateOrder},
		{"DELETE", "/store/orders/{orderId}", auth.Write, s.cancelOrder},

		{"GET", "/store/inventory", auth.Read, s.listInventory},
		{"GET", summaryPath, auth.Read, s.getInventorySummary},
		{"GET", "/store/inventory/{petId}", auth.Read, s.getInventoryItem},
		{"PUT", "/store/inventory/{petId}", auth.Write, s.setInventory},

		{"GET", "/messages", auth.Read, s.listMessages},
		{"POST", "/messages", auth.Write, s.queueMessage},
		{"GET", messagePath, auth.Read, s.getMessage},

		{"GET", eventsPath, auth.Read, s.listEvents},
		{"GET", eventPath, auth.Read, s.getEvent},
	}
}

// webhookRoutes lists the operations on webhooks.
func (s *Server) webhookRoutes() []route {
	return []route{
		{"GET", webhooksPath, auth.Admin, s.listWebhooks},
		{"POST", webhooksPath, auth.Admin, s.createWebhook},
		{"GET", webhooksPath + "/{webhookId}", auth.Admin, s.getWebhook},
		{"PATCH", webhooksPath + "/{webhookId}", auth.Admin, s.updateWebhook},
		{"DELETE", webhooksPath + "/{webhookId}", auth.Admin, s.deleteWebhook},
		{"POST", rotateWebhookPath, auth.Admin, s.rotateWebhook},
		{"POST", testWebhookPath, auth.Admin, s.testWebhook},
		{"POST", webhooksPath + "/{webhookId}/replay", auth.Admin, s.replayWebhook},
		{"GET", deliveriesPath, auth.Admin, s.listWebhookDeliveries},
		{"GET", deliveryPath, auth.Admin, s.getWebhookDelivery},
		{"POST", retryDeliveryPath, auth.Admin, s.retryWebhookDelivery},
	}
}

// accountRoutes lists the operations on accounts and on the server.
func (s *Server) accountRoutes() []route {
	return []route{
		{"GET", "/account", auth.Read, s.getAccount},
		{"GET", "/account/api-keys", auth.Admin, s.listAPIKeys},
		{"POST", "/account/api-keys", auth.Admin, s.createAPIKey},
		{"GET", apiKeyPath, auth.Admin, s.getAPIKey},
		{"DELETE", apiKeyPath, auth.Admin, s.revokeAPIKey},
		{"POST", rotatePath, auth.Admin, s.rotateAPIKey},

		{"GET", "/sandboxes", auth.Admin, s.listSandboxes},
		{"POST", "/sandboxes", auth.Admin, s.createSandbox},
		{"GET", "/sandboxes/{sandboxId}", auth.Admin, s.getSandbox},
		{"DELETE", "/sandboxes/{sandboxId}", auth.Admin, s.deleteSandbox},
		{"POST", resetPath, auth.Admin, s.resetSandbox},
		{"GET", faultsPath, auth.Admin, s.getSandboxFaults},
		{"PUT", faultsPath, auth.Admin, s.setSandboxFaults},
		{"DELETE", faultsPath, auth.Admin, s.deleteSandboxFaults},

		{"GET", "/openapi.json", 0, s.getOpenAPIJSON},
		{"GET", "/openapi.yaml", 0, s.getOpenAPIYAML},
		{"GET", "/livez", 0, s.getLiveness},
		{"GET", "/readyz", 0, s.getReadiness},
	}
}

// methods are registered for every literal path, so that no pattern matches it instead.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// redirects has the status of each path that redirects to the reference page.
var redirects = map[string]int{"/": http.StatusFound, docs.ReferencePath + "/": http.StatusPermanentRedirect}

// newEngine registers the routes, with HEAD for every GET and OPTIONS for every path.
// Other requests get 404 or 405.
func (s *Server) newEngine() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	// Match segments before decoding them.
	engine.UseEscapedPath, engine.UnescapePathValues = true, true
	engine.RedirectTrailingSlash = false
	// gin's own search for other methods panics on some paths (v1.12.0 walks several
	// trees with the stack of one), so notFound distinguishes 405 from 404.
	engine.HandleMethodNotAllowed = false
	engine.RemoteIPHeaders = []string{"X-Forwarded-For"} // from trusted proxies only; anyone can send X-Real-IP
	engine.Use(s.logRequest)
	engine.NoRoute(s.handler(route{handle: s.notFound}))

	for _, r := range s.routed {
		engine.Handle(r.method, ginPath(r.path), s.handler(r))
		if r.method == http.MethodGet {
			engine.Handle(http.MethodHead, ginPath(r.path), s.handler(r))
		}
	}
	for path, allow := range s.allowed {
		preflight := preflightHeaders(allow)
		engine.Handle(http.MethodOptions, ginPath(path), s.handler(route{handle: func(c *gin.Context) error {
			c.Header("Allow", allow)
			if header := c.Writer.Header(); isPreflight(c.Request, header) {
				maps.Copy(header, preflight)
			}
			c.Status(http.StatusNoContent)
			return nil
		}}))
		if strings.Contains(path, "{") {
			continue
		}
		for _, method := range methods {
			if !slices.Contains(strings.Split(allow, ", "), method) {
				engine.Handle(method, path, s.handler(route{handle: s.notFound}))
			}
		}
	}
	for path, file := range s.docs {
		page := s.handler(route{handle: func(c *gin.Context) error { return s.writeFile(c, file) }})
		engine.GET(path, page)
		engine.HEAD(path, page)
	}
	for path, status := range redirects {
		redirect := s.handler(route{handle: func(c *gin.Context) error {
			c.Redirect(status, s.base+docs.ReferencePath)
			return nil
		}})
		engine.GET(path, redirect)
		engine.HEAD(path, redirect)
	}
	return engine
}

// notFound handles requests that match no route. The error is [errRouteNotFound] or
// [errMethodNotAllowed].
func (s *Server) notFound(c *gin.Context) error {
	if c.Request.Method == http.MethodOptions && c.Request.URL.Path == "*" { // the server as a whole (RFC 9110, section 9.3.7)
		c.Header("Allow", strings.Join(slices.Sorted(slices.Values(methods)), ", "))
		c.Status(http.StatusNoContent)
		return nil
	}
	allow := ""
	for path, methods := range s.allowed {
		if matches(path, c.Request.URL.EscapedPath()) {
			allow = methods
			if !strings.Contains(path, "{") {
				break // the literal path wins
			}
		}
	}
	if allow == "" {
		return errRouteNotFound
	}
	c.Header("Allow", allow)
	return errMethodNotAllowed
}

// allowedByPath returns the Allow header (RFC 9110, section 10.2.1) of each path.
func allowedByPath(routes []route, pages map[string]*docs.File) map[string]string {
	byPath := map[string][]string{}
	for path := range redirects { // not in the spec
		byPath[path] = []string{http.MethodGet}
	}
	for path := range pages {
		byPath[path] = []string{http.MethodGet}
	}
	for _, r := range routes {
		byPath[r.path] = append(byPath[r.path], r.method)
	}
	allowed := make(map[string]string, len(byPath))
	for path, methods := range byPath {
		if slices.Contains(methods, http.MethodGet) {
			methods = append(methods, http.MethodHead)
		}
		methods = append(methods, http.MethodOptions)
		slices.Sort(methods)
		allowed[path] = strings.Join(methods, ", ")
	}
	return allowed
}

// matches reports whether a path matches a pattern.
func matches(pattern, path string) bool {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	return slices.EqualFunc(want, have, func(want, have string) bool {
		return want == have || (strings.HasPrefix(want, "{") && have != "")
	})
}

// ginPath converts a path pattern of OpenAPI to the syntax of gin.
func ginPath(path string) string {
	return strings.NewReplacer("{", ":", "}", "").Replace(path)
}

// itemPath returns the path of the resource with this id in a collection.
func itemPath(collection string, id int64) string {
	return collection + "/" + strconv.FormatInt(id, 10)
}
