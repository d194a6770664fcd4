// An errand in the shop with got and its retries.
import { randomUUID } from "node:crypto";
import got from "got";

const shop = got.extend({
  prefixUrl: process.env.PETSTORE_URL,
  headers: { authorization: `Bearer ${process.env.PETSTORE_API_KEY}` },
  responseType: "json",
  retry: {
    limit: 8,
    methods: ["GET", "PUT", "DELETE", "POST"], // each POST has an Idempotency-Key
    statusCodes: [429, 500, 502, 503, 504],
    calculateDelay: ({ attemptCount, computedValue, error }) => {
      if (computedValue === 0 || error.response?.headers["retry-after"]) return computedValue;
      return 100 * 2 ** (attemptCount - 1) * (0.5 + Math.random());
    },
  },
});

const post = (path, json) => shop.post(path, { json, headers: { "idempotency-key": randomUUID() } });

for (let page = "/pets?limit=50"; page; ) {
  const response = await shop.get(page.slice(1));
  page = response.headers.link.match(/<([^>]*)>; rel="next"/)?.[1];
}
await post("pets", { name: "Xochi", categoryId: 1 });
for (const quantity of [1, 2, 3]) await post("store/orders", { petId: 1, quantity });
const stock = await shop.get("store/inventory/1");
await shop.put("store/inventory/1", { json: { quantity: stock.body.quantity + 10 }, headers: { "if-match": stock.headers.etag } });
const message = await post("messages", { message: "Xochi sends her regards" });
await shop.get(message.headers.location.slice(1), { headers: { prefer: "wait=1" } });
