// Types: of parameters, bodies and headers, and the models at the end.
import { Reference, Text, h, useContext } from "./ui.js";

const longestPattern = 40; // longer ones say less than the description

/** What a schema says about itself, with allOf and $ref put together. */
function merged(description, schema) {
  const own = description.resolve(schema) ?? {};
  return (own.allOf ?? []).reduce((all, part) => ({ ...merged(description, part), ...all }), own);
}

/** The type in a few words; a link to the model where it has one of interest. */
function Type({ schema }) {
  const { description } = useContext(Reference);
  const known = merged(description, schema);
  const name = /^#\/components\/schemas\/(.+)$/.exec(schema?.$ref)?.[1];
  if (known.type === "array") return h("span", null, "array of ", h(Type, { schema: known.items }));
  if (name && (known.type === "object" || known.enum)) return h("a", { href: `#model-${name}` }, name);
  const words = [known.type ?? "any", known.format && `(${known.format})`, known.nullable && "or null"];
  return h("span", null, words.filter(Boolean).join(" "));
}

/** The bounds of a value, each in a few words. */
function bounds(schema) {
  const range = (low, high, what) => {
    if (low !== undefined && high !== undefined) return `${low} to ${high}${what}`;
    if (high !== undefined) return `at most ${high}${what}`;
    return low !== undefined ? `at least ${low}${what}` : undefined;
  };
  return [
    range(schema.minimum, schema.maximum, ""),
    range(schema.minLength, schema.enum ? undefined : schema.maxLength, " characters"),
    range(schema.minItems, schema.maxItems, " items"),
    schema.pattern?.length <= longestPattern && `matches ${schema.pattern}`,
    schema.default !== undefined && `default ${JSON.stringify(schema.default)}`,
  ].filter(Boolean);
}

/** The values that are allowed, with what they mean (x-enumDescriptions). */
export function Values({ schema }) {
  if (!schema.enum) return null;
  const meanings = schema["x-enumDescriptions"] ?? {};
  return h(
    "dl",
    { className: "values" },
    ...schema.enum.map((value) =>
      h(
        "div",
        { key: value },
        h("dt", null, h("code", null, String(value))),
        h("dd", null, meanings[value]),
      ),
    ),
  );
}

/** One parameter, header or member. */
export function Member({ name, schema, required, text, example }) {
  const { description } = useContext(Reference);
  const known = merged(description, schema);
  const item = known.type === "array" ? merged(description, known.items) : known;
  return h(
    "li",
    { className: "member" },
    h(
      "div",
      { className: "member-name" },
      h("code", null, name),
      h("span", { className: "type" }, h(Type, { schema })),
      required && h("span", { className: "required" }, "required"),
      h(Stability, { label: known["x-stability"] }),
    ),
    h(Text, { source: text ?? known.description }),
    bounds(known).length > 0 && h("p", { className: "bounds" }, bounds(known).join(" · ")),
    h(Values, { schema: item }),
    example !== undefined &&
      item.enum?.length !== 1 &&
      h("p", { className: "bounds" }, "Example: ", h("code", null, Array.isArray(example) ? example.join(", ") : String(example))),
  );
}

/** A schema in whole: its members, or what else it is. */
export function Schema({ schema }) {
  const { description } = useContext(Reference);
  const known = merged(description, schema);
  const members = Object.entries(known.properties ?? {});
  if (members.length > 0) {
    return h(
      "ul",
      { className: "members" },
      ...members.map(([name, member]) =>
        h(Member, { key: name, name, schema: member, required: known.required?.includes(name) }),
      ),
    );
  }
  return h(
    "div",
    { className: "simple" },
    h("p", { className: "bounds" }, h(Type, { schema: known }), ...bounds(known).map((bound) => ` · ${bound}`)),
    h(Values, { schema: known }),
  );
}

/** A schema where it is used: its name, and unless that is enough, its members. */
export function SchemaUse({ schema, brief }) {
  const { description } = useContext(Reference);
  const known = merged(description, schema);
  const target = known.type === "array" ? known.items : schema;
  const inner = merged(description, target);
  return h(
    "div",
    { className: "schema-use" },
    h("p", { className: "bounds" }, h(Type, { schema })),
    !brief && inner.properties && h(Schema, { schema: target }),
  );
}

export function Stability({ label }) {
  return label ? h("span", { className: `badge badge-${label}` }, label) : null;
}
