// A list of resources that a person manages: webhooks, sandboxes and API keys.
import { rowList, split } from "./console-list.js";
import { persist, read } from "./console-session.js";
import { h } from "./dom.js";

/** Returns a view of the items of an operation. `config.detail` fills the details of one. */
export function collectionView(config, { store, place, signal, go }) {
  const list = rowList({ label: config.title, cells: config.cells, href: ({ id }) => go.href({ item: String(id) }) });
  const empty = h("div", { class: "empty" });
  const status = h("span", { class: "state", role: "status" });
  // Shows an item after a change, and says what has changed. Without an item, the details stay.
  const reload = async (item, said) => {
    const before = current;
    await load();
    if (signal.aborted || current !== before) return; // the reader is elsewhere
    if (String(item) === current) await showDetail(current);
    else if (item !== undefined) go({ item: String(item) });
    status.textContent = said;
  };
  const { element, heading, detail } = split({ title: config.title, tools: [status, h("div", { class: "buttons" }, ...config.tools({ store, reload, go }))], list: list.element, empty });
  if (config.below) empty.after(config.below);
  place.replaceChildren(element);
  let current = "";
  let items = [];

  async function load() {
    if (items.length === 0) empty.replaceChildren(h("p", null, "Loading …"));
    const found = await persist(empty, signal, () => config.load({ store, signal, reload }));
    if (!found) return;
    items = found;
    list.set(items);
    list.choose(current);
    empty.replaceChildren(...(items.length > 0 ? [] : [h("p", null, config.empty)]));
  }

  let loaded;
  let choice = new AbortController();
  async function showDetail(id) {
    choice.abort();
    choice = new AbortController();
    const own = AbortSignal.any([signal, choice.signal]);
    current = id;
    if (id) await loaded;
    if (own.aborted) return;
    const focused = detail.contains(document.activeElement) && document.activeElement.textContent;
    const item = items.find((one) => String(one.id) === id);
    const back = h("a", { class: "back", href: go.href({ item: "" }) }, `All ${config.things}`);
    element.classList.toggle("chosen", Boolean(id));
    list.choose(id);
    detail.replaceChildren(...(item ? [back, ...config.detail(item, { store, go, signal: own, reload }).filter(Boolean)] : id ? [back, h("p", { class: "hint" }, `There is no ${id} any more.`)] : []));
    if (!id && focused && document.activeElement === document.body) heading.focus();
    else if (focused || (id && !list.element.checkVisibility())) ([...detail.querySelectorAll("button")].find(({ textContent }) => textContent === focused) ?? detail).focus();
  }
  return {
    heading,
    update({ item }) {
      loaded = load(); // others may have changed the items since
      return showDetail(item);
    },
  };
}

/** Reads all pages of a list. */
export async function readAll(id, { signal, ...options }) {
  const all = [];
  for (let query = { limit: 200 }; query; ) {
    const { data, next } = await read(id, { ...options, query, signal });
    all.push(...data);
    query = next;
  }
  return all;
}

export const actions = (...buttons) => h("div", { class: "buttons" }, ...buttons);
