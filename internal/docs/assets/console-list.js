// A list of rows beside the details of one of them. Arrow keys move between the rows.
import { h, newID } from "./dom.js";

/** Returns a list that keeps at most `most` rows. A row is a link; `cells` returns its parts. */
export function rowList({ label, cells, href, most = 200 }) {
  let chosen = "";
  const links = () => [...element.querySelectorAll("a")];
  const element = h("ol", {
    class: "rows", "aria-label": label,
    onfocusin: ({ target }) => aim(target),
    onkeydown: (event) => {
      const all = links();
      const at = all.indexOf(document.activeElement);
      const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
      if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      all[Math.min(Math.max(next, 0), all.length - 1)]?.focus();
    },
  });
  // Only one row is a stop of the Tab key.
  function aim(target = element.querySelector("[aria-current]") ?? element.querySelector("a")) {
    element.querySelector('a[tabindex="0"]')?.setAttribute("tabindex", "-1");
    target?.setAttribute("tabindex", "0");
  }
  const row = (item) =>
    h("li", null, h("a", { class: "row", href: href(item), tabindex: "-1", "data-id": item.id, "aria-current": String(item.id) === chosen && "true" }, ...cells(item)));

  return {
    element,
    most,
    /**
     * Puts items above the others, the last one first. If rows no longer fit, it returns the id of
     * the last row above them.
     */
    add(items) {
      element.prepend(...items.slice(-most - 1).reverse().map(row));
      let end;
      while (element.childElementCount > most) {
        const last = element.lastElementChild;
        const removed = last.contains(document.activeElement) ? last.previousElementSibling : last;
        end = removed.previousElementSibling.firstChild.dataset.id;
        removed.remove();
      }
      if (!element.querySelector('a[tabindex="0"]')) aim();
      return end;
    },
    /** Shows these items, the first one first. */
    set(items) {
      const focused = document.activeElement?.closest?.(".rows") === element && document.activeElement.dataset.id;
      element.replaceChildren(...items.map(row));
      aim();
      if (focused) links().find(({ dataset }) => dataset.id === focused)?.focus();
    },
    choose(id = "") {
      const left = !id && links().find(({ dataset }) => dataset.id === chosen);
      chosen = id;
      for (const link of links()) {
        if (link.dataset.id === id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
      if (!element.contains(document.activeElement)) aim();
      if (left && !element.closest(".list").contains(document.activeElement)) left.focus();
    },
  };
}

/** Returns the frame of a list and of the details of an item. */
export function split({ title, tools, list, empty }) {
  const heading = h("h1", { tabindex: "-1" }, title);
  const detail = h("section", { class: "detail", tabindex: "-1", "aria-label": "Details" });
  const element = h("div", { class: "split" }, h("section", { class: "list", "aria-label": title }, h("div", { class: "tools" }, heading, ...tools), list, empty), detail);
  return { element, heading, detail };
}

/** Returns a labelled control: a select with choices, or a text field. */
export function filterField({ name, label, choices, hint, none = "all" }, onchange) {
  const id = newID("filter");
  const control = choices
    ? h("select", { id, onchange: () => onchange(control.value) }, h("option", { value: "" }, none), ...choices.map((value) => h("option", { value }, value)))
    : h("input", { id, type: "text", placeholder: hint, autocomplete: "off", spellcheck: "false", onchange: () => onchange(control.value.trim()) });
  return { name, element: h("div", { class: "filter" }, h("label", { for: id }, label), control), show: (value) => (control.value = value) };
}

/** A pair of a description list. Without a value, there is none. */
export const fact = (name, ...value) => value.some((one) => one !== undefined && one !== null && one !== "" && one !== false) && h("div", null, h("dt", null, name), h("dd", null, ...value));

/** Returns a time for people, whose title is the time in UTC. By default, it has a date unless that is today. */
export function when(text, style) {
  const time = new Date(text);
  const isToday = time.toDateString() === new Date().toDateString();
  style ??= { ...(!isToday && { day: "numeric", month: "short" }), hour: "2-digit", minute: "2-digit", second: "2-digit" };
  return h("time", { datetime: text, title: text }, Number.isNaN(time.getTime()) ? text : time.toLocaleString("en-GB", style));
}

export const dayAndTime = { dateStyle: "medium", timeStyle: "long" }; // with the zone

export function statusBadge(status, text = String(status ?? "—")) {
  return h("span", { class: `status status-${status ? `${String(status)[0]}xx` : "none"}` }, text);
}

export const methodBadge = (method) => h("span", { class: `method method-${method.toLowerCase()}` }, method);
