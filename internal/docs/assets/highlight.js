// Syntax highlighting with simple rules that suffice for the code on these pages. The
// first matching alternative wins.
const text = `(?<text>"(?:\\\\.|[^"\\\\])*"|'[^']*'|\`[^\`]*\`)`;
const number = "(?<number>\\b-?\\d+(?:\\.\\d+)?\\b)";
const words = (list) => `(?<word>\\b(?:${list.join("|")})\\b)`;
const grammars = {
  sh: new RegExp(`(?<note>(?<=^|\\s)#.*)|${text}|(?<word>\\b(?:curl|export|petstore|printf)\\b|(?<=\\s)--?[a-zA-Z][\\w-]*)`, "gm"),
  javascript: new RegExp(
    `(?<note>//.*)|${text}|${words(["import", "from", "const", "let", "await", "async", "function", "return", "if", "for", "of", "try", "catch", "throw", "new", "null", "true", "false"])}|${number}`,
    "gm",
  ),
  python: new RegExp(
    `(?<note>#.*)|(?<text>f?"(?:\\\\.|[^"\\\\])*"|f?'[^']*')|${words(["import", "from", "def", "return", "with", "as", "if", "else", "for", "in", "not", "None", "True", "False", "print"])}|${number}`,
    "gm",
  ),
  go: new RegExp(
    `(?<note>//.*)|${text}|${words(["package", "import", "const", "var", "type", "struct", "func", "go", "for", "range", "if", "return", "true", "false", "nil"])}|${number}`,
    "gm",
  ),
  http: new RegExp(`(?<word>^[A-Z]+(?= /))|(?<name>^[a-zA-Z-]+(?=: )|"(?:\\\\.|[^"\\\\])*"(?=\\s*:))|${text}`, "gm"),
  json: new RegExp(`(?<name>"(?:\\\\.|[^"\\\\])*"(?=\\s*:))|${text}|${words(["true", "false", "null"])}|${number}`, "gm"),
};

// The names of languages, and the grammars of those whose name differs.
const aliases = { curl: "sh", cli: "sh" };

// Each kind is a registered highlight (CSS Custom Highlight API), which needs no elements. In
// browsers without it, code has one colour.
const kinds = ["note", "text", "word", "number", "name"];
const highlights = new Map();
if (CSS.highlights) {
  for (const kind of kinds) {
    highlights.set(kind, new Highlight());
    CSS.highlights.set(`code-${kind}`, highlights.get(kind));
  }
}
const rangesOf = new Map(); // by element
let sweeping; // a timer

/** Colours the text of an element with the class language-…. Call it again after a change. */
export function highlight(code, language = /language-(\w+)/.exec(code.className)?.[1] ?? "") {
  clear(code);
  const name = language.toLowerCase();
  const grammar = grammars[aliases[name] ?? name];
  const node = code.firstChild;
  if (!grammar || !node || highlights.size === 0) return;
  code.normalize();
  const ranges = [];
  for (const match of node.data.matchAll(grammar)) {
    const [kind] = Object.entries(match.groups).find(([, text]) => text !== undefined);
    const range = new StaticRange({ startContainer: node, startOffset: match.index, endContainer: node, endOffset: match.index + match[0].length });
    highlights.get(kind).add(range);
    ranges.push([kind, range]);
  }
  rangesOf.set(code, ranges);
  sweeping ??= setTimeout(sweep);
}

function clear(code) {
  for (const [kind, range] of rangesOf.get(code) ?? []) highlights.get(kind).delete(range);
  rangesOf.delete(code);
}

// Highlights keep the elements of their ranges. So this forgets the elements that have left the
// page. It runs later than highlight, which also colours elements that do not belong to it yet.
function sweep() {
  sweeping = undefined;
  for (const code of rangesOf.keys()) if (!code.isConnected) clear(code);
}
