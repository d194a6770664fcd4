package openapi_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"petstore/internal/event"
	"petstore/internal/openapi"
	"petstore/internal/tools/need"
)

// readSpec returns openapi.yaml.
func readSpec(t *testing.T) []byte {
	t.Helper()
	spec := need.Value(os.ReadFile("../api/openapi.yaml"))(t)
	return spec
}

// decode parses JSON with exact numbers, as the validator needs it.
func decode(t *testing.T, text []byte) map[string]any {
	t.Helper()
	value := need.Value(jsonschema.UnmarshalJSON(strings.NewReader(string(text))))(t)
	return value.(map[string]any)
}

// TestUpgradeSchemas upgrades the forms of a schema that differ between the versions.
func TestUpgradeSchemas(t *testing.T) {
	t.Parallel()
	const spec = `
openapi: 3.0.3
paths:
  /webhooks:
    post:
      parameters: [{ schema: { type: number, minimum: 0, exclusiveMinimum: true }, example: { nullable: true } }]
components:
  parameters: {}
  schemas:
    Text: { type: string, nullable: true, example: a }
    Nested: { type: object, properties: { nullable: { type: array, items: { type: integer, nullable: true } } }, additionalProperties: false }
    Event: { required: [id], properties: { type: { type: string } } }
    EventData: {}
`
	upgraded := need.Value(openapi.Upgrade([]byte(spec)))(t)
	tree := decode(t, upgraded)
	schemas := tree["components"].(map[string]any)["schemas"].(map[string]any)
	for name, want := range map[string]string{
		"Text":   `{"type":["string","null"],"examples":["a"]}`,
		"Nested": `{"type":"object","properties":{"nullable":{"type":"array","items":{"type":["integer","null"]}}},"additionalProperties":false}`,
	} {
		need.Same[any](t, decode(t, []byte(want)), schemas[name], "%s", name)
	}
	operation := tree["paths"].(map[string]any)["/webhooks"].(map[string]any)["post"].(map[string]any)
	parameter := operation["parameters"].([]any)[0]
	want := `{"schema":{"type":"number","exclusiveMinimum":0},"example":{"nullable":true}}`
	need.Same[any](t, decode(t, []byte(want)), parameter, "parameter")
}

// TestUpgradeExamples checks the events of the upgraded spec against their schemas, with a
// validator for JSON Schema 2020-12. An event without its data is not valid.
func TestUpgradeExamples(t *testing.T) {
	t.Parallel()
	upgraded := need.Value(openapi.Upgrade(readSpec(t)))(t)
	tree := decode(t, upgraded)
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.UseRegexpEngine(func(pattern string) (jsonschema.Regexp, error) { // JSON Schema has \uXXXX, Go has \x{XXXX}
		return regexp.Compile(regexp.MustCompile(`\\u([0-9A-Fa-f]{4})`).ReplaceAllString(pattern, `\x{$1}`))
	})
	need.OK(t, compiler.AddResource("spec.json", tree))
	webhooks := tree["webhooks"].(map[string]any)
	if want := len(event.Types) + 1; len(webhooks) != want { // and webhook.test
		t.Fatalf("%d webhooks, want %d", len(webhooks), want)
	}
	all := compiler.MustCompile("spec.json#/components/schemas/WebhookEvent")
	for name, item := range webhooks {
		operation := item.(map[string]any)["post"].(map[string]any)
		if text, _ := operation["description"].(string); len(strings.Fields(text)) < 10 {
			t.Errorf("%s has the text %q", name, text)
		}
		media := operation["requestBody"].(map[string]any)["content"].(map[string]any)["application/json"].(map[string]any)
		example := media["example"].(map[string]any)
		own := compiler.MustCompile("spec.json" + media["schema"].(map[string]any)["$ref"].(string))
		for _, schema := range []*jsonschema.Schema{own, all} {
			if err := schema.Validate(example); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if data := example["data"].(map[string]any); len(data) > 0 {
			example["data"] = map[string]any{}
			if own.Validate(example) == nil {
				t.Errorf("%s is valid without its data", name)
			}
			example["data"] = data
		}
		example["type"] = "pet.sold"
		if own.Validate(example) == nil {
			t.Errorf("%s is valid with another type", name)
		}
	}
	if strings.Contains(string(upgraded), "nullable") || !strings.Contains(string(upgraded), "9223372036854775807") {
		t.Error("the upgraded spec has nullable, or a rounded number")
	}
	var order struct {
		Paths json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(upgraded, &order); err != nil || !strings.HasPrefix(string(order.Paths), `{"/pets": {"get": {`) {
		t.Errorf("the paths begin with %.40s: %v", order.Paths, err)
	}
}
