// React is Swagger UI's own: it hands it to its plugins, and the plugin hands it
// on from here.
import { settings, subscribe } from "./settings.js";

export let h, useContext, useEffect, useId, useMemo, useRef, useState;

/** What all components share: Swagger UI's functions and the description. */
export let Reference;

let useSyncExternalStore;

export function use(React) {
  ({ createElement: h, useContext, useEffect, useId, useMemo, useRef, useState, useSyncExternalStore } = React);
  Reference = React.createContext(null);
}

/** The reader's settings; the component is drawn anew when they change. */
export function useSettings() {
  return useSyncExternalStore(subscribe, settings);
}

/** Text that is written in Markdown. */
export function Text({ source }) {
  const { Markdown, description } = useContext(Reference);
  const place = useRef(null);
  // Swagger UI opens every link in a new window, and knows no anchors of ours.
  useEffect(() => {
    if (!source) return;
    for (const link of place.current.querySelectorAll("a")) {
      const target = link.getAttribute("href");
      if (!target.startsWith("#")) continue;
      link.removeAttribute("target");
      link.href = `#${description.idOf(target)}`;
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
