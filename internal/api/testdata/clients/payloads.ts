// Reads an event of each type with the types of openapi-3.1.json. `make clients` runs it
// with a file of events.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import type { components, webhooks } from "./petstore-3.1.js";

type Event = components["schemas"]["WebhookEvent"];
type Payload<Type extends keyof webhooks> = webhooks[Type]["post"]["requestBody"]["content"]["application/json"];

const idOf = (event: Payload<"order.placed">): number | undefined => event.data.order.id;

function describe(event: Event): string {
  switch (event.type) {
    case "pet.created":
    case "pet.deleted":
      return `${event.data.pet.name}: ${event.data.inventory.quantity}`;
    case "pet.updated":
      return `${event.data.pet.name}: ${event.data.inventory?.quantity}`;
    case "category.created":
    case "category.updated":
    case "category.deleted":
      // @ts-expect-error: the event has no order
      event.data.order?.id;
      return event.data.category.name;
    case "inventory.updated":
      return `${event.data.inventory.quantity} ${event.data.pet?.status}`;
    case "order.placed":
      return `${idOf(event)} of ${event.data.inventory.petId}`;
    case "order.updated":
    case "order.completed":
    case "order.cancelled":
      return `${event.data.order.id} ${event.data.order.complete}`;
    case "message.queued":
    case "message.delivered":
    case "message.failed":
      return `${event.data.message.message} ${event.data.message.status}`;
    case "webhook.disabled":
      return `${event.data.webhook.id} ${event.data.webhook.disabledReason}`;
    case "store.reset":
    case "webhook.test":
      return event.subject;
    default:
      return event satisfies never; // the compiler knows all types
  }
}

const events = JSON.parse(readFileSync(process.argv[2]!, "utf8")) as Event[];
for (const event of events) {
  const text = describe(event);
  assert(text && !text.startsWith("undefined"), `${event.type}: ${text}`);
}
const types = new Set(events.map(({ type }) => type));
assert.equal(types.size, 16);
console.log(`  ${events.length} events of ${types.size} types`);
