// Tabs of languages. All tabs of all pages show the language that the reader chose last.
import { copyButton, write } from "./code.js";
import { h, newID } from "./dom.js";
import { chooseLanguage, settings, subscribe } from "./settings.js";

/**
 * Returns a list of tabs. It calls show with the reader's language, or with the first one if
 * these tabs lack it: now, and after each choice.
 */
export function languageTabs({ languages, label, panel, show }) {
  panel.id ||= newID("tab");
  panel.setAttribute("role", "tabpanel");
  const tabs = languages.map((language) =>
    h("button", { type: "button", role: "tab", id: newID("tab"), "aria-controls": panel.id, onclick: () => chooseLanguage(language) }, language),
  );
  const onkeydown = (event) => {
    const at = tabs.findIndex((tab) => tab.tabIndex === 0);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: -1 }[event.key];
    if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const tab = tabs.at(next % tabs.length);
    chooseLanguage(tab.textContent);
    tab.focus();
  };
  const update = () => {
    const { language } = settings();
    const chosen = Math.max(languages.indexOf(language), 0);
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", tabs[chosen].id);
    show(languages[chosen]);
  };
  subscribe(update);
  update();
  return h("div", { role: "tablist", "aria-label": label, onkeydown }, ...tabs);
}

// A guide has one panel for each language. The page shows one of them, below the tabs.
function enhance(place) {
  const panels = new Map([...place.querySelectorAll("figure")].map((panel) => [panel.dataset.language, panel]));
  const pre = h("pre", { tabindex: "0" }, h("code"));
  const code = pre.firstChild;
  const tabs = languageTabs({
    languages: [...panels.keys()],
    label: "Language",
    panel: pre,
    show: (language) => write(code, panels.get(language).querySelector("code").textContent, language),
  });
  place.replaceChildren(h("figure", { class: "panel" }, h("div", { class: "panel-bar" }, tabs, copyButton(() => code.textContent)), pre));
}

for (const place of document.querySelectorAll(".tabs")) enhance(place);
