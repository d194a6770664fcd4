// The form of an operation: parameters and the fields of the body, or its raw JSON. The
// samples follow each change.
import { h, newID } from "./dom.js";
import { field, toTexts, toTree } from "./fields.js";
import { pretty, read, styles, write } from "./json.js";
import { keyButton, keyState } from "./key.js";
import { sender } from "./outcome.js";
import { build, initial, keyOf } from "./request.js";
import { follow, operationOf } from "./samples.js";
import { knownID } from "./settings.js";

function enhance(place) {
  const id = place.dataset.try;
  const title = document.getElementById(`${id}-title`).firstChild.textContent;
  const box = h("div", { id: newID("form"), hidden: true });
  const more = h("span", { class: "unseen" }, `: ${title}`);
  const button = h("button", { type: "button", class: "try-button", "aria-expanded": "false", "aria-controls": box.id, onclick: toggle }, "Try it", more);
  place.append(button, box);

  let loading = false;

  async function toggle() {
    if (loading) return;
    if (!box.querySelector("form")) {
      loading = true;
      box.replaceChildren();
      box.hidden = true;
      try {
        box.append(form(id, await operationOf(id)));
      } catch (error) {
        box.append(h("p", { class: "field-error", role: "alert" }, `The form cannot load: ${error.message}. Try again, or reload the page.`));
        box.hidden = false;
        return; // the next click tries again
      } finally {
        loading = false;
      }
    }
    box.hidden = !box.hidden;
    button.setAttribute("aria-expanded", String(!box.hidden));
    button.firstChild.data = box.hidden ? "Try it" : "Close";
  }
}

function form(id, operation) {
  let values = start(operation);
  const changed = () => follow(id, build(operation, values));
  const parameters = operation.parameters.map((parameter) => parameterField(parameter, (texts) => {
    values.parameters[keyOf(parameter)] = texts;
    changed();
  }));
  const body = operation.body ? bodyFields(operation.body, (text) => {
    values.body = text;
    changed();
  }) : undefined;
  const types = operation.returns;
  const accept = types.length > 1 ? field({
    name: "Accept", schema: { type: "string", enum: types }, description: "The format of the response.",
    onchange: ([type]) => {
      values.accept = type ?? types[0];
      changed();
    },
  }) : undefined;
  const reset = () => {
    values = start(operation);
    for (const { parameter, show } of parameters) show(values.parameters[keyOf(parameter)]);
    body?.show(values.body);
    accept?.show([values.accept]);
    changed();
  };
  reset();

  const shown = parameters.filter(({ parameter }) => values.parameters[keyOf(parameter)].length > 0 || parameter.required);
  const others = parameters.filter((one) => !shown.includes(one));
  const { buttons, outcome, send } = sender(operation, () => build(operation, values));
  return h(
    "form",
    {
      class: "try-form", novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        send();
      },
    },
    !operation.public && h("div", { class: "key" }, keyState(["No API key: ", h("code", null, "petstore dev"), " prints one."]), keyButton()),
    ...shown.map(({ element }) => element),
    accept?.element,
    others.length > 0 && optional(others, "parameter"),
    body?.element,
    h("div", { class: "buttons" }, ...buttons, h("button", { type: "button", class: "plain-button", onclick: reset }, "Reset")),
    outcome,
  );
}

/** Returns the first values of an operation, with ids that responses in this tab had. */
function start(operation) {
  const values = initial(operation);
  for (const parameter of operation.parameters) {
    const key = keyOf(parameter);
    const [prefix] = values.parameters[key][0]?.split("_") ?? [];
    const known = parameter.in === "path" && knownID(prefix);
    if (known) values.parameters[key] = [known];
  }
  values.body = pretty(values.body);
  return values;
}

function parameterField(parameter, onchange) {
  const { element, show } = field({ ...parameter, required: parameter.required || parameter.in === "path", onchange });
  return { parameter, name: parameter.name, element, show };
}

function optional(fields, what) {
  const names = fields.map(({ name }) => name).join(", ");
  return h(
    "details",
    { class: "optional" },
    h("summary", null, fields.length === 1 ? `1 more ${what}` : `${fields.length} more ${what}s`, h("span", { class: "optional-names" }, names)),
    ...fields.map(({ element }) => element),
  );
}

/** The body: fields that write the raw JSON, and the raw JSON, which fills the fields. */
function bodyFields({ type, schema, required, example }, onchange) {
  let text = "";
  const raw = h("textarea", {
    class: "raw", rows: 8, spellcheck: "false", "aria-label": "Body as JSON",
    oninput: () => {
      text = raw.value;
      fill();
      onchange(text);
    },
  });
  const error = h("p", { class: "field-error", role: "status" });
  const unknown = h("p", { class: "field-about" });
  const properties = Object.entries(schema.properties ?? {}).filter(([, property]) => !property.readOnly);

  const fields = properties.map(([name, property]) => ({
    name,
    property,
    ...field({
      name, schema: property, required: schema.required?.includes(name), example: example?.[name],
      onchange: (texts) => {
        text = changedBody(text, name, texts.length > 0 ? toTree(property, texts) : undefined, required);
        raw.value = text;
        fill(name);
        onchange(text);
      },
    }),
  }));
  const treeOf = () => (text.trim() === "" ? { fields: [] } : read(text));

  // Shows the raw JSON in all fields except the one that the reader edits.
  function fill(edited) {
    let tree;
    try {
      tree = treeOf();
      error.textContent = "";
    } catch (problem) {
      error.textContent = `Not valid JSON: ${problem.message}. It is sent as it stands.`;
    }
    raw.setAttribute("aria-invalid", String(!tree));
    const isObject = Boolean(tree?.fields);
    byFields.disabled = !isObject || properties.length === 0;
    if (!isObject) return;
    for (const { name, property, show } of fields) {
      if (name !== edited) show(toTexts(property, tree.fields.findLast(([known]) => known === name)?.[1]));
    }
    const more = tree.fields.filter(([name, value]) => value.text === "null" || !properties.some(([known]) => known === name));
    unknown.replaceChildren(...(more.length > 0 ? ["The JSON also has ", ...more.flatMap(([name, value], i) => [i > 0 && ", ", h("code", null, value.text === "null" ? `${name}: null` : name)].filter(Boolean)), "."] : []));
  }

  const inFields = h("div", { class: "body-fields" });
  const inRaw = h("div", { class: "field", hidden: true }, raw, error);
  const switchTo = (fieldsShown) => {
    inFields.hidden = !fieldsShown;
    inRaw.hidden = fieldsShown;
    byFields.setAttribute("aria-pressed", String(fieldsShown));
    byRaw.setAttribute("aria-pressed", String(!fieldsShown));
  };
  const byFields = h("button", { type: "button", onclick: () => switchTo(true) }, "Fields");
  const byRaw = h("button", { type: "button", onclick: () => switchTo(false) }, "JSON");
  switchTo(properties.length > 0);

  let laidOut = false;
  return {
    element: h(
      "div",
      { class: "body", role: "group", "aria-label": "Body" },
      h("div", { class: "body-bar" }, h("span", null, "Body"), h("span", { class: "field-type" }, type), h("span", { class: "switch", role: "group", "aria-label": "Edit the body as" }, byFields, byRaw)),
      inFields,
      inRaw,
    ),
    show(changed) {
      text = changed;
      raw.value = text;
      fill();
      if (laidOut) return;
      laidOut = true;
      const has = new Set((treeOf().fields ?? []).map(([name]) => name));
      const shown = fields.filter(({ name }) => has.has(name) || schema.required?.includes(name));
      const others = fields.filter((one) => !shown.includes(one));
      inFields.append(...shown.map(({ element }) => element), ...(others.length > 0 ? [optional(others, "field")] : []), unknown);
    },
  };
}

/** Returns the JSON with another value of a field, or without the field. */
function changedBody(text, name, value, required) {
  const { fields } = text.trim() === "" ? { fields: [] } : read(text);
  const at = fields.findLastIndex(([known]) => known === name);
  if (value && at >= 0) fields[at] = [name, value];
  else if (value) fields.push([name, value]);
  else if (at >= 0) fields.splice(at, 1);
  return fields.length === 0 && !required ? "" : write({ fields }, styles.JSON, { width: 40 });
}

for (const place of document.querySelectorAll("[data-try]")) enhance(place);
