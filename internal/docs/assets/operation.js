// One operation: description and parameters on the left, samples on the right.
import { Code, CopyButton, printed } from "./code.js";
import { longDate } from "./spec.js";
import { Samples } from "./samples.js";
import { Property, SchemaUse, Stability } from "./schema.js";
import { TryIt } from "./tryit.js";
import { Reference, Text, h, useContext, useState } from "./ui.js";

const places = { path: "Path", query: "Query", header: "Headers", cookie: "Cookies" };

export function Operation({ operation, level }) {
  const title = `${operation.id}-title`;
  return h(
    "article",
    { id: operation.id, className: "operation", "aria-labelledby": title, "data-nav": operation.id },
    h(
      "div",
      { className: "facts" },
      h(
        `h${level}`,
        { id: title, className: operation.deprecated ? "deprecated" : undefined },
        operation.summary,
        h(Stability, { label: operation.stability }),
        h("a", { className: "anchor", href: `#${operation.id}`, "aria-label": `Link to ${operation.summary}` }, "#"),
      ),
      h("p", { className: "endpoint" }, h(Method, { method: operation.method }), h("code", null, operation.path)),
      operation.deprecated && h(Deprecation, { operation }),
      h(Text, { source: operation.description }),
      ...Object.entries(places).map(([place, heading]) => h(Parameters, { key: place, operation, place, heading, level })),
      operation.body && h(Body, { operation, level }),
      h(Responses, { operation, level }),
    ),
    h(
      "div",
      { className: "calls" },
      h(Samples, { operation }),
      operation.sendable && h(TryIt, { operation }),
      h(ExampleResponse, { operation }),
    ),
  );
}

export function Method({ method }) {
  return h("span", { className: `method method-${method}` }, method.toUpperCase());
}

function Deprecation({ operation }) {
  const { spec } = useContext(Reference);
  const { sunset, successor } = operation;
  const next = successor && spec.find("get", successor);
  return h(
    "div",
    { className: "warning", role: "note" },
    h(
      "p",
      null,
      h("strong", null, "This operation is deprecated", sunset && ` and will be sunset on ${longDate(sunset)}`),
    ),
    successor &&
      h("p", null, "Use ", h("a", { href: next ? `#${next.id}` : undefined }, h("code", null, `GET ${successor}`)), " instead."),
  );
}

function Parameters({ operation, place, heading, level }) {
  const those = operation.parameters.filter((parameter) => parameter.in === place);
  if (those.length === 0) return null;
  return h(
    "section",
    { className: "part" },
    h(`h${level + 1}`, null, heading),
    h(
      "ul",
      { className: "properties" },
      ...those.map((parameter) => h(Property, { key: parameter.name, ...parameter, text: parameter.description })),
    ),
  );
}

function Body({ operation, level }) {
  const types = Object.entries(operation.body.content);
  return h(
    "section",
    { className: "part" },
    h(`h${level + 1}`, null, "Body", operation.body.required && h("span", { className: "required" }, "required")),
    h("p", { className: "bounds" }, types.map(([type]) => type).join(", ")),
    h(Text, { source: operation.body.description }),
    h(SchemaUse, { schema: types[0][1].schema }),
  );
}

function Responses({ operation, level }) {
  return h(
    "section",
    { className: "part" },
    h(`h${level + 1}`, null, "Responses"),
    ...operation.responses.map((response) => h(Response, { key: response.status, response })),
  );
}

function Response({ response }) {
  // Drawn when opened, because all of them together are nine tenths of the page.
  const [opened, setOpened] = useState(false);
  return h(
    "details",
    { className: "response", onToggle: () => setOpened(true) },
    h(
      "summary",
      null,
      h("span", { className: `status status-${response.status[0]}xx` }, response.status),
      h(
        "span",
        { className: "response-summary" },
        response.codes.length > 0
          ? response.codes.map((code) => h("code", { key: code }, code))
          : h("span", null, response.description),
      ),
    ),
    opened && h(ResponseMore, { response }),
  );
}

function ResponseMore({ response }) {
  return h(
    "div",
    { className: "response-more" },
    response.codes.length > 0 && h(Text, { source: response.description }),
    response.codes.length > 0 &&
      h(
        "p",
        { className: "bounds" },
        "Remedies: ",
        ...response.codes.flatMap((code, i) => [i > 0 && ", ", h("a", { key: code, href: errorPage(code) }, code)]),
      ),
    ...response.content.flatMap(({ type, schema, examples }) => [
      h("p", { key: type, className: "label" }, "Body ", h("span", { className: "type" }, type)),
      h(SchemaUse, { key: `${type} schema`, schema, brief: response.codes.length > 0 }),
      ...examples.map((example) =>
        h(
          "div",
          { key: `${type} ${example.name}`, className: "panel" },
          h("div", { className: "panel-title" }, example.summary ?? example.name),
          h(Code, { code: printed(example.value), language: "json", label: `Example: ${example.name}` }),
        ),
      ),
    ]),
    h("p", { className: "label" }, "Headers"),
    h(
      "ul",
      { className: "properties" },
      ...response.headers.map((header) => h(Property, { key: header.name, ...header, required: false, text: header.description })),
    ),
  );
}

function errorPage(code) {
  return `${document.querySelector("#swagger-ui").dataset.root}docs/errors#${code}`;
}

/** Shows the example of the first successful response. */
function ExampleResponse({ operation }) {
  const response = operation.responses.find(({ status }) => status.startsWith("2"));
  const example = response?.content[0]?.examples[0];
  if (!example) return null;
  const code = printed(example.value);
  return h(
    "div",
    { className: "panel" },
    h(
      "div",
      { className: "panel-bar" },
      h("div", { className: "panel-title" }, h("span", { className: "status" }, response.status), " Response"),
      h(CopyButton, { code, what: `the response: ${operation.summary}` }),
    ),
    h(Code, { code, language: "json", label: `Response: ${operation.summary}` }),
  );
}
