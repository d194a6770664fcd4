package api_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"petstore/internal/tools/need"
)

// listed has the path of what the sample shop lacks, for the operations that list it.
var listed = map[string]string{"listMessages": "/messages", "listWebhooks": "/webhooks", "listSandboxes": "/sandboxes"}

// exampleBody returns the example of the body of a POST.
func exampleBody(path string) any {
	return theContract().document.Paths.Value(path).Post.RequestBody.Value.Content.Get("application/json").Example
}

// ownStory has the operations whose examples show more than a sample can make happen: deliveries
// take time, an account has a name of its own, and events have a test of their own.
var ownStory = []string{
	"listEvents", "getEvent", "listWebhookDeliveries", "getWebhookDelivery", "replayWebhook", "getAccount", "listAPIKeys",
	"getSandboxFaults", "listRecordedRequests", "getRecordedRequest", "getReport", "getOpenAPIJSON", "getOpenAPI31JSON", "getOpenAPIYAML",
}

// wantExample compares the output of a cURL sample with the example response of its operation,
// apart from values that differ each time.
func (p *petstore) wantExample(s sample, output string) {
	p.t.Helper()
	if slices.Contains(ownStory, s.operationID) {
		return
	}
	operation := theContract().document.Paths.Value(s.path).GetOperation(s.method)
	for status, described := range operation.Responses.Map() {
		media := described.Value.Content.Get("application/json")
		if !strings.HasPrefix(status, "2") || media == nil || media.Example == nil {
			continue
		}
		var got any
		if err := json.Unmarshal([]byte(output), &got); err != nil {
			p.t.Fatalf("%v: %s", err, output)
		}
		want := plain(p.t, media.Example)
		need.Same(p.t, constant("", want), constant("", got),
			"the example of %s is not the response to its sample, which is %s (want: example, got: response)", s.operationID, strings.TrimSpace(output))
	}
}

// plain returns a value as encoding/json reads it.
func plain(t testing.TB, value any) (read any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	need.OK(t, err)
	return read
}

var changing = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT.*Z|(.*(?:msg|wh|evt|dlv|acc|sbx|petstore|whsec)_).*)$`)

// numbered reports whether a value is an id that the server has assigned after the sample shop.
func numbered(value any) bool {
	id, isNumber := value.(float64)
	return isNumber && id > 1000
}

// constant replaces times, secrets and the ids that the server assigns, which differ each time.
func constant(name string, value any) any {
	switch value := value.(type) {
	case map[string]any:
		_, isKey := value["prefix"]
		delete(value, "lastUsedAt")
		for field, v := range value {
			value[field] = constant(field, v)
			if isKey && field == "id" || field == "id" && numbered(v) {
				value[field] = "assigned"
			}
		}
	case []any:
		for i, v := range value {
			value[i] = constant(name, v)
		}
	case string:
		if name != "shipDate" {
			return changing.ReplaceAllString(value, "$2")
		}
	case float64:
		if name == "durationMs" {
			return 0.0
		}
	}
	return value
}
