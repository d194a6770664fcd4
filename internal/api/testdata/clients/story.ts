// A day in the shop with a TypeScript client that openapi-typescript generates from the
// spec, and openapi-fetch. `make clients` generates and runs it with PETSTORE_URL and
// PETSTORE_API_KEY. story.go is the same story in Go.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import createClient from "openapi-fetch";
import type { components, paths } from "./petstore.js";

type Schemas = components["schemas"];

const baseUrl = process.env["PETSTORE_URL"] ?? "http://127.0.0.1:8080";
const shop = createClient<paths>({
  baseUrl,
  headers: { Authorization: `Bearer ${process.env["PETSTORE_API_KEY"]}` },
});

const step = (text: string) => console.log(`  ${text}`);

/** Returns the body of a successful response. Throws the error of any other response. */
function must<T>({ data, error, response }: { data?: T; error?: Schemas["Error"]; response: Response }): T {
  assert(error === undefined, `${response.url}: ${error?.code}: ${error?.message}`);
  assert(data !== undefined, `${response.url}: no body`);
  return data;
}

/** Returns the error of a response, which must have this status and code. */
function expectError(result: { error?: Schemas["Error"]; response: Response }, status: number, code: string): Schemas["Error"] {
  const { error } = result;
  assert(error !== undefined, `got ${result.response.status}, want ${status} ${code}`);
  assert.deepEqual([result.response.status, error.status, error.code], [status, status, code]);
  return error;
}

/** Returns a header that the spec requires. */
function header({ response }: { response: Response }, name: string): string {
  const value = response.headers.get(name);
  assert(value !== null, `${response.url}: no ${name}`);
  return value;
}

/** Returns the URL of the next page, if there is one. */
function nextPage(result: { response: Response }): URL | undefined {
  const [, next] = /<([^>]*)>; rel="next"/.exec(header(result, "Link")) ?? [];
  return next === undefined ? undefined : new URL(next, result.response.url);
}

async function stockOf(petId: number): Promise<Schemas["InventoryItem"]> {
  return must(await shop.GET("/store/inventory/{petId}", { params: { path: { petId } } }));
}

const category = must(
  await shop.POST("/categories", { body: { name: `Axolotls ${randomUUID()}`, description: "Salamanders that stay young" } }),
);
const newPet = { body: { name: "Xochi", categoryId: category.id }, params: { header: { "Idempotency-Key": randomUUID() } } };
const created = await shop.POST("/pets", newPet);
const pet = must(created);
assert.equal(pet.status, "available");
assert.equal(header(created, "Location"), `/pets/${pet.id}`);
step(`category ${category.id}, pet ${pet.id}`);

const again = await shop.POST("/pets", newPet);
assert.deepEqual(must(again), pet);
assert.equal(header(again, "Idempotent-Replayed"), "true");
step("the same POST with its Idempotency-Key returns the same pet");

const petPath = { path: { petId: pet.id } };
must(await shop.PUT("/store/inventory/{petId}", { params: petPath, body: { quantity: 3 } }));
step("3 units in stock");

const placed = await shop.POST("/store/orders", { body: { petId: pet.id, quantity: 2, shipDate: "2030-01-02T03:04:05Z" } });
const order = must(placed);
assert(order.id !== undefined);
assert.deepEqual(order, { id: order.id, petId: pet.id, quantity: 2, shipDate: "2030-01-02T03:04:05Z", complete: false });
assert.equal((await stockOf(pet.id)).quantity, 1);
step(`order ${order.id} of 2, 1 left`);

const tooMany = expectError(await shop.POST("/store/orders", { body: { petId: pet.id, quantity: 2 } }), 409, "insufficient_stock");
step(`2 more: ${tooMany.status} ${tooMany.code}`);

const orderPath = { orderId: order.id };
const tag = header(placed, "ETag");
const unchanged = await shop.GET("/store/orders/{orderId}", { params: { path: orderPath, header: { "If-None-Match": tag } } });
assert.equal(unchanged.response.status, 304);
step("If-None-Match: 304");

const change = { params: { path: orderPath, header: { "If-Match": tag } }, body: { shipDate: null } };
const changed = await shop.PATCH("/store/orders/{orderId}", change);
assert.equal(must(changed).shipDate, undefined);
assert.notEqual(header(changed, "ETag"), tag);
expectError(await shop.PATCH("/store/orders/{orderId}", change), 412, "precondition_failed");
step("If-Match: shipDate cleared; with the old tag 412 precondition_failed");

const completed = must(await shop.PATCH("/store/orders/{orderId}", { params: { path: orderPath }, body: { complete: true } }));
assert.equal(completed.complete, true);
expectError(await shop.DELETE("/store/orders/{orderId}", { params: { path: orderPath } }), 409, "order_complete");
step("order completed; it cannot be cancelled: 409 order_complete");

const second = must(await shop.POST("/store/orders", { body: { petId: pet.id } })); // quantity: 1
assert(second.id !== undefined);
assert.deepEqual(await stockOf(pet.id), { petId: pet.id, quantity: 0, status: "pending" });
const cancelled = await shop.DELETE("/store/orders/{orderId}", { params: { path: { orderId: second.id } } });
assert.equal(cancelled.response.status, 204);
assert.deepEqual(await stockOf(pet.id), { petId: pet.id, quantity: 1, status: "available" });
step(`order ${second.id} took the last unit; cancelled, it gave it back`);

for (const name of ["Atl", "Metztli"]) {
  must(await shop.POST("/pets", { body: { name, categoryId: category.id, status: "pending" } }));
}
const query = { categoryId: category.id, sort: "name" as const, limit: 2 };
const first = await shop.GET("/pets", { params: { query } });
const names = must(first).map(({ name }) => name);
let pages = 1;
for (let next = nextPage(first); next !== undefined; pages++) {
  const cursor = next.searchParams.get("cursor");
  assert(cursor !== null);
  const page = await shop.GET("/pets", { params: { query: { ...query, cursor } } });
  names.push(...must(page).map(({ name }) => name));
  next = nextPage(page);
}
assert.deepEqual({ names, pages }, { names: ["Atl", "Metztli", "Xochi"], pages: 2 });
step(`${names.length} pets on ${pages} pages`);

const invalid = expectError(await shop.POST("/pets", { body: { name: " ", categoryId: 0 } }), 400, "validation_failed");
assert.deepEqual(invalid.errors?.map(({ pointer, code }) => `${pointer} ${code}`), ["/name blank", "/categoryId out_of_range"]);
step("an invalid pet: 400 validation_failed with both errors");

const stranger = await shop.GET("/pets", { headers: { Authorization: "Bearer nobody" } });
expectError(stranger, 401, "invalid_api_key");
assert.match(header(stranger, "WWW-Authenticate"), /error="invalid_token"/);
step("a wrong key: 401 invalid_api_key");

const queued = await shop.POST("/messages", { body: { message: "Xochi sends her regards" } });
const message = must(queued);
assert.deepEqual([queued.response.status, message.status], [202, "queued"]);
step(`message ${message.id} ${message.status}`);

const expiresAt = new Date(Date.now() + 600_000).toISOString();
const sandbox = must(await shop.POST("/sandboxes", { body: { name: "story", expiresAt } }));
const inside = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${sandbox.apiKey.secret}` } });
const rexPath = { params: { path: { petId: 1 } } };
const hook = must(await inside.POST("/webhooks", { body: { url: "https://example.com/", types: ["*"] } }));
const inSandbox = must(await inside.POST("/store/orders", { body: { petId: 1, quantity: 2 } }));
const events = must(await inside.GET("/events", { params: { query: { type: ["order.placed"] } } }));
assert(typeof events !== "string"); // as a stream would be
assert.deepEqual(events.map(({ data }) => data.order), [inSandbox]);
const hookPath = { params: { path: { webhookId: hook.id } } };
const delivery = must(await inside.POST("/webhooks/{webhookId}/test", hookPath));
assert.equal(delivery.type, "webhook.test");
const deliveries = must(await inside.GET("/webhooks/{webhookId}/deliveries", hookPath));
assert(deliveries.some(({ id }) => id === delivery.id));
step(`webhook ${hook.id}: a test among its deliveries`);
assert.equal(must(await inside.GET("/store/inventory/{petId}", rexPath)).quantity, 98);
const reset = await inside.POST("/sandboxes/{sandboxId}/reset", { params: { path: { sandboxId: "current" } } });
assert.equal(reset.response.status, 204);
assert.equal(must(await inside.GET("/store/inventory/{petId}", rexPath)).quantity, 100);
const deleted = await shop.DELETE("/sandboxes/{sandboxId}", { params: { path: { sandboxId: sandbox.id } } });
assert.equal(deleted.response.status, 204);
expectError(await inside.GET("/pets"), 401, "invalid_api_key");
step(`sandbox ${sandbox.id}: created, used, reset and deleted`);
