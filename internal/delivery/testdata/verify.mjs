// Verifies requests with the JavaScript library of Standard Webhooks. It reads
// {secrets: [...], requests: [{headers, body}]} from stdin. Each secret must verify each
// request, and no secret a changed one.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { Webhook } = createRequire(`${process.env.PETSTORE_WEBHOOK_LIBRARIES}/`)("standardwebhooks");
const { secrets, requests } = JSON.parse(readFileSync(0));
let verified = 0;
for (const secret of secrets) {
  for (const { headers, body } of requests) {
    const event = new Webhook(secret).verify(body, headers);
    if (event.id !== headers["webhook-id"]) throw new Error(`webhook-id of ${event.id}`);
    let accepted = true;
    try {
      new Webhook(secret).verify(body + " ", headers);
    } catch {
      accepted = false;
    }
    if (accepted) throw new Error("a changed body was accepted");
    verified++;
  }
}
console.log(verified);
