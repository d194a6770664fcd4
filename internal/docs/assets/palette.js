// The palette searches the reference and the guides: "/", Ctrl-K or the button of the header.
import { h, siteURL } from "./dom.js";
import { prepare, search } from "./rank.js";

const kinds = {
  guide: "Guide", section: "Guide", tag: "Reference", error: "Error", event: "Event", model: "Model", header: "Header", parameter: "Parameter", field: "Field", property: "Field", change: "Changelog",
};

let entries; // a promise of the prepared index

function load() {
  entries ??= fetch(new URL("search.json", import.meta.url))
    .then((response) => (response.ok ? response.json() : Promise.reject(new Error(`the server returned ${response.status}`))))
    .then(prepare);
  return entries;
}

const input = h("input", {
  type: "text", role: "combobox", placeholder: "Search operations, fields, errors and guides", "aria-label": "Search", "aria-controls": "palette-results",
  "aria-expanded": "false", "aria-autocomplete": "list", autocomplete: "off", autocapitalize: "off", spellcheck: "false", oninput: show, onkeydown: onKeyDown,
});
const results = h("ul", { id: "palette-results", role: "listbox", "aria-label": "Results", onclick: onClick });
const status = h("p", { class: "palette-status", role: "status" });
const dialog = h(
  "dialog",
  { class: "palette", "aria-label": "Search the docs", onclick: (event) => event.target === dialog && dialog.close() },
  h("div", { class: "palette-field" }, input, h("button", { type: "button", class: "palette-close", onclick: () => dialog.close() }, h("kbd", { "aria-hidden": "true" }, "Esc"), h("span", { class: "unseen" }, "Close"))),
  results,
  status,
);

let active = -1;

function open() {
  if (dialog.open) return;
  if (!dialog.isConnected) document.body.append(dialog);
  dialog.showModal();
  input.focus();
  input.select();
  show();
}

async function show() {
  const query = input.value;
  let found;
  try {
    const all = await load();
    found = query.trim() ? search(all, query) : all.filter(({ kind }) => kind === "guide");
  } catch (error) {
    entries = undefined; // the next key tries again
    status.textContent = `The search cannot load: ${error.message}.`;
    return;
  }
  if (query !== input.value) return; // a later call shows its results
  results.replaceChildren(...found.map(option));
  results.hidden = found.length === 0;
  input.setAttribute("aria-expanded", String(found.length > 0));
  status.textContent = found.length === 0 ? `Nothing matches “${query.trim()}”.` : "";
  activate(found.length > 0 ? 0 : -1);
}

function option({ kind, method, title, where, path }, at) {
  return h(
    "li",
    { role: "option", id: `palette-${at}`, "aria-selected": "false", "data-path": path, onpointermove: () => active !== at && activate(at) },
    method ? h("span", { class: `method method-${method.toLowerCase()}` }, method) : h("span", { class: "palette-kind" }, kinds[kind]),
    h("span", { class: ["operation", "guide", "section", "tag", "change"].includes(kind) ? "palette-title" : "palette-title palette-code" }, title),
    where && h("span", { class: "palette-where" }, where),
  );
}

function activate(at) {
  results.children[active]?.setAttribute("aria-selected", "false");
  active = at;
  const chosen = results.children[at];
  if (chosen) {
    chosen.setAttribute("aria-selected", "true");
    chosen.scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", chosen.id);
  } else input.removeAttribute("aria-activedescendant");
}

function go(chosen) {
  if (!chosen) return;
  dialog.close();
  const target = new URL(siteURL(chosen.dataset.path));
  location.assign(target);
  // Within a page, the keyboard continues at the target.
  const part = target.pathname === location.pathname && document.getElementById(target.hash.slice(1));
  if (!part) return;
  part.tabIndex = -1;
  part.focus({ preventScroll: true });
}

function onClick(event) {
  go(event.target.closest("[role=option]"));
}

function onKeyDown(event) {
  if (event.isComposing) return; // the keys belong to an input method
  const count = results.children.length;
  const next = { ArrowDown: (active + 1) % count, ArrowUp: (active - 1 + count) % count, PageDown: Math.min(active + 8, count - 1), PageUp: Math.max(active - 8, 0) }[event.key];
  if (next !== undefined && count > 0) activate(next);
  else if (event.key === "Enter") go(results.children[active]);
  else return;
  event.preventDefault();
}

document.querySelector(".search-button")?.addEventListener("click", open);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  const slash = event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey;
  const ctrlK = event.key?.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;
  if ((!slash && !ctrlK) || document.querySelector("dialog[open]:not(.palette)")) return;
  event.preventDefault();
  open();
});
