// The page: the sidebar, and next to it the introduction, operations and models.
import { KeyDialog } from "./key.js";
import { Operation } from "./operation.js";
import { Schema, Stability } from "./schema.js";
import { Sidebar } from "./sidebar.js";
import { Reference, Text, h, use, useEffect, useMemo, useState } from "./ui.js";

/** Returns the plugin for Swagger UI that draws the spec. */
export function reference(spec, guides) {
  return (system) => {
    use(system.React);
    return { components: { PetstoreLayout: ({ getComponent, fn }) => h(Layout, { getComponent, fn, spec, guides }) } };
  };
}

function Layout({ getComponent, fn, spec, guides }) {
  const [asking, setAsking] = useState(false);
  const current = useCurrent();
  const shared = useMemo(
    () => ({ Markdown: getComponent("Markdown"), fn, spec, openKeyDialog: () => setAsking(true) }),
    [spec],
  );
  const content = useMemo(() => h(Content, { spec }), [spec]);
  useDeepLinks(spec);
  return h(
    Reference.Provider,
    { value: shared },
    h(Sidebar, { current, guides }),
    content,
    h(KeyDialog, { open: asking, onClose: () => setAsking(false) }),
  );
}

function Content({ spec }) {
  const { info } = spec.document;
  return h(
    "main",
    { id: "content", className: "content", tabIndex: -1 },
    h(
      "section",
      { className: "introduction", "aria-labelledby": "title" },
      h("h1", { id: "title" }, info.title),
      h(Text, { source: info.description }),
    ),
    ...spec.tags.map((tag) => h(Tag, { key: tag.id, tag, level: 2 })),
    h(Models, { spec }),
  );
}

function Tag({ tag, level }) {
  return h(
    "section",
    { className: `tag tag-level-${level}` },
    h(`h${level}`, { id: tag.id }, tag.name),
    h(Text, { source: tag.description }),
    ...tag.operations.map((operation) => h(Operation, { key: operation.id, operation, level: level + 1 })),
    ...tag.children.map((child) => h(Tag, { key: child.id, tag: child, level: level + 1 })),
  );
}

function Models({ spec }) {
  return h(
    "section",
    { className: "tag", "aria-labelledby": "models" },
    h("h2", { id: "models" }, "Models"),
    ...spec.schemas.map(({ id, name, schema }) =>
      h(
        "section",
        { key: id, id, "data-nav": id, className: "model", "aria-labelledby": `${id}-title` },
        h("h3", { id: `${id}-title` }, name, h(Stability, { label: schema["x-stability"] })),
        h(Text, { source: schema.description }),
        h(Schema, { schema }),
      ),
    ),
  );
}

/** Returns the id of the current section: the first part below the top of the window. */
function useCurrent() {
  const [current, setCurrent] = useState("");
  useEffect(() => {
    const parts = [...document.querySelectorAll("[data-nav]")];
    const seen = new Set();
    const observer = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          if (isIntersecting) seen.add(target);
          else seen.delete(target);
        }
        const first = parts.find((part) => seen.has(part));
        if (first) setCurrent(first.dataset.nav);
      },
      { rootMargin: "-15% 0px -75% 0px" },
    );
    for (const part of parts) observer.observe(part);
    return () => observer.disconnect();
  }, []);
  return current;
}

/**
 * Scrolls to the target of the address, because the browser tries that before the page is complete.
 * It also moves the focus there, so that keyboards and screen readers continue from the target.
 */
function useDeepLinks(spec) {
  useEffect(() => {
    const go = () => {
      const target = document.getElementById(spec.idOf(decodeURIComponent(location.hash)));
      if (!target) return;
      target.tabIndex = -1;
      target.focus({ preventScroll: true });
      target.scrollIntoView();
    };
    go();
    addEventListener("hashchange", go);
    return () => removeEventListener("hashchange", go);
  }, [spec]);
}
