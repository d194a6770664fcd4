package docs_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"petstore/internal/docs"
	"petstore/internal/tools/need"
)

// postman are the parts of a collection that the tests read.
type postman struct {
	Variable []struct{ Key, Value string }
	Item     []postmanItem
}

// postmanItem is a request, or a folder.
type postmanItem struct {
	Name    string
	Item    []postmanItem
	Event   []struct{ Script struct{ Exec []string } }
	Request struct {
		Method string
		Auth   *struct{ Type string }
		Header []struct {
			Key, Value string
			Disabled   bool
		}
		Body *struct{ Raw string }
		URL  struct {
			Raw      string
			Variable []struct{ Key, Value string }
		}
	}
}

// requests returns the requests of a folder in order.
func (i postmanItem) requests() (all []postmanItem) {
	for _, one := range i.Item {
		if one.Item == nil {
			all = append(all, one)
		}
		all = append(all, one.requests()...)
	}
	return all
}

// collectionOf returns the collection of a spec.
func collectionOf(t *testing.T, spec []byte) (made postman) {
	t.Helper()
	text := need.Value(docs.Collection(spec))(t)
	need.OK(t, json.Unmarshal(text, &made))
	return made
}

// TestCollection compares the requests of the collection with the operations of the spec.
// `make clients` runs them.
func TestCollection(t *testing.T) {
	t.Parallel()
	var want, got []string
	for _, o := range operations(t) {
		want = append(want, o.method+" {{url}}"+strings.NewReplacer("{", ":", "}", "").Replace(o.path))
	}
	made := collectionOf(t, spec(t))
	values := map[string]string{}
	for _, variable := range made.Variable {
		values[variable.Key] = variable.Value
	}
	var deleted []string
	for _, folder := range made.Item {
		deletes := false
		for _, one := range folder.requests() {
			got = append(got, one.Request.Method+" "+one.Request.URL.Raw)
			for _, resource := range deleted {
				if strings.HasPrefix(one.Request.URL.Raw+"/", resource+"/") {
					t.Errorf("%s comes after DELETE %s", one.Name, resource)
				}
			}
			if one.Request.Method == http.MethodDelete {
				deletes, deleted = true, append(deleted, one.Request.URL.Raw)
			} else if deletes {
				t.Errorf("%s comes after a deletion", one.Name)
			}
			if isOpen := one.Request.Auth != nil && one.Request.Auth.Type == "noauth"; isOpen != (folder.Name == "meta") {
				t.Errorf("%s has the authorization %v", one.Name, one.Request.Auth)
			}
			if body := one.Request.Body; body != nil && !json.Valid([]byte(body.Raw)) {
				t.Errorf("%s has the body %s", one.Name, body.Raw)
			}
			for _, parameter := range one.Request.URL.Variable {
				if parameter.Value != "{{"+parameter.Key+"}}" || values[parameter.Key] == "" {
					t.Errorf("%s has the parameter %s of the value %s, which is %q", one.Name, parameter.Key, parameter.Value, values[parameter.Key])
				}
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	need.Same(t, want, got, "requests (want: operations, got: collection)")
	if values["url"] != "http://localhost:8080" {
		t.Errorf("the URL is %q", values["url"])
	}
	create := made.Item[0].Item[1] // Create a pet
	script := strings.Join(create.Event[0].Script.Exec, "\n")
	if !strings.Contains(script, "oneOf([201])") || !strings.Contains(script, `pm.collectionVariables.set("petId", petId)`) {
		t.Errorf("%s has the script\n%s", create.Name, script)
	}
	if header := create.Request.Header[0]; header.Key != "Idempotency-Key" || header.Value != "{{$guid}}" || header.Disabled {
		t.Errorf("%s has the header %v", create.Name, header)
	}
}

// TestCollectionServer checks that a collection has the absolute URL of a spec.
func TestCollectionServer(t *testing.T) {
	t.Parallel()
	text := bytes.Replace(spec(t), []byte(`"servers": [{"url": "/"`), []byte(`"servers": [{"url": "https://petstore.example"`), 1)
	if got := collectionOf(t, text).Variable[0].Value; got != "https://petstore.example" {
		t.Errorf("the URL is %q", got)
	}
}
