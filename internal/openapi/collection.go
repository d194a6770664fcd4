package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// The format of the collection, see https://schema.postman.com.
const (
	collectionSchema = "https://schema.getpostman.com/json/collection/v2.1.0/collection.json"
	urlVariable      = "url"
	keyVariable      = "apiKey"
	defaultServer    = "http://localhost:8080"
)

// listed has the parameters whose ids no request creates, by the path of the list that has them.
var listed = map[string]string{"/events": "eventId", requestsPath: "requestId"}

// requestsPath is the path of the record of a sandbox.
const requestsPath = "/sandboxes/{sandboxId}/requests"

// collection is a Postman collection.
type collection struct {
	Info struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		Schema      string `json:"schema"`
	} `json:"info"`
	Auth     authorization `json:"auth"`
	Variable []variable    `json:"variable"`
	Item     []item        `json:"item"`
}

type authorization struct {
	Type   string     `json:"type"`
	Bearer []variable `json:"bearer,omitempty"`
}

type variable struct {
	Key         string `json:"key"`
	Value       string `json:"value"`
	Type        string `json:"type,omitempty"`
	Description string `json:"description,omitempty"`
	Disabled    bool   `json:"disabled,omitempty"`
}

// item is a request, or a folder of items.
type item struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Item        []item   `json:"item,omitempty"`
	Event       []script `json:"event,omitempty"`
	Request     *request `json:"request,omitempty"`
}

type script struct {
	Listen string `json:"listen"`
	Script struct {
		Type string   `json:"type"`
		Exec []string `json:"exec"`
	} `json:"script"`
}

type request struct {
	Method      string         `json:"method"`
	Auth        *authorization `json:"auth,omitempty"`
	Header      []variable     `json:"header"`
	Body        *body          `json:"body,omitempty"`
	URL         target         `json:"url"`
	Description string         `json:"description"`
}

type body struct {
	Mode    string         `json:"mode"`
	Raw     string         `json:"raw"`
	Options map[string]any `json:"options"`
}

type target struct {
	Raw      string     `json:"raw"`
	Host     []string   `json:"host"`
	Path     []string   `json:"path"`
	Query    []variable `json:"query,omitempty"`
	Variable []variable `json:"variable,omitempty"`
}

// Collection returns a Postman collection of the operations of a spec, in JSON. It has a
// folder for each tag. Optional parameters are disabled. The requests work as they are, one
// after the other. A script of each checks the status, and stores the ids of the response for
// later requests. Those that delete come last in a folder, and forget the id. So a folder whose
// requests need an id that another folder deletes is in that folder, before the deletions.
func Collection(spec []byte) ([]byte, error) {
	tree, err := parse(spec)
	if err != nil {
		return nil, err
	}
	c := collector{tree: tree}
	for _, tag := range list(tree, "tags") {
		if items := c.items(getString(tag, "name")); len(items) > 0 {
			c.addFolder(item{Name: getString(tag, "name"), Description: plainText(getString(tag, "description")), Item: items})
		}
	}
	c.made.Info.Name, c.made.Info.Schema = getString(tree, "info", "title"), collectionSchema
	c.made.Info.Description = "Set the variables `url` and `apiKey` in an environment. Best take the admin key of a sandbox, because the requests change the store. " +
		"The folders accounts and sandboxes need the admin key of an account. The folder clients is in sandboxes."
	c.made.Auth = authorization{Type: "bearer", Bearer: []variable{{Key: "token", Value: "{{" + keyVariable + "}}", Type: "string"}}}
	c.made.Variable = append([]variable{{Key: urlVariable, Value: serverOf(tree)}, {Key: keyVariable}}, c.made.Variable...)
	return json.Marshal(c.made)
}

// collector makes a collection.
type collector struct {
	tree object
	made collection
}

// serverOf returns the URL of the server of a spec, or the one of dev if it is relative.
func serverOf(tree object) string {
	for _, server := range list(tree, "servers") {
		if address := getString(server, "url"); strings.HasPrefix(address, "http") {
			return address
		}
	}
	return defaultServer
}

// list returns the objects in the array at a path.
func list(tree any, path ...string) (all []object) {
	elements, _ := get(tree, path...).([]any)
	for _, element := range elements {
		one, _ := element.(object)
		all = append(all, one)
	}
	return all
}

// resolve returns the component that an object refers to, or the object.
func (c *collector) resolve(part object) object {
	if address := getString(part, "$ref"); address != "" {
		return getObject(c.tree, strings.Split(strings.TrimPrefix(address, "#/"), "/")...)
	}
	return part
}

// items returns the requests of a tag, in the order of the spec and those that delete last.
func (c *collector) items(tag string) (items []item) {
	var deletions []item
	for _, path := range getObject(c.tree, "paths") {
		name, _ := path.Key.(string)
		for _, method := range []string{"get", "post", "put", "patch", "delete"} {
			operation := getObject(path.Value, method)
			tags, _ := get(operation, "tags").([]any)
			switch {
			case !slices.Contains(tags, any(tag)):
			case method == "delete":
				deletions = slices.Insert(deletions, 0, c.item(method, name, operation))
			default:
				items = append(items, c.item(method, name, operation))
			}
		}
	}
	return append(items, deletions...)
}

// addFolder adds a folder, to the one that deletes what its requests need if there is one.
func (c *collector) addFolder(added item) {
	for i, folder := range c.made.Item {
		at := slices.IndexFunc(folder.Item, item.deletes)
		if at >= 0 && slices.ContainsFunc(folder.Item[at:], func(deletion item) bool {
			return strings.HasPrefix(added.Item[0].Request.URL.Raw, deletion.Request.URL.Raw+"/")
		}) {
			c.made.Item[i].Item = slices.Insert(folder.Item, at, added)
			return
		}
	}
	c.made.Item = append(c.made.Item, added)
}

// deletes reports whether the item is a request that deletes.
func (i item) deletes() bool { return i.Request != nil && i.Request.Method == http.MethodDelete }

// item returns the request of an operation.
func (c *collector) item(method, path string, operation object) item {
	made := item{Name: getString(operation, "summary")}
	made.Request = &request{
		Method: strings.ToUpper(method), Header: []variable{}, Description: plainText(getString(operation, "description")),
		URL: target{Raw: "{{url}}" + pathParameter.ReplaceAllString(path, ":$1"), Host: []string{"{{url}}"}},
	}
	made.Request.URL.Path = strings.Split(strings.TrimPrefix(pathParameter.ReplaceAllString(path, ":$1"), "/"), "/")
	if security, ok := get(operation, "security").([]any); ok && len(security) == 0 {
		made.Request.Auth = &authorization{Type: "noauth"}
	}
	for _, one := range append(list(c.tree, "paths", path, "parameters"), list(operation, "parameters")...) {
		c.addParameter(made.Request, c.resolve(one))
	}
	made.Event = []script{c.script(method, path, operation)}
	media := getObject(operation, "requestBody", "content", "application/json")
	if example := getObject(media, "example"); example != nil {
		made.Request.Header = append(made.Request.Header, variable{Key: "Content-Type", Value: "application/json"})
		made.Request.Body = &body{Mode: "raw", Raw: c.withIDs(indented(example)), Options: map[string]any{"raw": map[string]string{"language": "json"}}}
	}
	return made
}

// withIDs replaces the ids in a body by the variables of the collection, if they are texts.
func (c *collector) withIDs(body string) string {
	for _, known := range c.made.Variable {
		if strings.HasSuffix(known.Key, "Id") {
			body = strings.ReplaceAll(body, fmt.Sprintf("%q", known.Value), fmt.Sprintf("%q", "{{"+known.Key+"}}"))
		}
	}
	return body
}

var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

// addParameter adds a parameter to a request. A parameter of the path gets its value from a
// variable of the collection.
func (c *collector) addParameter(r *request, parameter object) {
	one := variable{
		Key: getString(parameter, "name"), Value: textOf(get(parameter, "example")), Description: plainText(getString(parameter, "description")),
		Disabled: get(parameter, "required") != true,
	}
	switch getString(parameter, "in") {
	case "path":
		if !slices.ContainsFunc(c.made.Variable, func(known variable) bool { return known.Key == one.Key }) {
			c.made.Variable = append(c.made.Variable, variable{Key: one.Key, Value: one.Value})
		}
		r.URL.Variable = append(r.URL.Variable, variable{Key: one.Key, Value: "{{" + one.Key + "}}", Description: one.Description})
	case "query":
		r.URL.Query = append(r.URL.Query, one)
	case "header":
		if one.Key == "Idempotency-Key" {
			one.Value, one.Disabled = "{{$guid}}", false
		}
		r.Header = append(r.Header, one)
	}
}

// script returns the script that runs after a request.
func (c *collector) script(method, path string, operation object) script {
	var statuses []string
	stored := map[string]string{} // ids of the response by variable
	for _, one := range getObject(operation, "responses") {
		status, _ := one.Key.(string)
		if strings.HasPrefix(status, "2") || status == "409" && method == "delete" || // the store may not allow it
			status == "404" && path == requestsPath+"/{requestId}" { // nobody has used the key of a new sandbox
			statuses = append(statuses, status)
		}
		response, _ := one.Value.(object)
		for _, link := range getObject(c.resolve(response), "links") {
			for _, parameter := range getObject(link.Value, "parameters") {
				if parameter.Value == "$response.body#/id" {
					stored[fmt.Sprint(parameter.Key)] = "body.id"
				}
			}
		}
	}
	if name, isListed := listed[path]; isListed && method == "get" {
		stored[name] = "body[0]?.id"
	}
	var made script
	made.Listen, made.Script.Type = "test", "text/javascript"
	made.Script.Exec = []string{fmt.Sprintf("pm.test(pm.info.requestName, () => pm.expect(pm.response.code).to.be.oneOf([%s]));", strings.Join(statuses, ", "))}
	if len(stored) > 0 {
		made.Script.Exec = append(made.Script.Exec, "const body = pm.response.code < 300 ? pm.response.json() : {};")
	}
	if name, isLast := strings.CutSuffix(path[strings.LastIndex(path, "{")+1:], "}"); method == "delete" && isLast {
		i := slices.IndexFunc(c.made.Variable, func(one variable) bool { return one.Key == name })
		made.Script.Exec = append(made.Script.Exec, fmt.Sprintf("if (pm.response.code < 300) pm.collectionVariables.set(%q, %q);", name, c.made.Variable[i].Value))
	}
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		made.Script.Exec = append(made.Script.Exec,
			fmt.Sprintf("const %s = %s;", name, stored[name]), fmt.Sprintf("if (%s) pm.collectionVariables.set(%q, %s);", name, name, name))
	}
	return made
}

// textOf returns an example of a parameter as it is in a URL or a header.
func textOf(example any) string {
	switch example := example.(type) {
	case nil:
		return ""
	case []any:
		if len(example) > 0 {
			return fmt.Sprint(example[0])
		}
		return ""
	default:
		return fmt.Sprint(example)
	}
}

// indented returns the JSON of an object for people.
func indented(tree object) string {
	text, err := encode(tree)
	var made bytes.Buffer
	if err != nil || json.Indent(&made, bytes.TrimSpace(text), "", "  ") != nil {
		return ""
	}
	return made.String()
}

var markdownLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// plainText returns Markdown without links, which are relative to the spec.
func plainText(markdown string) string {
	return strings.TrimSpace(markdownLink.ReplaceAllString(markdown, "$1"))
}
