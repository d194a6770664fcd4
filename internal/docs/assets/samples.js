// The code samples of an operation (x-codeSamples): one tab for each language.
// All operations show the language that the reader chose last.
import { Code, CopyButton } from "./code.js";
import { chooseLanguage, masked, serverURL } from "./settings.js";
import { h, useId, useRef, useSettings } from "./ui.js";

// The code in samples that reads the base URL and the key. The reader's values replace it.
const places = {
  cURL: { url: "$PETSTORE_URL", key: "$PETSTORE_API_KEY", quote: (value) => value },
  JavaScript: { url: "process.env.PETSTORE_URL", key: "process.env.PETSTORE_API_KEY", quote: JSON.stringify },
  Python: { url: 'os.environ["PETSTORE_URL"]', key: 'os.environ["PETSTORE_API_KEY"]', quote: JSON.stringify },
};

/**
 * Returns the sample with the reader's key and base URL, if set. With a key and no base
 * URL, it uses the URL of this server, so that the copied sample runs.
 */
function filled({ lang, source }, { key, url }) {
  const place = places[lang];
  if (!place) return source;
  let code = source;
  if (url || key) code = code.replaceAll(place.url, () => place.quote(url || serverURL()));
  if (key) code = code.replaceAll(place.key, () => place.quote(key));
  if (lang === "Python" && !code.includes("os.environ")) code = code.replace(/^import os\n/m, "");
  return code;
}

export function Samples({ operation }) {
  const { samples } = operation;
  const chosen = useSettings();
  const id = useId();
  const tabs = useRef(null);
  if (samples.length === 0) return null;
  const shown = samples.find(({ lang }) => lang === chosen.language) ?? samples[0];
  const { key } = chosen;
  const code = filled(shown, { ...chosen, key: key && masked(key) });

  const onKeyDown = (event) => {
    const at = samples.indexOf(shown);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const index = (next + samples.length) % samples.length;
    chooseLanguage(samples[index].lang);
    tabs.current.children[index].focus();
  };

  return h(
    "div",
    { className: "panel" },
    h(
      "div",
      { className: "panel-bar" },
      h(
        "div",
        { ref: tabs, role: "tablist", "aria-label": `Language of the sample: ${operation.summary}`, onKeyDown },
        ...samples.map((sample) =>
          h(
            "button",
            {
              key: sample.lang,
              type: "button",
              role: "tab",
              id: `${id}${sample.lang}`,
              "aria-selected": sample === shown,
              "aria-controls": `${id}code`,
              tabIndex: sample === shown ? 0 : -1,
              onClick: () => chooseLanguage(sample.lang),
            },
            sample.label ?? sample.lang,
          ),
        ),
      ),
      h(CopyButton, { code: filled(shown, chosen), what: `the sample: ${operation.summary}` }),
    ),
    h(
      "div",
      { role: "tabpanel", id: `${id}code`, "aria-labelledby": `${id}${shown.lang}` },
      h(Code, { code, language: shown.lang, label: `${shown.label ?? shown.lang}: ${operation.summary}` }),
    ),
  );
}
