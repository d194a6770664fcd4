// Starts Swagger UI on the description, with our plugin for the whole of its layout.
import { Description, parse } from "./description.js";
import { reference } from "./layout.js";

const place = document.querySelector("#swagger-ui");

try {
  const answer = await fetch(`${place.dataset.root}openapi.json`);
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
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
  place.querySelector(".lead").textContent = `The description cannot be read: ${error.message}. Reload the page to try again.`;
}
