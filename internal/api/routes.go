package api

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/gate"
)

const (
	webhooksPath   = "/webhooks"
	webhookPath    = webhooksPath + "/{webhookId}"
	deliveriesPath = webhookPath + "/deliveries"
	deliveryPath   = deliveriesPath + "/{deliveryId}"
	apiKeysPath    = "/account/api-keys"
	apiKeyPath     = apiKeysPath + "/{apiKeyId}"
	sandboxesPath  = "/sandboxes"
	sandboxPath    = sandboxesPath + "/{sandboxId}"
	faultsPath     = sandboxPath + "/faults"
	requestsPath   = sandboxPath + "/requests"
	requestPath    = requestsPath + "/{requestId}"
	samplesPath    = "/samples"
	samplePath     = samplesPath + "/{name}"
	reportPath     = sandboxPath + "/report"
)

// The columns of the table of routes.
const (
	read, write, admin = auth.Read, auth.Write, auth.Admin

	body, mayOmit      = gate.Body, gate.OptionalBody
	counted, expensive = gate.Counted, gate.Expensive
	waits, streams     = gate.Waits, gate.Streams
	noFaults, allNodes = gate.NoFaults, gate.AllNodes
	archives, markdown = gate.Archives, gate.Markdown
	// unseen operations are about the record of a sandbox, without faults and traces in it.
	unseen = gate.NoFaults | gate.NoRecord | gate.AllNodes
)

// routes lists every operation on resources, in the order of the spec.
func (s *Server) routes() []gate.Route {
	return slices.Concat(s.storeRoutes(), s.accountRoutes())
}

// storeRoutes lists the operations on a store.
func (s *Server) storeRoutes() []gate.Route {
	return []gate.Route{
		route("GET /pets", "listPets", read, counted, s.listPets),
		route("POST /pets", "createPet", write, body, noQuery(s.createPet)),
		deprecated(route("GET /pets/{petId}", "getPet", read, 0, byID("petId", s.getPet)), gate.Deprecation{
			Since: "2026-07-01", Sunset: "2027-12-31", Docs: "/docs/reference/pets#getPet", Successor: "/pets?id={petId}",
		}),
		route("PATCH /pets/{petId}", "updatePet", write, body, byID("petId", s.updatePet)),
		route("DELETE /pets/{petId}", "deletePet", write, 0, byID("petId", s.deletePet)),

		route("GET /categories", "listCategories", read, counted, s.listCategories),
		route("POST /categories", "createCategory", write, body, noQuery(s.createCategory)),
		route("GET /categories/{categoryId}", "getCategory", read, 0, byID("categoryId", s.getCategory)),
		route("PATCH /categories/{categoryId}", "updateCategory", write, body, byID("categoryId", s.updateCategory)),
		route("DELETE /categories/{categoryId}", "deleteCategory", write, 0, byID("categoryId", s.deleteCategory)),

		route("GET /store/orders", "listOrders", read, counted, s.listOrders),
		route("POST /store/orders", "placeOrder", write, body, noQuery(s.placeOrder)),
		route("GET /store/orders/{orderId}", "getOrder", read, 0, byID("orderId", s.getOrder)),
		route("PATCH /store/orders/{orderId}", "updateOrder", write, body, byID("orderId", s.updateOrder)),
		route("DELETE /store/orders/{orderId}", "cancelOrder", write, 0, byID("orderId", s.cancelOrder)),

		route("GET /store/inventory", "listInventory", read, counted, s.listInventory),
		route("GET /store/inventory/summary", "getInventorySummary", read, expensive, noQuery(s.getInventorySummary)),
		route("GET /store/inventory/{petId}", "getInventoryItem", read, 0, byID("petId", s.getInventoryItem)),
		route("PUT /store/inventory/{petId}", "setInventory", write, body, byID("petId", s.setInventory)),

		route("GET /messages", "listMessages", read, counted, s.listMessages),
		route("POST /messages", "queueMessage", write, body, noQuery(s.queueMessage)),
		route("GET /messages/{messageId}", "getMessage", read, waits, noQuery(s.getMessage)),

		route("GET /events", "listEvents", read, waits|streams, s.listEvents),
		route("GET /events/{eventId}", "getEvent", read, 0, noQuery(s.getEvent)),
	}
}

// accountRoutes lists the operations on webhooks, accounts, API keys, sandboxes and samples.
func (s *Server) accountRoutes() []gate.Route {
	return []gate.Route{
		route("GET "+webhooksPath, "listWebhooks", admin, counted, s.listWebhooks),
		route("POST "+webhooksPath, "createWebhook", admin, body, noQuery(s.createWebhook)),
		route("GET "+webhookPath, "getWebhook", admin, 0, noQuery(s.getWebhook)),
		route("PATCH "+webhookPath, "updateWebhook", admin, body, noQuery(s.updateWebhook)),
		route("DELETE "+webhookPath, "deleteWebhook", admin, 0, noQuery(s.deleteWebhook)),
		route("POST "+webhookPath+"/rotate", "rotateWebhook", admin, mayOmit, noQuery(s.rotateWebhook)),
		route("POST "+webhookPath+"/test", "testWebhook", admin, 0, noQuery(s.testWebhook)),
		route("POST "+webhookPath+"/probe", "probeWebhook", admin, 0, noQuery(s.probeWebhook)),
		route("POST "+webhookPath+"/replay", "replayWebhook", admin, body, noQuery(s.replayWebhook)),
		route("GET "+deliveriesPath, "listWebhookDeliveries", admin, counted, s.listWebhookDeliveries),
		route("GET "+deliveryPath, "getWebhookDelivery", admin, 0, noQuery(s.getWebhookDelivery)),
		route("POST "+deliveryPath+"/retry", "retryWebhookDelivery", admin, 0, noQuery(s.retryWebhookDelivery)),

		route("GET /account", "getAccount", read, 0, noQuery(s.getAccount)),
		route("GET "+apiKeysPath, "listAPIKeys", admin, counted, s.listAPIKeys),
		route("POST "+apiKeysPath, "createAPIKey", admin, body|allNodes, noQuery(s.createAPIKey)),
		route("GET "+apiKeyPath, "getAPIKey", admin, 0, byID("apiKeyId", s.getAPIKey)),
		route("DELETE "+apiKeyPath, "revokeAPIKey", admin, allNodes, byID("apiKeyId", s.revokeAPIKey)),
		route("POST "+apiKeyPath+"/rotate", "rotateAPIKey", admin, mayOmit|allNodes, byID("apiKeyId", s.rotateAPIKey)),

		route("GET "+sandboxesPath, "listSandboxes", admin, counted|noFaults, s.listSandboxes),
		route("POST "+sandboxesPath, "createSandbox", admin, body|expensive|noFaults|allNodes, noQuery(s.createSandbox)),
		route("GET "+sandboxPath, "getSandbox", admin, noFaults, ofSandbox(s.getSandbox)),
		route("DELETE "+sandboxPath, "deleteSandbox", admin, noFaults|allNodes, ofSandbox(s.deleteSandbox)),
		route("POST "+sandboxPath+"/reset", "resetSandbox", admin, expensive|noFaults|allNodes, ofSandbox(s.resetSandbox)),
		route("GET "+faultsPath, "getSandboxFaults", admin, noFaults|allNodes, ofSandbox(s.getSandboxFaults)),
		route("PUT "+faultsPath, "setSandboxFaults", admin, body|noFaults|allNodes, ofSandbox(s.setSandboxFaults)),
		route("DELETE "+faultsPath, "deleteSandboxFaults", admin, noFaults|allNodes, ofSandbox(s.deleteSandboxFaults)),
		route("GET "+requestsPath, "listRecordedRequests", admin, counted|waits|streams|archives|unseen, s.listRequests),
		route("DELETE "+requestsPath, "deleteRecordedRequests", admin, unseen, ofSandbox(s.deleteRequests)),
		route("GET "+requestPath, "getRecordedRequest", admin, unseen, s.getRequest),
		route("GET "+reportPath, "getReport", admin, expensive|markdown|unseen, s.getReport),

		route("GET "+samplesPath, "listSamples", admin, counted|noFaults, s.listSamples),
		route("POST "+samplesPath, "saveSample", admin, body|expensive|noFaults|allNodes, noQuery(s.saveSample)),
		route("GET "+samplePath, "getSample", admin, noFaults, s.getSample),
		route("DELETE "+samplePath, "deleteSample", admin, noFaults|allNodes, s.deleteSample),
	}
}

// route makes a line of the table. The pattern is the method and the path. Errors of other
// packages become errors of the API.
func route(pattern, operation string, scope auth.Scope, attributes gate.Attributes, handle func(*gin.Context) error) gate.Route {
	method, path, _ := strings.Cut(pattern, " ")
	return gate.Route{Method: method, Path: path, Operation: operation, Scope: scope, Attributes: attributes, Handle: func(c *gin.Context) error {
		return apiError(handle(c))
	}}
}

// deprecated returns a route that ends.
func deprecated(r gate.Route, how gate.Deprecation) gate.Route {
	r.Deprecated = &how
	return r
}

// noQuery returns a handler that first rejects parameters in the query.
func noQuery(handle func(*gin.Context) error) func(*gin.Context) error {
	return func(c *gin.Context) error {
		if err := readParams(c).Err(); err != nil {
			return err
		}
		return handle(c)
	}
}

// byID returns a handler that first reads the id in the path. It rejects parameters in the
// query.
func byID(name string, handle func(*gin.Context, int64) error) func(*gin.Context) error {
	return func(c *gin.Context) error {
		params := readParams(c)
		id := params.PathID(name)
		if err := params.Err(); err != nil {
			return err
		}
		return handle(c, id)
	}
}

// ofSandbox returns a handler that first reads the id of the sandbox in the path, as
// [readSandboxID] does. It rejects parameters in the query.
func ofSandbox(handle func(*gin.Context, string) error) func(*gin.Context) error {
	return func(c *gin.Context) error {
		params := readParams(c)
		id := readSandboxID(c, params)
		if err := params.Err(); err != nil {
			return err
		}
		return handle(c, id)
	}
}

// itemPath returns the path of the resource with this id in a collection.
func itemPath(collection string, id int64) string {
	return collection + "/" + strconv.FormatInt(id, 10)
}
