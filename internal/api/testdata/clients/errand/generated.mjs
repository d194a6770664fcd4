// An errand in the shop with openapi-fetch, whose types openapi-typescript generates. It goes on after an error.
import { randomUUID } from "node:crypto";
import createClient from "openapi-fetch";

const shop = createClient({
  baseUrl: process.env.PETSTORE_URL,
  headers: { Authorization: `Bearer ${process.env.PETSTORE_API_KEY}` },
});

async function attempt(step) {
  try {
    await step();
  } catch (error) {
    console.log(`  ${error.message}`);
  }
}

/** Returns a successful response. */
function must(result) {
  if (result.error) throw new Error(result.error.code);
  return result;
}

const post = async (path, body) =>
  must(await shop.POST(path, { body, params: { header: { "Idempotency-Key": randomUUID() } } }));

await attempt(async () => {
  for (let cursor; cursor !== null; ) {
    const { response } = must(await shop.GET("/pets", { params: { query: { limit: 50, ...(cursor && { cursor }) } } }));
    const [, next] = /<([^>]*)>; rel="next"/.exec(response.headers.get("Link")) ?? [];
    cursor = next ? new URL(next, response.url).searchParams.get("cursor") : null;
  }
});
await attempt(() => post("/pets", { name: "Xochi", categoryId: 1 }));
for (const quantity of [1, 2, 3]) await attempt(() => post("/store/orders", { petId: 1, quantity }));
await attempt(async () => {
  const path = { petId: 1 };
  const { data, response } = must(await shop.GET("/store/inventory/{petId}", { params: { path } }));
  const header = { "If-Match": response.headers.get("ETag") };
  must(await shop.PUT("/store/inventory/{petId}", { params: { path, header }, body: { quantity: data.quantity + 10 } }));
});
await attempt(async () => {
  const { data } = await post("/messages", { message: "Hello" });
  const params = { path: { messageId: data.id }, header: { Prefer: "wait=1" } };
  must(await shop.GET("/messages/{messageId}", { params }));
});
