// Builds the request of an operation from the values of its form. Pure functions.

/**
 * Returns the values that a form starts with: the examples of what the request needs, and a
 * limit for lists. The examples of other parameters are only hints.
 */
export function initial(operation) {
  const starts = ({ name, in: place, required }) => required || place === "path" || name === "limit";
  const values = operation.parameters.map((parameter) => [keyOf(parameter), starts(parameter) ? listed(parameter.example) : []]);
  const { body } = operation;
  return {
    parameters: Object.fromEntries(values),
    body: body && body.example !== undefined ? JSON.stringify(body.example) : "",
    accept: operation.returns[0],
  };
}

/** Returns the key of a parameter in the values. */
export function keyOf({ in: place, name }) {
  return `${place}.${name}`;
}

function listed(example) {
  return example === undefined || example === null ? [] : [example].flat().map(String);
}

/** Returns the request of an operation with these values. A parameter has a list of texts. */
export function build(operation, { parameters, body, accept }) {
  const of = (place) =>
    operation.parameters.filter((parameter) => parameter.in === place).flatMap((parameter) => parameters[keyOf(parameter)].map((value) => [parameter.name, value]));
  const path = of("path").reduce((path, [name, value]) => path.replace(`{${name}}`, () => encode(value)), operation.path);
  const types = operation.returns;
  const headers = of("header");
  if (types.length > 1 && accept !== types[0]) headers.unshift(["Accept", accept]);
  const sendsBody = operation.body && body !== "";
  return {
    method: operation.method,
    path: path.replaceAll(/\{\w+\}/g, ""),
    query: of("query"),
    headers,
    type: sendsBody ? operation.body.type : undefined,
    body: sendsBody ? body : undefined,
    returns: accept ?? "",
    keyed: !operation.public,
  };
}

/** Encodes text for a path or a query so that no language and no shell gives it a meaning. */
export function encode(text) {
  return encodeURIComponent(text.toWellFormed?.() ?? text).replaceAll(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

/** Quotes text for a POSIX shell. */
export const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** Returns the argument of curl for a header. With a colon and no value, curl would leave the header out. */
export const curlHeader = (name, value) => `-H ${quoted(/^[ \t]*$/.test(value) ? `${name};` : `${name}: ${value}`)}`;

/** Returns the path of a request with its query. */
export function target({ path, query }) {
  const pairs = query.map(([name, value]) => `${encode(name)}=${encode(value)}`);
  return pairs.length > 0 ? `${path}?${pairs.join("&")}` : path;
}
