// The sandboxes of an account: their life, fault rules, samples and reports.
import { actions, collectionView, readAll } from "./console-collection.js";
import { action, showSecret } from "./console-dialog.js";
import { faultsEditor } from "./console-faults.js";
import { dayAndTime, fact, when } from "./console-list.js";
import { reportPart } from "./console-report.js";
import { has, keyOf, loadSandboxes, session } from "./console-session.js";
import { h } from "./dom.js";
import { noteSandboxKey } from "./settings.js";

/** Returns the view of the sandboxes of the account. */
export function sandboxesView(context) {
  const isSandbox = session.account.id.startsWith("sbx_");
  const samples = h("section", { "aria-label": "Samples", tabindex: "-1" });
  return collectionView(
    {
      title: "Sandboxes", things: "sandboxes",
      empty: "No sandboxes yet. A sandbox is a temporary account with a store of its own, for tests.",
      load: async ({ signal, reload }) => {
        await loadSandboxes(signal);
        context.go.refresh();
        const deleted = async () => {
          await reload(undefined, "Deleted.");
          if (document.activeElement === document.body) samples.focus(); // its button is gone
        };
        if (has("listSamples")) samples.replaceChildren(...samplesList(await readAll("listSamples", { signal }), deleted));
        return session.sandboxes;
      },
      cells: ({ id, name, sample, expiresAt }) => [h("span", { class: "chip" }, id), h("span", { class: "row-text" }, name), h("span", { class: "row-note faint" }, sample), h("span", { class: "faint" }, left(expiresAt))],
      tools: ({ reload }) => [!isSandbox && action("createSandbox", {
        label: "New sandbox", submit: "Create",
        then: async (response) => {
          const { id, apiKey } = await response.json();
          noteSandboxKey(id, apiKey.secret);
          await showSecret(`API key of ${id}`, apiKey.secret, "The server shows this secret only now. The console keeps it until you close the tab.");
          await reload(id, "Created.");
        },
      })],
      detail,
      below: samples,
    },
    context,
  );
}

function samplesList(all, then) {
  const row = ({ name, builtIn }) => h("li", { class: "row" }, h("span", { class: "row-text" }, name), builtIn ? h("span", { class: "faint" }, "built in") : action("deleteSample", { label: "Delete", title: `Delete the sample ${name}`, note: "Sandboxes that have started as it can still return to it.", danger: true, options: { path: { name } }, then }));
  return [h("div", { class: "part-bar" }, h("h2", null, "Samples")), h("ul", { class: "rows" }, ...all.map(row))];
}

// Says how long a sandbox lives.
function left(expiresAt) {
  const minutes = Math.round((new Date(expiresAt) - Date.now()) / 60_000);
  if (minutes < 1) return "expires now";
  return minutes < 120 ? `${minutes} min left` : minutes < 2880 ? `${Math.round(minutes / 60)} h left` : `${Math.round(minutes / 1440)} days left`;
}

function detail(sandbox, { go, signal, reload }) {
  const { id, name, sample, createdAt, expiresAt } = sandbox;
  const options = { path: { sandboxId: id } };
  const faults = faultsEditor(id, signal);
  return [
    h("h2", { class: "line" }, name, " ", h("code", null, id)),
    actions(
      h("a", { class: "plain-button", href: go.href({ view: "requests", store: id, item: "", query: {} }) }, "Requests"),
      action("resetSandbox", { label: "Reset", title: `Reset ${id}`, note: `The store returns to the sample ${sample}. This removes everything else in it.`, danger: true, options, then: () => {
        faults.refresh(); // it counts from 0 again
        return reload(undefined, `The store of ${id} has its sample again.`);
      } }),
      !session.account.id.startsWith("sbx_") && action("saveSample", { label: "Save as sample", submit: "Save", note: "Other sandboxes can start as this sample.", values: { from: id }, options, then: () => reload(undefined, "Saved.") }),
      action("deleteSandbox", { label: "Delete", title: `Delete ${id}`, note: "The keys of the sandbox stop working.", danger: true, options, then: () => {
        noteSandboxKey(id, "");
        return reload("", "Deleted.");
      } }),
    ),
    h(
      "dl",
      { class: "facts-of" },
      fact("Sample", sample), fact("Created", when(createdAt, dayAndTime)), fact("Expires", when(expiresAt, dayAndTime), ` (${left(expiresAt)})`),
      fact("API key", keyOf(id) ? "in this tab" : "not in this tab"),
    ),
    faults.element,
    has("getReport") && reportPart(id, { go, signal }),
  ];
}
