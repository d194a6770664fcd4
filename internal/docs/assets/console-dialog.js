// Dialogs: the form of an operation, with the fields of its body in the spec, and new secrets.
import { Failure } from "./console-api.js";
import { problem, run, session } from "./console-session.js";
import { copyButton } from "./code.js";
import { disabledDuring, h } from "./dom.js";
import { field, isList, toTexts, toTree } from "./fields.js";
import { read, styles, write } from "./json.js";

const day = 86_400_000; // milliseconds

function open(title, ...children) {
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title", onclose: () => dialog.remove() }, h("h2", { id: "dialog-title" }, title), ...children);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/**
 * Returns a button that runs an operation after a dialog, or none if the API lacks the operation.
 * The dialog has a note and the fields of the body, with the values to start with. An update sends
 * only the changed fields. `then` gets the response.
 */
export function action(id, form) {
  if (!session.operations[id]) return false;
  return h("button", { type: "button", class: form.danger ? "plain-button danger" : "plain-button", onclick: () => openForm(id, form) }, form.label);
}

/**
 * Returns the fields of an object with the values to start with. `tree` returns the tree of the
 * object with all values, or, for an update, only with those that have changed.
 */
export function objectFields(schema, { values = {}, schemas, update, onchange }) {
  const start = read(JSON.stringify(values)).fields;
  const fields = Object.entries(schema?.properties ?? {}).map(([name, given]) => {
    const own = { ...given, ...schemas?.[name] };
    if (own.format === "date-time") own.example = `${new Date(Date.now() + day).toISOString().slice(0, 19)}Z`;
    const one = { name, schema: own, texts: toTexts(own, start.find(([known]) => known === name)?.[1]) };
    const control = field({ name, schema: own, required: schema.required?.includes(name) || (update && !own.nullable), example: own.example, onchange: (texts) => {
      one.texts = texts;
      onchange?.(name);
    } });
    if (one.texts.length > 0) control.show(one.texts);
    return Object.assign(one, { element: control.element, before: String(one.texts) });
  });
  const valueOf = ({ schema: own, texts }) => (texts.length > 0 || isList(own) ? toTree(own, texts) : { text: "null" });
  const tree = () => ({ fields: fields.filter(({ element, texts, before }) => !element.hidden && (update ? String(texts) !== before : texts.length > 0)).map((one) => [one.name, valueOf(one)]) });
  return { fields, tree };
}

function openForm(id, { label, title = label, submit = label, note, danger, values, update, options, then }) {
  const { body } = session.operations[id];
  const { fields, tree } = objectFields(body?.schema, { values, update });
  const outcome = h("div");
  const button = h("button", { type: "submit", class: danger ? "send-button danger" : "send-button" }, submit);
  const onsubmit = async (event) => {
    event.preventDefault();
    try {
      const response = await disabledDuring(button, () => run(id, { ...options, body: body && write(tree(), styles.JSON) }));
      dialog.close();
      await then?.(response);
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      outcome.replaceChildren(problem(failure));
    }
  };
  const dialog = open(
    title,
    h(
      "form",
      { onsubmit, novalidate: true },
      note && h("p", null, note),
      ...fields.map(({ element }) => element),
      outcome,
      h("div", { class: "buttons" }, button, h("button", { type: "button", class: "plain-button", onclick: () => dialog.close() }, "Cancel")),
    ),
  );
  (dialog.querySelector("input, select, textarea") ?? button).focus();
}

/** Shows a secret that the server never shows again, and returns when the reader has closed it. */
export function showSecret(title, secret, note) {
  return new Promise((resolve) => {
    const code = h("code", null, secret);
    const dialog = open(
      title,
      h("form", { method: "dialog" },
        h("p", null, note ?? "The server shows this secret only now. Store it before you close this dialog."),
        h("div", { class: "panel secret" }, h("pre", { tabindex: "0", role: "group", "aria-label": "Secret" }, code), copyButton(() => secret)),
        h("div", { class: "buttons" }, h("button", { class: "send-button" }, "I have stored it")),
      ),
    );
    dialog.closedBy = "none"; // Escape would lose the secret
    dialog.addEventListener("cancel", (event) => event.preventDefault()); // in a browser without closedBy
    dialog.addEventListener("close", resolve);
  });
}
