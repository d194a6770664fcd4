package openapi

import (
	"slices"
	"strings"

	"petstore/internal/event"
	"petstore/internal/webhook"
)

// testEvent describes the type of events that is in no feed.
var testEvent = event.Description{Type: webhook.TestType, Text: "A request to test the webhook."}

// descriptions returns the types of the events that a webhook gets.
func descriptions() []event.Description { return append(slices.Clone(event.Types), testEvent) }

// typeName returns the name of a type in names of schemas: OrderPlaced for order.placed.
func typeName(kind event.Type) string {
	var name strings.Builder
	for word := range strings.FieldsFuncSeq(string(kind), func(r rune) bool { return r == '.' || r == '_' }) {
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return name.String()
}

// allEvents is the schema of the events of all types.
const allEvents = "WebhookEvent"

// eventSchemas returns the schemas of the events of each type and their data, and of all
// events.
func eventSchemas(tree object) object {
	var schemas object
	var all []any
	mapping := object{}
	for _, one := range descriptions() {
		name := typeName(one.Type)
		schemas = append(schemas, field(name+"Event", eventSchema(tree, one)), field(name+"Data", dataSchema(tree, one)))
		all = append(all, ref("schemas", name+"Event"))
		mapping = append(mapping, field(string(one.Type), "#/components/schemas/"+name+"Event"))
	}
	return append(schemas, field(allEvents, object{
		field("description", "An event of any type of this version. Later versions may add types, which a receiver must accept."),
		field("oneOf", all),
		field("discriminator", object{field("propertyName", "type"), field("mapping", mapping)}),
	}))
}

// eventSchema returns the schema of the events of a type. It has the fields of the Event
// schema, with one type and the data of that type.
func eventSchema(tree object, one event.Description) object {
	generic := getObject(tree, "components", "schemas", "Event")
	properties := slices.Clone(getObject(generic, "properties"))
	properties = set(properties, "type", object{
		field("type", "string"), field("description", "The type of the event."), field("const", string(one.Type)), field("maxLength", 32),
	})
	properties = set(properties, "data", ref("schemas", typeName(one.Type)+"Data"))
	return object{
		field("type", "object"),
		field("description", one.Text),
		field("required", get(generic, "required")),
		field("properties", properties),
		field("additionalProperties", true),
	}
}

// dataSchema returns the schema of the data of a type.
func dataSchema(tree object, one event.Description) object {
	resources := getObject(tree, "components", "schemas", "EventData", "properties")
	var properties object
	for _, name := range slices.Concat(one.Data, one.Changed) {
		properties = append(properties, field(name, get(resources, name)))
	}
	schema := object{field("type", "object"), field("description", getString(tree, "components", "schemas", "EventData", "description"))}
	if len(one.Data) > 0 {
		schema = append(schema, field("required", one.Data))
	}
	if len(properties) > 0 {
		schema = append(schema, field("properties", properties))
	}
	return append(schema, field("additionalProperties", true))
}

// exampleOf returns the example of the events of a type.
func exampleOf(tree object, kind event.Type) object {
	if kind != testEvent.Type {
		return getObject(tree, "components", "examples", string(kind), "value")
	}
	example := slices.Clone(exampleOf(tree, event.StoreReset)) // which has no data either
	example = set(set(example, "type", string(kind)), "sequence", 0)
	return set(example, "subject", "/webhooks/wh_0198c5f27d3a7c419b0e5a1f3c2d4e6f")
}

// webhookHeaders returns the components for the headers of a delivery.
func webhookHeaders() object {
	header := func(name, text, example string) object {
		return object{
			field("name", name), field("in", "header"), field("required", true), field("description", text),
			field("schema", object{field("type", "string")}), field("example", example),
		}
	}
	return object{
		field("DeliveredId", header("webhook-id", "The id of the event, which is the same in every attempt.", "evt_0000000000030000000004125f0c9a1e")),
		field("DeliveredTimestamp", header("webhook-timestamp", "The time of the attempt, in seconds since 1970.", "1795256130")),
		field("DeliveredSignature", header("webhook-signature", "Signatures as in Standard Webhooks, separated by spaces. Verify one of them.", "v1,F4c6zH9b33jFj7XVI66aRG2npRYSNPKrii4GjXqCcNY=")),
	}
}

// webhooksOf returns a path item for each type of events.
func webhooksOf(tree object) (items object) {
	for _, one := range descriptions() {
		name := typeName(one.Type) + "Event"
		text := one.Text + " The server sends the event to the URL of each webhook that has its type."
		items = append(items, field(string(one.Type), receiver("receive"+name, string(one.Type), text, name, exampleOf(tree, one.Type))))
	}
	return items
}

// addCallback adds the events of all types to the operation that creates a webhook.
func addCallback(tree object) {
	operation := getObject(tree, "paths", "/webhooks", "post")
	item := receiver("receiveEvent", "Receive an event", "The server sends the events of the types of the webhook to its URL.", allEvents, exampleOf(tree, event.OrderPlaced))
	callbacks := object{field("event", object{field("{$request.body#/url}", item)})}
	items := getObject(tree, "paths", "/webhooks")
	items[indexOf(items, "post")].Value = set(operation, "callbacks", callbacks)
}

// receiver returns a path item for the program behind the URL of a webhook.
func receiver(operation, summary, text, schema string, example object) object {
	return object{field("post", object{
		field("tags", []any{"webhooks"}),
		field("operationId", operation),
		field("summary", summary),
		field("description", text),
		field("security", []any{}),
		field("parameters", []any{ref("parameters", "DeliveredId"), ref("parameters", "DeliveredTimestamp"), ref("parameters", "DeliveredSignature")}),
		field("requestBody", object{
			field("required", true),
			field("content", object{field("application/json", object{field("schema", ref("schemas", schema)), field("example", example)})}),
		}),
		field("responses", object{
			field("2XX", object{field("description", "Your program has the event. Respond within 15 seconds.")}),
			field("410", object{field("description", "Your program wants no more events. The server disables the webhook.")}),
			field("default", object{field("description", "The server sends the event again later, in up to ten attempts.")}),
		}),
	})}
}
