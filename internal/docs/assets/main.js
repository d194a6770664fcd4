// Starts Swagger UI with the spec and our plugin, which replaces its whole layout.
import { Spec, parse } from "./spec.js";
import { reference } from "./layout.js";

const place = document.querySelector("#swagger-ui");
const guides = [...place.querySelectorAll("#sidebar a")].map((link) => ({ href: link.href, text: link.textContent }));

try {
  const response = await fetch(`${place.dataset.root}openapi.json`);
  if (!response.ok) throw new Error(`the server returned ${response.status}`);
  const spec = parse(await response.text());
  window.SwaggerUIBundle({
    domNode: place,
    spec,
    layout: "PetstoreLayout",
    plugins: [reference(new Spec(spec), guides)],
    validatorUrl: null,
    syntaxHighlight: false,
    supportedSubmitMethods: [], // only our own panel sends requests
  });
} catch (error) {
  place.querySelector(".lead").textContent = `Cannot load the API spec: ${error.message}. Reload the page to try again.`;
}
