// Syntax highlighting with simple rules that suffice for the code on these pages. The
// first matching alternative wins.
const text = `(?<text>"(?:\\\\.|[^"\\\\])*"|'[^']*'|\`[^\`]*\`)`;
const number = "(?<number>\\b-?\\d+(?:\\.\\d+)?\\b)";
const words = (list) => `(?<word>\\b(?:${list.join("|")})\\b)`;
const grammars = {
  curl: new RegExp(`(?<note>(?<=^|\\s)#.*)|${text}|(?<word>\\bcurl\\b|(?<=\\s)--?[a-zA-Z][\\w-]*)`, "gm"),
  javascript: new RegExp(
    `(?<note>//.*)|${text}|${words(["const", "let", "await", "async", "function", "return", "if", "throw", "new", "null", "true", "false"])}|${number}`,
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

/** Splits code into pieces [kind, text]. A piece without colour has no kind. */
export function pieces(code, language) {
  const grammar = grammars[language.toLowerCase()];
  if (!grammar) return [["", code]];
  const found = [];
  let end = 0;
  for (const match of code.matchAll(grammar)) {
    const [kind] = Object.entries(match.groups).find(([, text]) => text !== undefined);
    if (match.index > end) found.push(["", code.slice(end, match.index)]);
    found.push([kind, match[0]]);
    end = match.index + match[0].length;
  }
  if (end < code.length) found.push(["", code.slice(end)]);
  return found;
}

/** Splits code into lines of pieces. Each line keeps its line feed. */
export function lines(code, language) {
  const found = [[]];
  for (const [kind, text] of pieces(code, language)) {
    for (const part of text.split(/(?<=\n)/)) {
      found.at(-1).push([kind, part]);
      if (part.endsWith("\n")) found.push([]);
    }
  }
  return found;
}
