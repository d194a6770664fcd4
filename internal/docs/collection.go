package docs

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
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

// Collection returns a Postman collection of the operations of openapi.json, in JSON. It has a
// folder for each tag. Optional parameters are disabled. The requests work as they are, one
// after the other. A script of each checks the status, and stores the ids of the response for
// later requests. Those that delete come last in a folder, and forget the id. So a folder whose
// requests need an id that another folder deletes is in that folder, before the deletions.
func Collection(specJSON []byte) ([]byte, error) {
	s, err := parseSpec(specJSON)
	if err != nil {
		return nil, err
	}
	c := collector{spec: s}
	for _, tag := range s.Tags {
		if items := c.items(tag.Name); len(items) > 0 {
			c.addFolder(item{Name: tag.Name, Description: withoutLinks(tag.Description), Item: items})
		}
	}
	c.made.Info.Name, c.made.Info.Schema = s.Info.Title, collectionSchema
	c.made.Info.Description = "Set the variables `url` and `apiKey` in an environment. Best take the admin key of a sandbox, because the requests change the store. " +
		"The folders accounts and sandboxes need the admin key of an account. The folder clients is in sandboxes."
	c.made.Auth = authorization{Type: "bearer", Bearer: []variable{{Key: "token", Value: "{{" + keyVariable + "}}", Type: "string"}}}
	c.made.Variable = append([]variable{{Key: urlVariable, Value: serverOf(s)}, {Key: keyVariable}}, c.made.Variable...)
	return json.Marshal(c.made)
}

// collector makes a collection.
type collector struct {
	spec *spec
	made collection
}

// serverOf returns the URL of the server of a spec, or the one of dev if it is relative.
func serverOf(s *spec) string {
	for _, server := range s.Servers {
		if strings.HasPrefix(server.URL, "http") {
			return server.URL
		}
	}
	return defaultServer
}

// items returns the requests of a tag, in the order of the spec and those that delete last.
func (c *collector) items(tag string) (items []item) {
	var deletions []item
	for _, o := range c.spec.operations {
		switch {
		case o.Tags[0] != tag:
		case o.Method == http.MethodDelete:
			deletions = slices.Insert(deletions, 0, c.item(o))
		default:
			items = append(items, c.item(o))
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
func (c *collector) item(o *Operation) item {
	path := pathParameter.ReplaceAllString(o.Path, ":$1")
	made := item{Name: o.Summary}
	made.Request = &request{
		Method: o.Method, Header: []variable{}, Description: withoutLinks(o.Description),
		URL: target{Raw: "{{url}}" + path, Host: []string{"{{url}}"}, Path: strings.Split(path[1:], "/")},
	}
	if o.Public {
		made.Request.Auth = &authorization{Type: "noauth"}
	}
	for _, one := range o.Parameters {
		c.addParameter(made.Request, one)
	}
	made.Event = []script{c.script(o)}
	if media := o.Body(); media != nil && media.Example != nil {
		made.Request.Header = append(made.Request.Header, variable{Key: "Content-Type", Value: "application/json"})
		made.Request.Body = &body{Mode: "raw", Raw: c.withIDs(text(media.Example)), Options: map[string]any{"raw": map[string]string{"language": "json"}}}
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
func (c *collector) addParameter(r *request, p Parameter) {
	one := variable{Key: p.Name, Value: textOf(p.Example), Description: withoutLinks(p.Description), Disabled: !p.Required}
	switch p.In {
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
func (c *collector) script(o *Operation) script {
	isDeletion := o.Method == http.MethodDelete
	var statuses []string
	stored := map[string]string{} // ids of the response by variable
	for _, r := range o.ResponseList {
		if strings.HasPrefix(r.Name, "2") || r.Name == "409" && isDeletion || // the store may not allow it
			r.Name == "404" && o.Path == requestsPath+"/{requestId}" { // nobody has used the key of a new sandbox
			statuses = append(statuses, r.Name)
		}
		for _, link := range r.Value.Links {
			for _, parameter := range link.Value.Parameters {
				if parameter.Value == "$response.body#/id" {
					stored[parameter.Name] = "body.id"
				}
			}
		}
	}
	if name, isListed := listed[o.Path]; isListed && o.Method == http.MethodGet {
		stored[name] = "body[0]?.id"
	}
	var made script
	made.Listen, made.Script.Type = "test", "text/javascript"
	made.Script.Exec = []string{fmt.Sprintf("pm.test(pm.info.requestName, () => pm.expect(pm.response.code).to.be.oneOf([%s]));", strings.Join(statuses, ", "))}
	if len(stored) > 0 {
		made.Script.Exec = append(made.Script.Exec, "const body = pm.response.code < 300 ? pm.response.json() : {};")
	}
	if name, isLast := strings.CutSuffix(o.Path[strings.LastIndex(o.Path, "{")+1:], "}"); isDeletion && isLast {
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
func textOf(example jsontext.Value) string {
	if example.Kind() != '[' {
		return text(example)
	}
	var values []jsontext.Value
	if json.Unmarshal(example, &values) != nil || len(values) == 0 {
		return ""
	}
	return text(values[0])
}

var markdownLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// withoutLinks returns Markdown without links, which are relative to the spec.
func withoutLinks(markdown string) string {
	return strings.TrimSpace(markdownLink.ReplaceAllString(markdown, "$1"))
}
