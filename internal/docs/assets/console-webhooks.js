// The webhooks of a store, and their deliveries.
import { sleep } from "./console-api.js";
import { actions, collectionView, readAll } from "./console-collection.js";
import { action, showSecret } from "./console-dialog.js";
import { eventTypes } from "./console-events.js";
import { dayAndTime, fact, filterField, statusBadge, when } from "./console-list.js";
import { persist, read } from "./console-session.js";
import { h } from "./dom.js";

/** Returns the view of the webhooks of a store. */
export function webhooksView(context) {
  return collectionView(
    {
      title: "Webhooks", things: "webhooks",
      empty: "No webhooks yet. The server sends the events of a store to the URL of each webhook.",
      load: ({ store, signal }) => readAll("listWebhooks", { store, signal }),
      cells: ({ url, types, status }) => [h("span", { class: `chip chip-${status}` }, status), h("span", { class: "row-text" }, url), h("span", { class: "row-note faint" }, types.includes("*") ? "all types" : types.length > 2 ? `${types.length} types` : types.join(", "))],
      tools: ({ store, reload }) => [action("createWebhook", { label: "New webhook", submit: "Create", options: { store }, then: async (response) => {
        const webhook = await response.json();
        await showSecret("Secret of the webhook", webhook.secret, "The secret signs the events. The server shows it only now.");
        await reload(webhook.id, "Created.");
      } })],
      detail,
    },
    context,
  );
}

function detail(webhook, { store, signal, reload, go }) {
  const { id, url, types, description, status, disabledReason, createdAt } = webhook;
  const options = { store, path: { webhookId: id } };
  const enabled = status === "enabled";
  const list = deliveries(webhook, { store, signal, reload, go });
  return [
    h("h2", { class: "line" }, h("code", null, url)),
    actions(
      enabled && action("testWebhook", { label: "Send a test", note: "This sends an event webhook.test.", options, then: list.refresh }),
      enabled && action("replayWebhook", { label: "Replay", title: "Replay events", options, then: async (response) => {
        const { deliveries: count, next } = await response.json();
        list.say(`${count} new deliveries.${next ? ` More events follow: replay again after ${next}.` : ""}`);
        list.refresh();
      } }),
      enabled && action("probeWebhook", { label: "Probe", title: "Probe the receiver", note: "This sends events that a good receiver refuses, and one that comes twice.", options, then: list.refresh }),
      action("updateWebhook", { label: "Edit", title: "Edit the webhook", submit: "Save", values: { url, types, description, status }, update: true, options, then: () => reload(id, "Saved.") }),
      action("rotateWebhook", { label: "Rotate secret", title: "Rotate the secret", note: "The webhook gets a new secret. Without graceSeconds, the old secret stops at once.", options, then: async (response) => showSecret("New secret", (await response.json()).secret) }),
      action("deleteWebhook", { label: "Delete", title: "Delete the webhook", note: "This deletes the webhook and its deliveries.", danger: true, options, then: () => reload("", "Deleted.") }),
    ),
    h(
      "dl",
      { class: "facts-of" },
      fact("Status", status, disabledReason && ` (${disabledReason})`), fact("Types", types.includes("*") ? "all" : types.join(", ")), fact("Description", description), fact("Created", when(createdAt, dayAndTime)), fact("Id", h("code", null, id)),
    ),
    list.element,
  ];
}

function deliveries(webhook, { store, signal, reload, go }) {
  const { id } = webhook;
  const path = { webhookId: id };
  const place = h("div");
  const rows = h("ol", { class: "deliveries", "aria-label": "Deliveries" });
  const status = h("p", { class: "hint", role: "status" });
  const none = h("p", { class: "hint" });
  const filter = filterField({ label: "Status", choices: ["pending", "delivered", "failed"] }, (value) => {
    wanted = value;
    refresh();
  });
  const older = h("button", { type: "button", class: "plain-button", hidden: true, onclick: () => refresh(next) }, "Older");
  const newest = h("button", { type: "button", class: "plain-button", hidden: true, onclick: () => refresh() }, "Newest");
  let shown = new Map(); // elements by id, with the text that they show
  let wanted = ""; // status
  let next;
  let page = {}; // the query of the page

  async function refresh(from = {}) {
    page = from;
    const found = await persist(place, signal, () => read("listWebhookDeliveries", { store, path, query: { ...from, limit: 50, ...(wanted && { status: wanted }) }, signal }));
    if (!found || from !== page) return;
    place.replaceChildren();
    next = found.next;
    older.hidden = !next;
    newest.hidden = !from.cursor;
    const [focused] = [...shown].find(([, { element }]) => element.contains(document.activeElement)) ?? [];
    shown = new Map(found.data.map((one) => {
      const text = JSON.stringify(one);
      const known = shown.get(one.id);
      return [one.id, known?.text === text ? known : { text, element: delivery(one, known?.element.firstChild.open) }];
    }));
    const elements = [...shown.values()].map(({ element }) => element);
    if (elements.length !== rows.children.length || elements.some((one, i) => one !== rows.children[i])) rows.replaceChildren(...elements);
    if (focused && !rows.contains(document.activeElement)) shown.get(focused)?.element.querySelector("summary").focus();
    none.textContent = elements.length > 0 ? "" : wanted ? "No delivery matches." : "No deliveries yet.";
  }

  function delivery(one, open) {
    const last = one.attempts.at(-1);
    return h(
      "li",
      null,
      h(
        "details",
        { open },
        h("summary", null, h("span", { class: `chip chip-${one.status}` }, one.status), h("span", { class: "row-text" }, one.type), last && outcome(last), when(one.createdAt)),
        one.attempts.length > 0 && h(
          "div",
          { class: "scrollable", tabindex: "0", role: "group", "aria-label": "Attempts" },
          h("table", null, h("thead", null, h("tr", null, ...["Attempt", "Response", "Duration", "Error"].map((text) => h("th", { scope: "col" }, text)))),
            h("tbody", null, ...one.attempts.map((attempt) => h("tr", null, h("td", null, when(attempt.at, dayAndTime)), h("td", null, outcome(attempt)), h("td", null, `${attempt.durationMs} ms`), h("td", null, attempt.error ?? ""))))),
        ),
        one.nextAttemptAt && h("p", null, "Next attempt: ", when(one.nextAttemptAt, dayAndTime)),
        actions(
          action("retryWebhookDelivery", { label: "Retry", title: "Retry the delivery", note: "The server sends the event again.", options: { store, path: { webhookId: id, deliveryId: one.id } }, then: () => refresh(page) }),
          eventTypes().includes(one.type) && h("a", { href: go.href({ view: "events", item: one.eventId, query: {} }) }, "Event"),
          h("code", { class: "faint" }, one.id),
        ),
      ),
    );
  }
  const outcome = ({ httpStatus, error }) => statusBadge(httpStatus, httpStatus ? undefined : error ? "no response" : "…");

  // The API has no stream of deliveries, or of changes of the webhook.
  async function poll() {
    for (await refresh(); !signal.aborted; ) {
      const pending = [...shown.values()].some(({ text }) => text.includes('"status":"pending"'));
      await sleep(pending ? 2000 : 8000, signal);
      if (signal.aborted || document.hidden) continue;
      const now = await persist(place, signal, look);
      if (now && JSON.stringify(now.data) === JSON.stringify(webhook)) await refresh(page);
      else if (now) await reload(id, now.data ? "The webhook has changed." : ""); // ends these polls
    }
  }
  // Returns no data if somebody has deleted the webhook.
  const look = () => read("getWebhook", { store, path, signal }).catch((failure) => {
    if (failure.code !== "webhook_not_found") throw failure;
    return {};
  });
  poll();
  return {
    element: h(
      "section",
      { "aria-label": "Deliveries" },
      h("div", { class: "part-bar" }, h("h3", null, "Deliveries"), filter.element),
      status, none, place, rows, h("div", { class: "buttons" }, newest, older),
    ),
    refresh: () => refresh(),
    say: (text) => (status.textContent = text),
  };
}
