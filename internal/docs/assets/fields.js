// The fields of a form: which values a schema allows, and a control for them. A control has a
// list of texts, which is empty for a value that is not sent.
import { h, marked, newID } from "./dom.js";
import { read, styles, write } from "./json.js";

const shortText = 255; // characters; a text that may have more, and line breaks, gets several lines

const isScalar = (schema) => !schema.properties && !schema.items && !schema.oneOf && schema.type !== "object";
/** Reports whether the control of a schema has several texts. */
export const isList = (schema) => schema.type === "array" && isScalar(schema.items ?? {});
const choicesOf = (schema) => schema.enum ?? (schema.type === "boolean" ? [true, false] : undefined);

/** Returns the tree of a value, as the texts of a control say it. */
export function toTree(schema, texts) {
  if (isList(schema)) return { items: texts.map((text) => scalar(schema.items, text)) };
  if (isScalar(schema)) return scalar(schema, texts[0]);
  try {
    return read(texts[0]);
  } catch {
    return { text: JSON.stringify(texts[0]) };
  }
}

// A text without the form of a number becomes a string, so that the server rejects it with its own error.
function scalar({ type }, text) {
  const fits = type === "string" ? false : type === "boolean" ? /^(true|false)$/ : /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
  return { text: fits && fits.test(text) ? text : JSON.stringify(text) };
}

/** Returns the texts for the tree of a value. */
export function toTexts(schema, tree) {
  if (tree === undefined || tree.text === "null") return [];
  if (isList(schema) && tree.items) return tree.items.map(plain);
  return [plain(tree)];
}

const plain = (tree) => (tree.text?.startsWith('"') ? JSON.parse(tree.text) : write(tree, styles.JSON, { width: 40 }));

/** Says what the server will not accept about a value, or returns "". */
export function complaint(schema, texts, { required = false, where } = {}) {
  if (texts.length === 0) return required ? "Required." : "";
  if (where === "path" && /^\.{1,2}$/.test(texts[0])) return "A browser removes dots from a path.";
  const [foreign] = (where === "header" && /[^\t\x20-\x7e\x80-\xff]+/.exec(texts.join())) || [];
  if (foreign) return `A header cannot have "${foreign}".`;
  if (isList(schema)) return texts.map((text) => complaint(schema.items, [text])).find(Boolean) ?? "";
  const [text] = texts;
  if (!isScalar(schema)) {
    try {
      read(text);
      return "";
    } catch (error) {
      return `Not valid JSON: ${error.message}.`;
    }
  }
  if (schema.enum && !schema.enum.map(String).includes(text)) return `Must be one of ${schema.enum.join(", ")}.`;
  if (schema.type === "integer") return integerComplaint(schema, text);
  if (schema.type === "number" && !Number.isFinite(Number(text))) return "Must be a number.";
  if (schema.format === "date-time" && !/^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)$/.test(text)) return "Must be a time such as 2026-12-24T09:30:00Z.";
  const characters = [...text].length;
  if (characters < (schema.minLength ?? 0)) return `Must have at least ${schema.minLength} characters.`;
  if (characters > (schema.maxLength ?? Infinity)) return `Must have at most ${schema.maxLength} characters, not ${characters}.`;
  return schema.pattern && !matches(schema.pattern, text) ? "Does not have the required form." : "";
}

function integerComplaint({ minimum, maximum }, text) {
  if (!/^-?(0|[1-9]\d*)$/.test(text)) return "Must be an integer.";
  const value = Number(text);
  if (minimum !== undefined && value < minimum) return `Must be ${minimum} or more.`;
  return maximum !== undefined && value > maximum ? `Must be ${maximum} or less.` : "";
}

function matches(pattern, text) {
  try {
    return new RegExp(pattern, "u").test(text);
  } catch {
    return true; // a pattern of another dialect
  }
}

/**
 * Returns a field with a label, a description on demand, and a complaint about a bad value.
 * It calls onchange with the texts. show shows other texts.
 */
export function field({ name, schema, required, description = schema.description, example, in: where, onchange }) {
  const id = newID("field");
  let texts = [];
  const error = h("p", { class: "field-error", id: `${id}-error`, role: "status" });
  const control = controlOf(schema, { id, name, example, describedby: error.id }, (changed) => {
    texts = changed;
    complain();
    onchange(texts);
  });
  const complain = () => {
    const text = complaint(schema, texts, { required, where });
    error.textContent = text;
    for (const input of control.inputs) input.setAttribute("aria-invalid", String(text !== ""));
  };
  const about = h("p", { class: "field-about", id: `${id}-about`, hidden: true }, ...marked(description ?? ""));
  const ask = description && h(
    "button",
    {
      type: "button", class: "field-ask", "aria-expanded": "false", "aria-controls": about.id, "aria-label": `About ${name}`,
      onclick: () => {
        about.hidden = !about.hidden;
        ask.setAttribute("aria-expanded", String(!about.hidden));
      },
    },
    "?",
  );
  const element = h(
    control.group ? "fieldset" : "div",
    { class: "field" },
    h(
      control.group ? "legend" : "div",
      { class: "field-name" },
      h(control.group ? "span" : "label", { for: control.group ? undefined : id }, h("code", null, name)),
      h("span", { class: "field-type" }, typeOf(schema), required && h("span", { class: "required" }, " required")),
      ask,
    ),
    control.element,
    error,
    about,
  );
  return {
    element,
    show(changed) {
      texts = changed;
      control.show(texts);
      complain();
    },
  };
}

function typeOf(schema) {
  if (isList(schema)) return schema.items.enum ? "choices" : `${schema.items.type}s, separated by commas`;
  if (!isScalar(schema)) return "JSON";
  if (schema.format === "date-time") return "time";
  return choicesOf(schema) && schema.type === "string" ? "choice" : (schema.type ?? "JSON");
}

function controlOf(schema, attributes, onchange) {
  if (isList(schema) && schema.items.enum) return checks(schema.items.enum, attributes, onchange);
  if (isScalar(schema) && choicesOf(schema)) return choice(choicesOf(schema), attributes, onchange);
  return textControl(schema, attributes, onchange);
}

// In the spec, each text has a pattern of its characters, unlike a URL.
const isText = ({ pattern, maxLength }) => maxLength > shortText && pattern !== undefined && matches(pattern, "\n");

function textControl(schema, { id, example, describedby }, onchange) {
  const isLong = !isList(schema) && (!isScalar(schema) || isText(schema));
  const list = isList(schema);
  const hint = [example ?? []].flat().join(", ");
  const input = h(isLong ? "textarea" : "input", {
    id, type: isLong ? undefined : "text", rows: isLong ? 3 : undefined, "aria-describedby": describedby, autocomplete: "off", spellcheck: "false",
    inputmode: schema.type === "integer" ? "numeric" : undefined, placeholder: hint && hint.length < 40 ? `e.g. ${hint}` : undefined,
    oninput: () => onchange(list ? input.value.split(",").map((text) => text.trim()).filter(Boolean) : input.value === "" ? [] : [input.value]),
  });
  const show = (texts) => (input.value = list ? texts.join(", ") : (texts[0] ?? ""));
  return { element: input, inputs: [input], show };
}

function choice(choices, { id, describedby }, onchange) {
  const select = h(
    "select",
    { id, "aria-describedby": describedby, onchange: () => onchange(select.value === "" ? [] : [select.value]) },
    h("option", { value: "" }, "not sent"),
    ...choices.map((value) => h("option", { value: String(value) }, String(value))),
  );
  const show = ([text = ""]) => {
    // Another value of the raw JSON becomes a choice, so that the field shows what is sent.
    if (text && ![...select.options].some(({ value }) => value === text)) select.append(h("option", { value: text }, text));
    select.value = text;
  };
  return { element: select, inputs: [select], show };
}

function checks(choices, { describedby }, onchange) {
  const boxes = choices.map((value) => h("input", { type: "checkbox", value: String(value), "aria-describedby": describedby, onchange: () => onchange(picked()) }));
  let others = []; // other values of the raw JSON
  const picked = () => [...boxes.filter(({ checked }) => checked).map(({ value }) => value), ...others];
  const show = (texts) => {
    for (const box of boxes) box.checked = texts.includes(box.value);
    others = texts.filter((text) => !choices.map(String).includes(text));
  };
  return { element: h("div", { class: "field-checks" }, ...boxes.map((box) => h("label", null, box, h("code", null, box.value)))), inputs: boxes, show, group: true };
}
