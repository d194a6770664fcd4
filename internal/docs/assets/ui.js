// Swagger UI passes its own React to its plugins, and this module passes it on.
import { settings, subscribe } from "./settings.js";

export let h, useContext, useEffect, useId, useMemo, useRef, useState;

/** The context of all components: Swagger UI's functions and the spec. */
export let Reference;

let useSyncExternalStore;

export function use(React) {
  ({ createElement: h, useContext, useEffect, useId, useMemo, useRef, useState, useSyncExternalStore } = React);
  Reference = React.createContext(null);
}

/** Returns the reader's settings. The component is redrawn when they change. */
export function useSettings() {
  return useSyncExternalStore(subscribe, settings);
}

/** Shows Markdown. */
export function Text({ source }) {
  const { Markdown, spec } = useContext(Reference);
  const place = useRef(null);
  // Swagger UI opens every link in a new window and does not know our anchors. Links to guides are relative to the
  // spec, which is next to this page.
  useEffect(() => {
    if (!source) return;
    for (const link of place.current.querySelectorAll("a")) {
      const target = link.getAttribute("href");
      if (/^https?:/.test(target)) continue;
      link.removeAttribute("target");
      if (target.startsWith("#")) link.href = `#${spec.idOf(target)}`;
    }
    for (const table of place.current.querySelectorAll("table")) {
      if (table.parentElement.className === "scrollable") continue;
      const frame = document.createElement("div");
      Object.assign(frame, { className: "scrollable", tabIndex: 0, role: "group", ariaLabel: "Table" });
      table.replaceWith(frame);
      frame.append(table);
    }
  }, [source]);
  return source ? h("div", { ref: place, className: "text" }, h(Markdown, { source })) : null;
}
