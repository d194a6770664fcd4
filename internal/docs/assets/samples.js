// The samples of operations on the page: tabs, and code that follows the form.
import { copyButton, write } from "./code.js";
import { h } from "./dom.js";
import { languages, sample } from "./languages.js";
import { build, initial } from "./request.js";
import { own, subscribe } from "./settings.js";
import { languageTabs } from "./tabs.js";

const panels = new Map();

let data; // a promise of all operations

/** Returns the data of an operation. */
export async function operationOf(id) {
  data ??= fetch(new URL("reference.json", import.meta.url)).then((response) =>
    response.ok ? response.json() : Promise.reject(new Error(`the server returned ${response.status}`)),
  );
  try {
    return (await data).operations[id];
  } catch (error) {
    data = undefined; // the next call tries again
    throw error;
  }
}

/** Shows the samples of an operation for a request. */
export function follow(id, request) {
  panels.get(id)?.(request);
}

// The page has one sample of each operation. Its tabs show the request in other languages, at
// first with the values of the spec, which need the data only if they differ from that sample.
function enhance(place) {
  const id = place.dataset.samples;
  const pre = place.querySelector("pre");
  const code = place.querySelector("code");
  const first = code.textContent;
  const title = pre.getAttribute("aria-label");
  let language = languages[0];
  let request;

  const copy = copyButton(() => source(own({ hidden: false })));
  const source = (values) => (request ? sample(language, request, values) : first);
  const update = async () => {
    let failure;
    if (!request && (language !== languages[0] || own({ hidden: true }).url)) {
      try {
        const operation = await operationOf(id);
        request ??= build(operation, initial(operation));
      } catch (error) {
        failure = error;
      }
    }
    // The page has the first language without any data.
    const missing = failure && !request && language !== languages[0];
    copy.hidden = missing;
    if (missing) write(code, `The sample cannot load: ${failure.message}. Reload the page.`, "");
    else write(code, source(own({ hidden: true })), language);
  };
  const tabs = languageTabs({
    languages,
    label: `Language: ${title}`,
    panel: pre,
    show: (chosen) => {
      language = chosen;
      return update();
    },
  });
  place.querySelector("figcaption").replaceWith(h("div", { class: "panel-bar" }, tabs, copy));
  subscribe(update);
  panels.set(id, (changed) => {
    request = changed;
    return update();
  });
}

for (const place of document.querySelectorAll("[data-samples]")) enhance(place);
