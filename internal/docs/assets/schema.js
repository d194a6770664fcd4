// Schemas of parameters, bodies, headers and models.
import { Reference, Text, h, useContext } from "./ui.js";

const longestPattern = 40; // longer ones are harder to read than the description

/** Returns a schema with its allOf and $ref merged. */
function merged(spec, schema) {
  const own = spec.resolve(schema) ?? {};
  return (own.allOf ?? []).reduce((all, part) => ({ ...merged(spec, part), ...all }), own);
}

/** Shows the type in a few words, with a link to the model of an object or enum. */
function Type({ schema }) {
  const { spec } = useContext(Reference);
  const known = merged(spec, schema);
  const name = /^#\/components\/schemas\/(.+)$/.exec(schema?.$ref)?.[1];
  if (known.type === "array") return h("span", null, "array of ", h(Type, { schema: known.items }));
  if (name && (known.type === "object" || known.enum)) return h("a", { href: `#model-${name}` }, name);
  const words = [known.type ?? "any", known.format && `(${known.format})`, known.nullable && "or null"];
  return h("span", null, words.filter(Boolean).join(" "));
}

/** Returns the bounds of a value, each in a few words. */
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

/** Lists the allowed values with their meanings (x-enumDescriptions). */
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

/** Shows one parameter, header or field. */
export function Property({ name, schema, required, text, example }) {
  const { spec } = useContext(Reference);
  const known = merged(spec, schema);
  const item = known.type === "array" ? merged(spec, known.items) : known;
  return h(
    "li",
    { className: "property" },
    h(
      "div",
      { className: "property-name" },
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

/** Shows a whole schema: its fields, or its type and bounds. */
export function Schema({ schema }) {
  const { spec } = useContext(Reference);
  const known = merged(spec, schema);
  const properties = Object.entries(known.properties ?? {});
  if (properties.length > 0) {
    return h(
      "ul",
      { className: "properties" },
      ...properties.map(([name, property]) =>
        h(Property, { key: name, name, schema: property, required: known.required?.includes(name) }),
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

/** Shows the use of a schema: its name and, unless brief, its fields. */
export function SchemaUse({ schema, brief }) {
  const { spec } = useContext(Reference);
  const known = merged(spec, schema);
  const target = known.type === "array" ? known.items : schema;
  const inner = merged(spec, target);
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
