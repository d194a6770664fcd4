// The requests of a sandbox, and the exchange of each.
import { copyButton, write } from "./code.js";
import { action } from "./console-dialog.js";
import { feedView } from "./console-feed.js";
import { dayAndTime, fact, methodBadge, statusBadge, when } from "./console-list.js";
import { curl, isCut } from "./console-curl.js";
import { persist, read, session } from "./console-session.js";
import { disabledDuring, h, siteURL } from "./dom.js";
import { pretty } from "./json.js";

/** Returns the view of the requests of a sandbox. */
export function requestsView(context) {
  const { store } = context;
  const operations = Object.keys(session.operations).filter((id) => !session.operations[id].public && !/Recorded|^getReport$/.test(id));
  return feedView(
    {
      title: "Requests", things: "requests", list: "listRecordedRequests", get: "getRecordedRequest", idName: "requestId",
      filters: [
        { name: "operation", label: "Operation", choices: operations },
        { name: "status", label: "Status", hint: "4xx or 404" },
        { name: "apiKeyId", label: "API key", hint: "id" },
        { name: "idempotencyKey", label: "Idempotency-Key" },
      ],
      pages: ["before"],
      empty: (filtered) => (filtered ? h("p", null, "No request matches.") : h("div", null, h("p", null, "No requests yet. Send one with a key of this sandbox, and it appears here."), h("p", null, "A record keeps the newest 5,000 requests for 24 hours."))),
      async first({ path, query, signal }) {
        const { data, next } = await read("listRecordedRequests", { path, query: { limit: 100, ...Object.fromEntries(query) }, signal });
        return { items: data, last: data[0]?.id, more: Boolean(next) };
      },
      turn: ({ items, more, href }) => [more && h("a", { href: href({ before: items.at(-1).id }) }, "Older")],
      cells: requestCells,
      detail: exchange,
      tools: ({ reload, query, signal, note }) => [
        h("button", { type: "button", class: "plain-button", onclick: ({ currentTarget }) => disabledDuring(currentTarget, () => download(store, query(), signal, note)) }, "Save HAR"),
        action("deleteRecordedRequests", { label: "Clear", title: "Clear the record", danger: true, note: `This deletes all recorded requests of ${store}.`, options: { path: { sandboxId: store } }, then: reload }),
      ],
    },
    context,
  );
}

const longest = 200; // characters of a path in a row

function requestCells({ status, method, path, query, code, fault, durationMs, startedAt }) {
  return [
    statusBadge(status, status ? undefined : "none"),
    methodBadge(method),
    h("span", { class: "row-text" }, path.slice(0, longest), query && h("span", { class: "faint" }, `?${query.slice(0, longest)}`)),
    h("span", { class: "row-note" }, fault && h("span", { class: "chip chip-fault" }, `fault: ${fault.effect}`), code && code !== "injected_fault" && h("span", { class: "chip" }, code)),
    h("span", { class: "row-number" }, duration(durationMs)),
    when(startedAt),
  ];
}

const duration = (milliseconds) => (milliseconds < 1000 ? `${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(2)} s`);

function exchange(one, { go }) {
  const { method, path, query, status, operation, code, fault, idempotencyKey, apiKeyId, redacted = [] } = one;
  const misplaced = redacted.filter((place) => place.startsWith("request.")); // a response may have a new secret
  const page = operation && session.operations[operation] && siteURL(`${session.operations[operation].page}#${operation}`);
  const same = (name, value) => h("a", { class: "narrow", href: go.href({ query: { [name]: value } }) }, "show all");
  return [
    h("h2", { class: "line" }, methodBadge(method), h("code", null, query === undefined ? path : `${path}?${query}`)),
    h("div", { class: "bar-of" }, statusBadge(status, status ? undefined : "no response"), duration(one.durationMs), when(one.startedAt, dayAndTime), copying(() => curl(one))),
    fault && h("p", { class: "warning" }, `Fault rule ${fault.rule + 1} of the sandbox injected: ${fault.effect}.`),
    !status && !fault && h("p", { class: "warning" }, "The client closed the connection before the response."),
    misplaced.length > 0 && h("p", { class: "warning" }, "A secret stood where none belongs: ", ...misplaced.flatMap((place, i) => [i > 0 && ", ", h("code", null, place)]).filter(Boolean), ". Send keys only in Authorization."),
    h(
      "dl",
      { class: "facts-of" },
      fact("Operation", operation && (page ? h("a", { href: page }, operation) : operation)),
      fact("Error", code && h("a", { href: siteURL(`docs/errors#${code}`) }, code)),
      fact("API key", String(apiKeyId), " ", same("apiKeyId", apiKeyId)),
      fact("Idempotency-Key", idempotencyKey, idempotencyKey && [" ", same("idempotencyKey", idempotencyKey)]),
      fact("X-Request-Id", one.requestId),
    ),
    message("Request", one.request),
    one.response && message("Response", one.response),
  ].filter(Boolean);
}

function copying(text) {
  const button = copyButton(text, "Copy as cURL");
  button.className = "plain-button copying";
  return button;
}

let headersOpen = false; // as the reader left them

/** Shows the headers and the body of a message. */
function message(title, { headers, body, bodyEncoding, bodySize }) {
  const code = h("code");
  const binary = bodyEncoding === "base64";
  const kept = binary ? atob(body).length : new TextEncoder().encode(body).length;
  const text = binary ? body : pretty(body);
  write(code, text, binary ? "" : "json");
  const part = kept > 0 ? `, of which the record has ${kept.toLocaleString("en")}` : ", which the server did not read";
  const size = bodySize === 0 ? "no body" : `${bodySize.toLocaleString("en")} bytes${isCut({ body, bodySize }) ? part : ""}`;
  return h(
    "div",
    { class: "panel outcome" },
    h("div", { class: "panel-bar" }, h("h3", { class: "panel-title" }, title, " ", h("span", { class: "outcome-time" }, size)), body !== "" && copyButton(() => text)),
    h(
      "details",
      { open: headersOpen, ontoggle: ({ currentTarget }) => (headersOpen = currentTarget.open) },
      h("summary", null, `Headers (${headers.length})`),
      h("dl", { class: "headers" }, ...headers.map(({ name, value }) => h("div", null, h("dt", null, name), h("dd", null, value)))),
    ),
    body !== "" && h("pre", { tabindex: "0", role: "group", "aria-label": `Body of the ${title.toLowerCase()}` }, code),
    binary && h("p", { class: "outcome-note" }, "The body is not text. This is its base64."),
  );
}

// Downloads all requests that match, as one HTTP Archive.
async function download(store, filters, signal, note) {
  note.replaceChildren(); // of the last attempt
  const archive = await readArchive(store, filters, signal, note);
  if (!archive) return;
  const link = h("a", { href: URL.createObjectURL(new Blob([JSON.stringify(archive)], { type: "application/har+json" })), download: `${store}.har` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // after the download has begun
}

async function readArchive(store, filters, signal, note) {
  let archive;
  for (let query = { ...Object.fromEntries(filters), limit: 200 }; query; ) {
    const page = await persist(note, signal, () => read("listRecordedRequests", { path: { sandboxId: store }, query, headers: { Accept: "application/har+json" }, signal }));
    if (!page) return undefined;
    note.replaceChildren();
    if (archive) archive.log.entries.push(...page.data.log.entries);
    else archive = page.data;
    query = page.next;
  }
  return archive;
}
