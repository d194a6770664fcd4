// A client of the stream of events with the npm package eventsource, which follows the
// HTML standard. `make clients` runs it with PETSTORE_URL and PETSTORE_API_KEY. The
// connection breaks several times, and the client loses no event and gets none twice.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { EventEmitter, once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { EventSource } from "eventsource";
import type { components } from "./petstore.js";

type Event = components["schemas"]["Event"];

const baseUrl = process.env["PETSTORE_URL"] ?? "http://127.0.0.1:8080";
const Authorization = `Bearer ${process.env["PETSTORE_API_KEY"]}`;
const changes = 60;
const breaks = 3;

// A proxy, so that the connection of the stream can break.
const sockets = new Set<Socket>();
const proxy = createServer((client) => {
  const { hostname, port } = new URL(baseUrl);
  const server = connect(Number(port), hostname);
  for (const [one, other] of [[client, server], [server, client]] as const) {
    sockets.add(one);
    one.on("data", (data) => other.write(data));
    one.on("error", () => other.destroy()).on("close", () => (sockets.delete(one), other.destroy()));
  }
});
proxy.listen(0, "127.0.0.1");
await once(proxy, "listening");
const { port } = proxy.address() as AddressInfo;

const before = await fetch(`${baseUrl}/events?after=latest`, { headers: { Authorization } });
const [, cursor] = /after=([^>]*)>; rel="next"/.exec(before.headers.get("Link") ?? "") ?? [];
assert(cursor !== undefined);

const stream = new EventSource(`http://127.0.0.1:${port}/events?type=category.created&after=${cursor}`, {
  fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, Authorization } }),
});
const names: string[] = [];
const sequences: number[] = [];
const received = new EventEmitter();
stream.addEventListener("category.created", ({ data, lastEventId }) => {
  const event = JSON.parse(data) as Event;
  assert.equal(event.id, lastEventId);
  sequences.push(event.sequence);
  names.push((event.data as { category: { name: string } }).category.name);
  received.emit("event");
});
const hasReceived = async (number: number) => {
  while (names.length < number) {
    await once(received, "event");
  }
};
await once(stream as unknown as EventTarget, "open");

const wanted = Array.from({ length: changes }, (_, n) => `Newts ${n} ${randomUUID()}`);
for (const [n, name] of wanted.entries()) {
  if (n > 0 && n % (changes / (breaks + 1)) === 0) {
    await hasReceived(n); // then the next events happen while the client is not connected
    sockets.forEach((socket) => socket.destroy());
  }
  const { status } = await fetch(`${baseUrl}/categories`, {
    method: "POST",
    headers: { Authorization, "Content-Type": "application/json" },
    body: JSON.stringify({ name }),
  });
  assert.equal(status, 201);
}
await hasReceived(changes);
stream.close();
proxy.close();
assert.deepEqual(names, wanted);
assert.deepEqual(sequences, Array.from(sequences.keys(), (n) => sequences[0]! + n));
console.log(`  ${names.length} events in order over a connection that broke ${breaks} times`);
