// The Try it panel, which sends requests to the server of this page with Swagger UI's
// client.
import { Code, printed } from "./code.js";
import { KeyButton } from "./key.js";
import { serverURL } from "./settings.js";
import { Reference, h, useContext, useId, useRef, useSettings, useState } from "./ui.js";

export function TryIt({ operation }) {
  const [open, setOpen] = useState(false);
  const id = useId();
  return h(
    "section",
    { className: "try", "aria-label": `Try it: ${operation.summary}` },
    h(
      "button",
      { type: "button", className: "try-button", "aria-expanded": open, "aria-controls": id, onClick: () => setOpen(!open) },
      open ? "Close" : "Try it",
      h("span", { className: "unseen" }, `: ${operation.summary}`),
    ),
    h("div", { id, hidden: !open }, open && h(Form, { operation })),
  );
}

function Form({ operation }) {
  const { spec, fn } = useContext(Reference);
  const { key } = useSettings();
  const [values, setValues] = useState(() => initial(operation));
  const [body, setBody] = useState(() => sampleBody(operation));
  const [state, setState] = useState({});
  const latest = useRef(0);

  const onSubmit = async (event) => {
    event.preventDefault();
    const turn = ++latest.current;
    setState({ sending: true });
    const began = performance.now();
    let outcome;
    try {
      const response = await fn.fetch(request({ fn, spec, operation, values, body, key }));
      outcome = { response, took: performance.now() - began };
    } catch (error) {
      // Swagger UI's client throws for every status except 2xx.
      outcome = error.response ? { response: error.response, took: performance.now() - began } : { error };
    }
    if (turn === latest.current) setState(outcome);
  };

  return h(
    "form",
    { className: "try-form", onSubmit },
    operation.needsKey && h(KeyButton, { why: "This operation needs an API key." }),
    ...operation.parameters.map((parameter) =>
      h(Input, {
        key: `${parameter.in} ${parameter.name}`,
        parameter,
        value: values[nameOf(parameter)],
        onChange: (value) => setValues({ ...values, [nameOf(parameter)]: value }),
      }),
    ),
    operation.body && h(BodyInput, { value: body, onChange: setBody }),
    h(
      "button",
      { type: "submit", className: "send-button", disabled: state.sending },
      state.sending ? "Sending …" : `Send ${operation.method.toUpperCase()}`,
    ),
    h("div", { role: "status" }, state.response && h(Outcome, state), state.error && h("p", null, `No response: ${state.error.message}`)),
  );
}

function Input({ parameter, value, onChange }) {
  const { spec } = useContext(Reference);
  const id = useId();
  const schema = spec.resolve(parameter.schema);
  const choices = spec.resolve(schema.items ?? schema).enum ?? (schema.type === "boolean" ? ["true", "false"] : null);
  const common = { id, required: parameter.in === "path", onChange: (event) => onChange(event.target.value) };
  return h(
    "div",
    { className: "field" },
    h("label", { htmlFor: id }, h("code", null, parameter.name), h("span", null, hint(parameter, schema))),
    choices && schema.type !== "array"
      ? h("select", { ...common, value }, h("option", { value: "" }, "any"), ...choices.map((choice) => h("option", { key: choice }, choice)))
      : h("input", {
          ...common,
          type: "text",
          value,
          placeholder: parameter.example === undefined ? undefined : `e.g. ${[parameter.example].flat().join(", ")}`,
          autoComplete: "off",
          spellCheck: false,
        }),
  );
}

function hint(parameter, schema) {
  return [parameter.in, schema.type === "array" && "separated by commas", parameter.required && "required"].filter(Boolean).join(", ");
}

function BodyInput({ value, onChange }) {
  const id = useId();
  const rows = Math.min(12, value.split("\n").length + 1);
  return h(
    "div",
    { className: "field" },
    h("label", { htmlFor: id }, h("code", null, "body"), h("span", null, "JSON")),
    h("textarea", { id, rows, value, spellCheck: false, onChange: (event) => onChange(event.target.value) }),
  );
}

function Outcome({ response, took }) {
  const text = response.text ?? "";
  return h(
    "div",
    { className: "panel outcome" },
    h(
      "div",
      { className: "panel-title" },
      h("span", { className: `status status-${String(response.status)[0]}xx` }, response.status),
      ` ${response.statusText ?? ""} in ${Math.round(took)} ms`,
    ),
    text && h(Code, { code: pretty(text), language: "json", label: "The response" }),
    h(
      "details",
      null,
      h("summary", null, "Headers"),
      h(
        "dl",
        { className: "headers" },
        ...Object.entries(response.headers).map(([name, value]) =>
          h("div", { key: name }, h("dt", null, name), h("dd", null, [value].flat().join(", "))),
        ),
      ),
    ),
  );
}

function pretty(text) {
  try {
    // Numbers that JavaScript would round are shown as received.
    return /\d{16}/.test(text) ? text : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const nameOf = (parameter) => `${parameter.in}.${parameter.name}`;

/** Returns the initial values: examples for required parameters, empty for the others. */
function initial(operation) {
  return Object.fromEntries(
    operation.parameters.map((parameter) => [nameOf(parameter), parameter.in === "path" ? String(parameter.example ?? "") : ""]),
  );
}

function sampleBody(operation) {
  const [media] = Object.values(operation.body?.content ?? {});
  return media?.example === undefined ? "" : printed(media.example);
}

/** Builds the request for Swagger UI's client from a spec with only this operation. */
function request({ fn, spec, operation, values, body, key }) {
  const given = operation.parameters.filter((parameter) => values[nameOf(parameter)] !== "");
  const parameters = given.map((parameter) => {
    const value = values[nameOf(parameter)];
    const isList = spec.resolve(parameter.schema).type === "array";
    return [nameOf(parameter), isList ? value.split(",").map((item) => item.trim()) : value];
  });
  const content = Object.keys(operation.body?.content ?? {});
  return fn.buildRequest({
    spec: {
      openapi: spec.document.openapi,
      servers: [{ url: serverURL() }], // the page's Content-Security-Policy allows no other server
      components: { securitySchemes: spec.document.components.securitySchemes },
      paths: {
        [operation.path]: {
          [operation.method]: {
            operationId: operation.id,
            parameters: given,
            requestBody: operation.body,
            security: operation.needsKey ? spec.document.security : [],
            responses: {},
          },
        },
      },
    },
    operationId: operation.id,
    parameters: Object.fromEntries(parameters),
    requestBody: operation.body ? body : undefined,
    requestContentType: content[0],
    securities: { authorized: key ? Object.fromEntries(schemes(spec).map((name) => [name, { value: key }])) : {} },
  });
}

const schemes = (spec) => (spec.document.security ?? []).flatMap((need) => Object.keys(need));
