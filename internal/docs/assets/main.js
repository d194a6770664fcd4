// Starts Swagger UI on the description, with our plugin for the whole of its layout.
import { Description, parse } from "./description.js";
import { reference } from "./layout.js";

const place = document.querySelector("#swagger-ui");

try {
  const answer = await fetch(`${place.dataset.root}openapi.json`);
  if (!answer.ok) throw new Error(`the server returned ${answer.status}`);
  const spec = parse(await answer.text());
  window.SwaggerUIBundle({
    domNode: place,
    spec,
    layout: "PetstoreLayout",
    plugins: [reference(new Description(spec))],
    validatorUrl: null,
    syntaxHighlight: false,
    supportedSubmitMethods: [], // requests are sent by our panel, or not at all
  });
} catch (error) {
  place.querySelector(".lead").textContent = `Cannot load the API spec: ${error.message}. Reload the page to try again.`;
}
