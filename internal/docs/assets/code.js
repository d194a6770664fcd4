// Code on dark panels: colours and a copy button.
import { copy } from "./clipboard.js";
import { h } from "./dom.js";
import { highlight } from "./highlight.js";
import { masked, serverURL, settings, subscribe } from "./settings.js";

/** Colours the code in a panel and adds a button that copies it. */
export function dress(panel) {
  const code = panel.querySelector("code");
  highlight(code);
  panel.append(copyButton(() => wholes.get(code)?.() ?? code.textContent));
}

/** Replaces code and colours it. */
export function write(code, text, language) {
  code.textContent = text;
  highlight(code, language);
}

/** Returns a button that copies what text returns. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "copy", "aria-live": "polite", onclick }, label);
  let timer;
  async function onclick() {
    button.textContent = (await copy(text())) ? "Copied" : "Not copied";
    clearTimeout(timer);
    timer = setTimeout(() => (button.textContent = label), 2000);
  }
  return button;
}

const wholes = new WeakMap(); // functions that return the code as the reader copies it: with the whole key

/** Shows the reader's URL and masked key in a command that sets the environment. It follows changes. */
export function fill(code) {
  const text = code.textContent;
  if (!/http:\/\/localhost:8080|<API_KEY>/.test(text)) return;
  const filled = (shownKey) => {
    const { key, url } = settings();
    return text.replace("http://localhost:8080", () => url || serverURL()).replace("<API_KEY>", (none) => (key ? shownKey(key) : none));
  };
  const show = () => write(code, filled(masked));
  wholes.set(code, () => filled((key) => key));
  subscribe(show);
  show();
}
