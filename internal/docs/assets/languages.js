// Writes a request as code. Pure functions: the page shows what they return, and x-codeSamples
// in the spec has what they return for the first values of each operation.
import { read, repeats, rounds, styles, write } from "./json.js";
import { curlHeader, encode, quoted, target } from "./request.js";

const writers = { cURL: curl, JavaScript: javaScript, Python: python, Go: go, CLI: cli };

export const languages = Object.keys(writers);

const width = 58; // a panel shows this many characters without wrapping

/**
 * Returns the request in a language. Without the reader's url and key, the code reads
 * PETSTORE_URL and PETSTORE_API_KEY from the environment.
 */
export function sample(language, request, { url = "", key = "" } = {}) {
  return writers[language](request, { url, key });
}

const isJSON = (type) => /[/+]json$/.test(type);

/** Returns the tree of the request's body, or undefined if only its text is exact. */
function treeOf({ body }) {
  try {
    const tree = read(body);
    return repeats(tree) ? undefined : tree;
  } catch {
    return undefined;
  }
}

// Quotes text for a POSIX shell, unless it needs no quotes.
function shell(text) {
  return /^[\w./:@%+=,-]+$/.test(text) ? text : quoted(text);
}

function curl(request, { url, key }) {
  const { method, path, query, headers, type, body, returns, keyed } = request;
  const base = url || "$PETSTORE_URL";
  const inURL = method === "GET" ? path : target(request);
  const parts = [`curl ${method === "GET" ? "--get" : `-X ${method}`} "${base}${inURL}"`, "--fail-with-body"];
  if (returns === "text/event-stream") parts.push("--no-buffer");
  if (keyed) parts.push(`-H "Authorization: Bearer ${key || "$PETSTORE_API_KEY"}"`);
  for (const [name, value] of headers) parts.push(curlHeader(name, value));
  if (method === "GET") {
    for (const [name, value] of query) {
      parts.push(encode(value) === value ? `-d ${name}=${value}` : `--data-urlencode ${shell(`${name}=${value}`)}`);
    }
  }
  if (body !== undefined) {
    const tree = treeOf(request);
    if (tree && type === "application/json") {
      parts.push(`--json ${quoted(write(tree, styles.JSON, { width: width - 1, before: 10, indent: "  " }))}`);
    } else {
      parts.push(`-H "Content-Type: ${type}"`, `--data-raw ${quoted(tree ? write(tree, styles.JSON, { width: width - 1, before: 14, indent: "  " }) : body)}`);
    }
  }
  if (returns === "") parts.push("-w '%{http_code}\\n'");
  return parts.join(" \\\n  ");
}

function javaScript(request, { url, key }) {
  const { method, headers, type, body, returns, keyed } = request;
  const fields = [];
  if (method !== "GET") fields.push(["method", code(JSON.stringify(method))]);
  const sent = [];
  if (keyed) sent.push(["Authorization", code("`Bearer ${key}`")]);
  if (type) sent.push(["Content-Type", string(type)]);
  for (const [name, value] of headers) sent.push([name, string(value)]);
  if (sent.length > 0) fields.push(["headers", { fields: sent }]);
  if (body !== undefined) {
    const tree = treeOf(request);
    fields.push(["body", tree && !rounds(tree) ? { call: "JSON.stringify", of: tree } : string(body)]);
  }
  const style = styles.JavaScript;
  const address = `\`\${url}${target(request)}\``;
  const start = `const response = await fetch(${address}`;
  let call = `${start});`;
  if (fields.length > 0) {
    const options = { fields };
    call = start.length + 3 <= width
      ? `${start}, ${write(options, style, { width: width - 2, before: start.length + 2 })});`
      : `const response = await fetch(\n  ${address},\n  ${write(options, style, { width: width - 1, before: 2, indent: "  " })},\n);`;
  }
  const lines = [`const url = ${url ? JSON.stringify(url) : "process.env.PETSTORE_URL"};`];
  if (keyed) lines.push(`const key = ${key ? JSON.stringify(key) : "process.env.PETSTORE_API_KEY"};`);
  lines.push("", call, "if (!response.ok) throw new Error(await response.text());");
  if (returns === "") lines.push("console.log(response.status);");
  else if (returns === "text/event-stream") {
    lines.push("const text = new TextDecoderStream();", "for await (const part of response.body.pipeThrough(text)) {", "  process.stdout.write(part);", "}");
  } else lines.push(`console.log(await response.${isJSON(returns) ? "json" : "text"}());`);
  return lines.join("\n");
}

const code = (text) => ({ text });
const string = (text) => ({ text: JSON.stringify(text) });

function python(request, { url, key }) {
  const { method, headers, type, body, returns, keyed } = request;
  const tree = body === undefined ? undefined : treeOf(request);
  const style = styles.Python;
  const imports = [(tree || isJSON(returns)) && "json", (!url || (keyed && !key)) && "os", "urllib.error", "urllib.request"].filter(Boolean);
  const lines = [...imports.map((name) => `import ${name}`), "", `url = ${url ? JSON.stringify(url) : 'os.environ["PETSTORE_URL"]'}`];
  if (keyed) lines.push(`key = ${key ? JSON.stringify(key) : 'os.environ["PETSTORE_API_KEY"]'}`);
  if (tree) lines.push(`body = ${write(tree, style, { width, before: 7 })}`);
  lines.push("request = urllib.request.Request(", `    f"{url}${target(request)}",`);
  if (method !== "GET") lines.push(`    method=${JSON.stringify(method)},`);
  const sent = [];
  if (keyed) sent.push(["Authorization", code('f"Bearer {key}"')]);
  if (type) sent.push(["Content-Type", string(type)]);
  for (const [name, value] of headers) sent.push([name, string(value)]);
  if (sent.length > 0) lines.push(`    headers=${write({ fields: sent }, style, { width: width - 1, before: 12, indent: "    " })},`);
  if (tree) lines.push("    data=json.dumps(body).encode(),");
  else if (body !== undefined) lines.push(`    data=${JSON.stringify(body)}.encode(),`);
  lines.push(")", "try:", "    with urllib.request.urlopen(request) as response:");
  if (returns === "") lines.push("        print(response.status)");
  else if (returns === "text/event-stream") lines.push("        for line in response:", '            print(line.decode(), end="", flush=True)');
  else lines.push(`        print(${isJSON(returns) ? "json.load(response)" : "response.read().decode()"})`);
  lines.push("except urllib.error.HTTPError as error:", "    raise SystemExit(error.read().decode())");
  return lines.join("\n");
}

// Go source has no byte order mark and no escapes of lone surrogates.
function goString(text) {
  const known = text.toWellFormed?.() ?? text;
  return /^[^`\r\0\ufeff]*[\n"\\][^`\r\0\ufeff]*$/.test(known) ? `\`${known}\`` : JSON.stringify(known).replaceAll("\ufeff", "\\ufeff");
}

function go(request, { url, key }) {
  const { method, headers, type, body, returns, keyed } = request;
  const needsOS = !url || (keyed && !key) || returns !== "";
  const imports = [returns === "" && "fmt", "io", "log", "net/http", needsOS && "os", body !== undefined && "strings"].filter(Boolean);
  const lines = ["package main", "", "import (", ...imports.map((name) => `\t"${name}"`), ")", "", "func main() {"];
  const path = target(request);
  lines.push(url ? `\turl := ${JSON.stringify(url + path)}` : `\turl := os.Getenv("PETSTORE_URL") +${path.length > 20 ? "\n\t\t" : " "}${JSON.stringify(path)}`);
  let reader = "nil";
  if (body !== undefined) {
    const tree = treeOf(request);
    lines.push(`\tbody := strings.NewReader(${goString(tree ? write(tree, { ...styles.JSON, indent: "\t" }, { width: 26, indent: "\t" }) : body)})`);
    reader = "body";
  }
  lines.push(`\trequest, err := http.NewRequest("${method}", url, ${reader})`, "\tif err != nil {", "\t\tlog.Fatal(err)", "\t}");
  if (keyed) lines.push(`\tkey := ${key ? JSON.stringify(key) : 'os.Getenv("PETSTORE_API_KEY")'}`, '\trequest.Header.Set("Authorization", "Bearer "+key)');
  if (type) lines.push(`\trequest.Header.Set("Content-Type", "${type}")`);
  for (const [name, value] of headers) lines.push(`\trequest.Header.Set("${name}", ${goString(value)})`);
  lines.push("\tresponse, err := http.DefaultClient.Do(request)", "\tif err != nil {", "\t\tlog.Fatal(err)", "\t}", "\tdefer response.Body.Close()");
  lines.push("\tif response.StatusCode >= 300 {", "\t\ttext, _ := io.ReadAll(response.Body)", "\t\tlog.Fatalf(\"%s: %s\", response.Status, text)", "\t}");
  lines.push(returns === "" ? "\tfmt.Println(response.Status)" : "\tio.Copy(os.Stdout, response.Body)", "}");
  return lines.join("\n");
}

function cli(request, { url, key }) {
  const { method, headers, type, body } = request;
  const parts = [`petstore api ${method} ${shell(target(request))}`];
  for (const [name, value] of headers) parts.push(`-H ${shell(`${name}: ${value}`)}`);
  if (body !== undefined && type !== "application/json") parts.push(`-H ${shell(`Content-Type: ${type}`)}`);
  const tree = body === undefined ? undefined : treeOf(request);
  const fields = tree && cliFields(tree);
  if (fields) parts.push(...fields);
  else if (body !== undefined) parts.push("--input -");
  const flat = parts.join(" ");
  const command = flat.length <= width ? flat : parts.join(" \\\n  ");
  const variables = [url && `export PETSTORE_URL=${url}`, key && `export PETSTORE_API_KEY=${key}`].filter(Boolean);
  const input = fields || body === undefined ? "" : `printf %s ${quoted(tree ? write(tree, styles.JSON, { width }) : body)} |\n  `;
  return [...variables, input + command].join("\n");
}

// Returns the fields of an object as arguments: key=value for a scalar, key:=json for the rest.
// Any body except a short object comes from stdin.
function cliFields({ fields = [] }) {
  const names = fields.map(([name]) => name);
  const plain = names.every((name) => /^\w[^=]*$/.test(name) && !name.endsWith(":") && !escaped.test(name));
  if (!plain || names.length === 0) return undefined;
  const all = fields.map(([name, value]) => {
    const flat = write(value, styles.JSON, { width: Infinity });
    if (!flat.startsWith('"')) return shell(`${name}${value.text === undefined ? ":" : ""}=${flat}`);
    const text = JSON.parse(flat);
    return shell(isScalar(text) || escaped.test(text) ? `${name}:=${flat}` : `${name}=${text}`);
  });
  return all.every((field) => field.length < 1.5 * width) ? all : undefined;
}

const escaped = /[\0\p{Cs}]/u; // no argument has these characters, and only JSON can write them

// The CLI reads such text as JSON unless it is quoted.
const isScalar = (text) => /^(true|false|null|-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?)$/.test(text);
