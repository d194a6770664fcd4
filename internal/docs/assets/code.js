// Code on dark panels: colours and a copy button.
import { copy } from "./clipboard.js";
import { highlight } from "./highlight.js";
import { masked, serverURL, settings } from "./settings.js";

/** Colours the code in a panel and adds a button that copies it. */
export function dress(panel) {
  const code = panel.querySelector("code");
  highlight(code);
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await copy(whole(code.textContent));
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  panel.append(button);
}

/** Shows the reader's URL and masked key in the commands that set the environment. */
export function fill(code) {
  const { key, url } = settings();
  let text = code.textContent.replace("http://localhost:8080", () => url || serverURL());
  if (key) text = text.replace("<API_KEY>", () => masked(key));
  if (text !== code.textContent) code.textContent = text;
}

// The page shows the key masked and copies it in full.
function whole(text) {
  const { key } = settings();
  return key ? text.replaceAll(masked(key), () => key) : text;
}
