// The events of a store.
import { copyButton, write } from "./code.js";
import { feedView } from "./console-feed.js";
import { dayAndTime, fact, when } from "./console-list.js";
import { read, session } from "./console-session.js";
import { h } from "./dom.js";
import { pretty } from "./json.js";

const whole = 1000; // events that the view reads from the beginning of the feed
const pageSize = 100;

/** Returns the types of the events of a feed. */
export const eventTypes = () => session.operations.listEvents.parameters.find(({ name }) => name === "type").schema.items.enum;

/** Returns the view of the events of a store. */
export function eventsView(context) {
  return feedView(
    {
      title: "Events", things: "events", list: "listEvents", get: "getEvent", idName: "eventId",
      filters: [{ name: "type", label: "Type", choices: eventTypes() }],
      pages: ["after"],
      empty: (filtered) => h("p", null, filtered ? "No event matches." : "No events yet. Each change of the store adds one."),
      first,
      turn: ({ href, more, later }) => [
        more && h("a", { href: href({ after: "oldest" }) }, "Oldest"),
        later && h("a", { href: href({ after: later }) }, "Later"),
      ],
      cells: ({ sequence, type, subject, timestamp }) => [
        h("span", { class: "row-sequence" }, String(sequence)),
        h("span", { class: "chip" }, type),
        h("span", { class: "row-text" }, subject),
        when(timestamp),
      ],
      detail: (event) => {
        const code = h("code");
        const text = pretty(JSON.stringify(event));
        write(code, text, "json");
        return [
          h("h2", { class: "line" }, h("code", null, event.type), " ", event.subject),
          h("dl", { class: "facts-of" }, fact("Number", String(event.sequence)), fact("Time", when(event.timestamp, dayAndTime)), fact("Id", h("code", null, event.id))),
          h("div", { class: "panel outcome" }, h("div", { class: "panel-bar" }, h("h3", { class: "panel-title" }, "Payload"), copyButton(() => text)), h("pre", { tabindex: "0", role: "group", "aria-label": "Payload" }, code)),
        ];
      },
    },
    context,
  );
}

// The API lists events from the oldest. A short feed is read whole. Of a long one, the view
// begins with the newest event, and a link leads to the pages from the oldest. A page may have few
// events, or none, although more follow: the server limits its bytes, and the events that it looks
// through for those of a type. So its link to the next page says whether it ends the feed. The ids
// of events sort by number.
async function first({ store, query, isPage, signal }) {
  const type = query.get("type") ?? undefined;
  const page = (more) => read("listEvents", { store, query: { ...(type && { type }), ...more }, signal });
  const after = query.get("after");
  if (isPage) {
    const { data, next } = await page({ limit: pageSize, ...(after !== "oldest" && { after }) });
    const { next: end } = await page({ after: "latest", limit: 1 });
    return { items: data, later: next.after < end.after && next.after };
  }
  const [oldest] = (await read("listEvents", { store, query: { limit: 1 }, signal })).data;
  if (!oldest) return { items: [] };
  const { next: end } = await page({ after: "latest", limit: 1 });
  const newest = (await read("getEvent", { store, path: { eventId: end.after }, signal })).data;
  if (newest.sequence - oldest.sequence >= whole) return { items: !type || newest.type === type ? [newest] : [], last: newest.id, more: true };
  const items = [];
  let last = "";
  while (last < end.after) {
    const { data, next } = await page({ limit: 200, ...(last && { after: last }) });
    items.push(...data);
    last = next.after;
  }
  return { items: items.reverse().slice(0, 200), last, more: items.length > 200 };
}
