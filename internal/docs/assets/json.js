// Reads and writes JSON without loss: numbers stay as written, and fields keep their order.
// A tree is { fields: [[name, tree], …] }, { items: [tree, …] } or { text }.

/** Returns the tree of a JSON text. Throws the error of JSON.parse if the text is invalid. */
export function read(source) {
  JSON.parse(source);
  const tokens = source.match(/"(?:\\.|[^"\\])*"|[[\]{}]|[^\s[\]{},:"]+/g);
  let at = 0;
  const value = () => {
    const token = tokens[at++];
    if (token === "{") {
      const fields = [];
      while (tokens[at] !== "}") fields.push([JSON.parse(tokens[at++]), value()]);
      at++;
      return { fields };
    }
    if (token === "[") {
      const items = [];
      while (tokens[at] !== "]") items.push(value());
      at++;
      return { items };
    }
    return { text: token };
  };
  return value();
}

const same = (text) => text;

/** How languages write a tree. A text is a string, a number, true, false or null. */
export const styles = {
  JSON: { indent: "  ", name: JSON.stringify, text: same, space: "", last: "" },
  JavaScript: { indent: "  ", name: identifier, text: same, space: " ", last: "," },
  Python: { indent: "    ", name: JSON.stringify, text: pythonText, space: "", last: "," },
};

/**
 * Writes a tree on one line if that has at most width characters, and otherwise each field on
 * a line of its own. The first line is after `before` characters.
 */
export function write(tree, style, { width = 58, before = 0, indent = "" } = {}) {
  const [open, close, parts] = tree.fields
    ? [`{${style.space}`, `${style.space}}`, tree.fields.map(([name, value]) => [`${style.name(name)}: `, value])]
    : ["[", "]", (tree.items ?? []).map((value) => ["", value])];
  if (tree.call) return `${tree.call}(${write(tree.of, style, { width: width - 1, before: before + tree.call.length + 1, indent })})`;
  if (tree.text !== undefined) return style.text(tree.text);
  if (parts.length === 0) return open.trim() + close.trim();
  const inner = parts.map(([name, value]) => name + write(value, style, { width: Infinity }));
  const flat = open + inner.join(", ") + close;
  if (before + flat.length <= width && !flat.includes("\n")) return flat;
  const deeper = indent + style.indent;
  const lines = parts.map(([name, value], i) => {
    const end = i < parts.length - 1 ? "," : style.last;
    return deeper + name + write(value, style, { width: width - end.length, before: deeper.length + name.length, indent: deeper }) + end;
  });
  return [open.trim(), ...lines, indent + close.trim()].join("\n");
}

// In a literal of JavaScript, "__proto__" sets the prototype unless it is computed.
function identifier(name) {
  if (name === "__proto__") return '["__proto__"]';
  return /^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name);
}

// Python lacks the escape \/ of JSON.
function pythonText(text) {
  if (text.startsWith('"')) return JSON.stringify(JSON.parse(text));
  return { true: "True", false: "False", null: "None" }[text] ?? text;
}

/** Reports whether JavaScript would change a number of the tree. */
export function rounds(tree) {
  if (tree.text !== undefined) return /^-?\d/.test(tree.text) && String(Number(tree.text)) !== tree.text;
  return (tree.items ?? tree.fields.map(([, value]) => value)).some(rounds);
}

/** Reports whether a program would drop a field of the tree, because a later one has its name. */
export function repeats({ fields = [], items = fields.map(([, value]) => value) }) {
  return new Set(fields.map(([name]) => name)).size < fields.length || items.some(repeats);
}

/** Formats JSON for people. Returns any other text unchanged. */
export function pretty(source) {
  try {
    return write(read(source), styles.JSON, { width: 40 });
  } catch {
    return source;
  }
}
