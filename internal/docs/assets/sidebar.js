// The navigation: groups, their tags, and the operations of the tags.
import { KeyButton } from "./key.js";
import { Method } from "./operation.js";
import { Stability } from "./schema.js";
import { Reference, h, useContext, useEffect, useMemo, useRef, useState } from "./ui.js";

export function Sidebar({ current, guides }) {
  const { spec } = useContext(Reference);
  const [filter, setFilter] = useState("");
  const field = useRef(null);
  const wanted = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = useMemo(() => new Map(spec.operations.map((operation) => [operation, searchText(operation)])), [spec]);
  const shows = (operation) => wanted.every((word) => texts.get(operation).includes(word));
  const found = spec.operations.filter(shows).length;
  const name = (text) => wanted.every((word) => text.toLowerCase().includes(word));

  useEffect(() => {
    const onKeyDown = (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      field.current.focus();
    };
    document.addEventListener("keydown", onKeyDown);
    return () => document.removeEventListener("keydown", onKeyDown);
  }, []);
  useEffect(() => {
    document.querySelector('#sidebar [aria-current="location"]')?.scrollIntoView({ block: "nearest" });
  }, [current]);

  return h(
    "aside",
    { id: "sidebar", className: "sidebar", "aria-label": "Navigation and API key" },
    h(
      "div",
      { className: "filter", role: "search" },
      h("input", {
        ref: field,
        type: "search",
        "aria-label": "Filter operations",
        "aria-keyshortcuts": "Control+K Meta+K",
        placeholder: "Filter operations",
        value: filter,
        onChange: (event) => setFilter(event.target.value),
      }),
      h("kbd", { "aria-hidden": true }, "Ctrl K"),
      h("p", { role: "status", className: filter ? "filter-count" : "unseen" }, filter && `${found} of ${spec.operations.length} operations`),
    ),
    h(
      "nav",
      { "aria-label": "Operations" },
      h(Links, {
        title: "Guides",
        links: guides.filter(({ text }) => name(text)),
      }),
      ...spec.tags.map((tag) => h(TagLinks, { key: tag.id, tag, shows, current })),
      h(Links, {
        title: "Models",
        links: spec.schemas.filter((schema) => name(schema.name)).map((schema) => ({ href: `#${schema.id}`, text: schema.name })),
        current,
      }),
    ),
    h(KeyButton),
  );
}

function searchText(operation) {
  const parts = [
    operation.summary,
    operation.method,
    operation.path,
    operation.id,
    operation.tag,
    operation.stability,
    operation.deprecated && "deprecated",
    operation.description,
    ...operation.parameters.map((parameter) => parameter.name),
    ...operation.responses.flatMap((response) => [response.status, ...response.codes]),
  ];
  return parts.filter(Boolean).join(" ").toLowerCase();
}

function has(tag, shows) {
  return tag.operations.some(shows) || tag.children.some((child) => has(child, shows));
}

function TagLinks({ tag, shows, current, below }) {
  if (!has(tag, shows)) return null;
  return h(
    "div",
    { className: below ? "nav-below" : "nav-above", "data-tag": tag.name },
    h("p", { className: below ? "nav-tag" : "nav-group" }, h("a", { href: `#${tag.id}` }, tag.name)),
    tag.operations.length > 0 &&
      h(
        "ul",
        { className: "nav-list" },
        ...tag.operations.filter(shows).map((operation) => h(OperationLink, { key: operation.id, operation, current })),
      ),
    ...tag.children.map((child) => h(TagLinks, { key: child.id, tag: child, shows, current, below: true })),
  );
}

function OperationLink({ operation, current }) {
  const isCurrent = current === operation.id;
  return h(
    "li",
    null,
    h(
      "a",
      { href: `#${operation.id}`, "aria-current": isCurrent ? "location" : undefined },
      h(Method, { method: operation.method }),
      h(
        "span",
        { className: "nav-text" },
        operation.deprecated ? h("s", null, operation.summary) : operation.summary,
        operation.deprecated && h("span", { className: "unseen" }, " (deprecated)"),
      ),
      h(Stability, { label: operation.stability }),
    ),
  );
}

function Links({ title, links, current }) {
  if (links.length === 0) return null;
  return h(
    "div",
    { className: "nav-above" },
    h("p", { className: "nav-group" }, title),
    h(
      "ul",
      { className: "nav-list" },
      ...links.map(({ href, text }) =>
        h("li", { key: href }, h("a", { href, "aria-current": href === `#${current}` ? "location" : undefined }, text)),
      ),
    ),
  );
}
