// The report on the clients of a sandbox, with the requests behind each verdict.
import { fact } from "./console-list.js";
import { persist, read } from "./console-session.js";
import { disabledDuring, h, siteURL } from "./dom.js";

const order = ["failed", "warning", "passed", "not_seen"];

/** Returns the part of a sandbox that shows its report on demand, because it is expensive. */
export function reportPart(id, { go, signal }) {
  const place = h("div", { "aria-live": "polite" });
  async function judge() {
    const found = await persist(place, signal, () => read("getReport", { path: { sandboxId: id }, signal }));
    if (!found) return;
    const { counts, results, requests, incomplete } = found.data;
    place.replaceChildren(
      h("p", { class: "hint" }, `Failed: ${counts.failed}, warnings: ${counts.warnings}, passed: ${counts.passed}, not seen: ${counts.notSeen}, requests: ${requests}.`, incomplete && " The record is incomplete."),
      h("ol", { class: "deliveries", "aria-label": "Verdicts" }, ...results.toSorted((a, b) => order.indexOf(a.status) - order.indexOf(b.status)).map(verdict)),
    );
  }
  const verdict = ({ status, subject, title, summary, evidence, guide }) =>
    h("li", null, h("details", { open: status === "failed" },
      h("summary", null, h("span", { class: `chip chip-${status}` }, status.replace("_", " ")), h("span", { class: "row-title" }, title), h("span", { class: "faint" }, subject)),
      h("p", null, summary, " ", h("a", { href: new URL(guide.replace(/^\//, ""), siteURL("")).href }, "Guide")),
      h("dl", { class: "facts-of" }, fact("Seen in", ...evidence.flatMap((one) => [one.startsWith("req_") ? h("a", { href: go.href({ view: "requests", store: id, item: one, query: {} }) }, one) : h("code", null, one), " "]))),
    ));
  return h("section", { "aria-label": "Report" }, h("div", { class: "part-bar" }, h("h3", null, "Report on the client"), h("button", { type: "button", class: "plain-button", onclick: ({ currentTarget }) => disabledDuring(currentTarget, judge) }, "Judge")), place);
}
