// Code on dark panels, highlighted and with a copy button.
import { copy } from "./clipboard.js";
import { lines } from "./highlight.js";
import { h, useEffect, useMemo, useRef, useState } from "./ui.js";

/** Returns the code as React nodes, one per line, highlighted if the language is known. */
function coloured(code, language) {
  return lines(code, language).map((pieces, i) =>
    h("span", { key: i, className: "line" }, ...pieces.map(([kind, text]) => (kind ? h("span", { className: `code-${kind}` }, text) : text))),
  );
}

export function Code({ code, language, label }) {
  const nodes = useMemo(() => coloured(code, language), [code, language]);
  return h("pre", { tabIndex: 0, role: "group", "aria-label": label }, h("code", null, ...nodes));
}

export function CopyButton({ code, what }) {
  const [copied, setCopied] = useState(false);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const onClick = async () => {
    await copy(code);
    setCopied(true);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setCopied(false), 2000);
  };
  return h(
    "button",
    { type: "button", className: "copy", onClick },
    h("span", { "aria-live": "polite" }, copied ? "Copied" : "Copy"),
    h("span", { className: "unseen" }, ` ${what}`),
  );
}

/** Formats a value for people: text unchanged, anything else as JSON. */
export function printed(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
