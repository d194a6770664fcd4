// Code on dark panels: colours and a copy button.
import { copy } from "./clipboard.js";
import { h } from "./dom.js";
import { highlight } from "./highlight.js";
import { masked, serverURL, settings } from "./settings.js";

/** Colours the code in a panel and adds a button that copies it. */
export function dress(panel) {
  const code = panel.querySelector("code");
  highlight(code);
  panel.append(copyButton(() => whole(code.textContent)));
}

/** Replaces code and colours it. */
export function write(code, text, language) {
  code.textContent = text;
  highlight(code, language);
}

/** Returns a button that copies what text returns. */
export function copyButton(text) {
  const button = h("button", { type: "button", class: "copy", "aria-live": "polite", onclick }, "Copy");
  async function onclick() {
    button.textContent = (await copy(text())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  }
  return button;
}

/** Shows the reader's URL and masked key in the commands that set the environment. */
export function fill(code) {
  const { key, url } = settings();
  let text = code.textContent.replace("http://localhost:8080", () => url || serverURL());
  if (key) text = text.replace("<API_KEY>", () => masked(key));
  if (text !== code.textContent) code.textContent = text;
}

/** Returns code of the page as the reader copies it: with the whole key. */
export function whole(text) {
  const { key } = settings();
  return key ? text.replaceAll(masked(key), () => key) : text;
}
