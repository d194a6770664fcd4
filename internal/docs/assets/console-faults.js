// The editor of the fault rules of a sandbox.
import { Failure } from "./console-api.js";
import { objectFields } from "./console-dialog.js";
import { filterField } from "./console-list.js";
import { isAboutSandboxes, persist, problem, read, run, session } from "./console-session.js";
import { h } from "./dom.js";
import { styles, write } from "./json.js";

// The field that an effect needs.
const needs = { status: "status", delay: "delayMs", close: "when" };

/** Returns the element of the editor of a sandbox, and a function that reads the rules again unless some are not saved. */
export function faultsEditor(id, signal) {
  const { rules: { items: rule }, exercise } = session.operations.setSandboxFaults.body.schema.properties;
  const faultable = Object.keys(session.operations).filter((name) => !isAboutSandboxes(name) && !session.operations[name].public);
  const options = { path: { sandboxId: id }, signal };
  const place = h("div");
  const status = h("p", { class: "hint", role: "status" });
  const rows = h("div", { class: "rules" });
  let chosen = "";
  const exercises = exercise && filterField({ label: "Exercise", choices: exercise.enum, none: "choose" }, (name) => {
    chosen = name;
    loader.disabled = !name;
  });
  const loader = h("button", { type: "button", class: "plain-button", disabled: true, onclick: () => change("setSandboxFaults", JSON.stringify({ exercise: chosen }), `Loaded ${chosen}.`) }, "Load exercise");
  const refresh = h("button", { type: "button", class: "plain-button", onclick: () => load() });
  const buttons = h(
    "div",
    { class: "buttons", hidden: true },
    h("button", { type: "button", class: "plain-button", onclick: () => add({ operation: "*", effect: "status", status: 503, first: 1 }).focus() }, "Add rule"),
    h("button", { type: "submit", class: "send-button" }, "Save rules"),
    h("button", { type: "button", class: "plain-button", onclick: () => change("deleteSandboxFaults", undefined, "The sandbox has no rules.") }, "Delete all"),
    exercises?.element,
    exercises && loader,
  );
  let rules = [];
  let edits = 0; // if it changes after a request, the response must not remove what the reader has edited

  function add(values) {
    // Shows only the field that the effect needs.
    const fit = () => {
      const { texts: [effect] } = fields.find(({ name }) => name === "effect");
      for (const { name, element } of fields) element.hidden = Object.values(needs).includes(name) && needs[effect] !== name;
    };
    const { fields, tree } = objectFields(rule, { values, schemas: { operation: { enum: ["*", ...faultable, ...(exercise ? ["deliverWebhook"] : [])] } }, onchange: () => (fit(), edited()) });
    fit();
    const remove = () => {
      rules = rules.filter((one) => one !== tree);
      element.remove();
      edited();
      buttons.firstChild.focus();
    };
    const matched = values.matched === undefined ? "" : `counted ${values.matched}`;
    const element = h("fieldset", { class: "rule" }, h("legend"), h("span", { class: "faint matched" }, matched), ...fields.map((one) => one.element), h("button", { type: "button", class: "plain-button", onclick: remove }, "Remove"));
    rules.push(tree);
    rows.append(element);
    edited();
    return element.querySelector("select");
  }
  const edited = () => {
    edits++;
    refresh.textContent = "Discard changes";
    [...rows.children].forEach((one, i) => (one.firstChild.textContent = `Rule ${i + 1}`));
  };

  async function load(from = edits) {
    const found = await persist(place, signal, () => read("getSandboxFaults", options));
    if (!found) return;
    place.replaceChildren();
    if (edits !== from) return;
    buttons.hidden = false;
    rules = [];
    rows.replaceChildren();
    found.data.rules.forEach(add);
    edits = from;
    refresh.textContent = "Refresh";
  }

  async function change(operation, body, said) {
    const from = edits;
    status.textContent = "";
    try {
      await run(operation, { ...options, body });
      place.replaceChildren();
      await load(from);
      status.textContent = said;
    } catch (failure) {
      if (signal.aborted) return;
      if (!(failure instanceof Failure)) throw failure;
      place.replaceChildren(problem(failure));
    }
  }

  load();
  const element = h(
    "section",
    { "aria-label": "Fault rules" },
    h("div", { class: "part-bar" }, h("h3", null, "Fault rules"), refresh),
    h("form", {
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        change("setSandboxFaults", write({ fields: [["rules", { items: rules.map((tree) => tree()) }]] }, styles.JSON), "Saved. The rules take effect within a second.");
      },
    }, rows, place, status, buttons),
  );
  return { element, refresh: () => refresh.textContent === "Refresh" && load() };
}
