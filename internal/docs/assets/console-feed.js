// A list that grows as things happen, with filters and pages of older items.
import { filterField, rowList, split } from "./console-list.js";
import { persist, problem, read, stream } from "./console-session.js";
import { h } from "./dom.js";

/**
 * Returns a view of the stream of an operation. `config` says how it looks, how its first items
 * are found and which query leads to older ones.
 */
export function feedView(config, { store, place, signal, go }) {
  const path = { sandboxId: store };
  const list = rowList({ label: config.title, cells: config.cells, href: ({ id }) => go.href({ item: id }) });
  const filters = config.filters.map((filter) => filterField(filter, (value) => go.filter(filter.name, value)));
  const empty = h("div", { class: "empty" });
  const state = h("span", { class: "state", role: "status" });
  const news = h("p", { class: "unseen", role: "status" });
  const pause = h("button", { type: "button", class: "plain-button", "aria-pressed": "false", onclick: () => hold(!held) }, "Pause");
  const pages = h("nav", { class: "turn-pages", "aria-label": "Pages of the list" });
  const note = h("div"); // of a tool
  const tools = config.tools?.({ store, signal, note, reload: () => begin(new URLSearchParams(shown)), query: () => new URLSearchParams(shown) }) ?? [];
  const { element, heading, detail } = split({ title: config.title, tools: [state, h("div", { class: "buttons" }, pause, ...tools), h("div", { class: "filters" }, ...filters.map((one) => one.element)), note], list: list.element, empty });
  empty.after(pages);
  place.replaceChildren(element);

  let flow = new AbortController();
  let shown; // the query
  let held = false;
  let pressed = false; // whether the pointer presses a row, which must not move then
  let waiting = []; // items that arrived since the last frame, or since the pause
  let untold = 0; // items that a screen reader does not know of
  let drawn = false; // whether a frame is due

  function draw() {
    drawn = false;
    if (!held && !pressed && waiting.length > 0) {
      const end = list.add(waiting);
      if (end) turn({ items: [{ id: end }], more: true });
      untold += waiting.length;
      waiting = [];
      empty.replaceChildren();
    }
    pause.textContent = held ? `Resume${waiting.length > 0 ? ` (${waiting.length}${waiting.length < list.most ? "" : "+"})` : ""}` : "Pause";
  }
  function hold(stopped) {
    held = stopped;
    pause.setAttribute("aria-pressed", String(held));
    draw();
  }
  const soon = () => {
    if (!drawn) requestAnimationFrame(draw);
    drawn = true;
  };
  list.element.addEventListener("pointerdown", ({ button }) => (pressed = button === 0));
  // While a context menu is open, the page learns nothing of the pointer.
  for (const end of ["pointerup", "pointercancel", "contextmenu"]) addEventListener(end, () => ((pressed = false), soon()), { signal });
  const telling = setInterval(() => {
    if (untold > 0) news.textContent = `${untold} new ${config.things}`;
    untold = 0;
  }, 3000);
  signal.addEventListener("abort", () => clearInterval(telling));
  element.append(news);

  function show({ live, failure, pause: milliseconds }) {
    state.className = `state ${live ? "live" : "lost"}`;
    state.title = failure?.message ?? "";
    state.textContent = live ? "Live" : milliseconds ? `Disconnected. Trying again in ${Math.ceil(milliseconds / 1000)} s.` : "Stopped";
    if (failure && !milliseconds && failure.status !== 401) empty.replaceChildren(problem(failure));
  }

  // Shows the links to other pages. A link that stays keeps the focus.
  function turn(found, newest) {
    const query = Object.fromEntries(new URLSearchParams(shown));
    const links = [newest, ...config.turn({ ...found, href: (more) => go.href({ item: "", query: { ...query, ...more } }) })].filter(Boolean);
    if (links.length === pages.childElementCount) links.forEach(({ href }, i) => (pages.children[i].href = href));
    else pages.replaceChildren(...links);
  }

  async function begin(query) {
    flow.abort();
    flow = new AbortController();
    const own = AbortSignal.any([signal, flow.signal]);
    waiting = [];
    draw();
    list.set([]);
    empty.replaceChildren(h("p", null, "Loading …"));
    pages.replaceChildren();
    state.textContent = "";
    state.className = "state";
    const isPage = config.pages.some((name) => query.has(name));
    pause.hidden = isPage;
    const found = await persist(empty, own, () => config.first({ store, path, query, isPage, signal: own }));
    if (!found) return;
    list.set(found.items);
    empty.replaceChildren(...(found.items.length > 0 ? [] : [config.empty(query.size > 0)]));
    turn(found, isPage && h("a", { href: go.href({ item: "", query: without(query, config.pages) }) }, "Newest"));
    if (isPage) return;
    stream(config.list, {
      store, path, query: query.toString(), last: found.last, signal: own, onState: show,
      onItem: (item) => {
        waiting.push(item);
        if (waiting.length > 2 * list.most) waiting = waiting.slice(-list.most - 1); // one too many, so that it sees the gap
        soon();
      },
    });
  }

  let choice = new AbortController();
  async function showDetail(id) {
    choice.abort();
    choice = new AbortController();
    const own = AbortSignal.any([signal, choice.signal]);
    element.classList.toggle("chosen", Boolean(id));
    list.choose(id);
    if (!id) return;
    const below = h("div", null, h("p", { class: "hint" }, "Loading …"));
    detail.replaceChildren(h("a", { class: "back", href: go.href({ item: "" }) }, `All ${config.things}`), below);
    if (!list.element.checkVisibility()) detail.focus();
    const item = await persist(below, own, () => read(config.get, { store, path: { ...path, [config.idName]: id }, signal: own }));
    if (!item) return;
    below.replaceWith(...config.detail(item.data, { store, go }));
    detail.scrollTop = 0;
  }

  return {
    heading,
    update({ item, query }) {
      for (const one of filters) one.show(query.get(one.name) ?? "");
      if (query.toString() !== shown) {
        shown = query.toString();
        begin(query);
      }
      return showDetail(item);
    },
  };
}

const without = (query, names) => Object.fromEntries([...query].filter(([name]) => !names.includes(name)));
