// What the reader chose: the language of samples, the API key, where the API is.
//
// The key is kept as long as the tab lives, and longer only where the reader
// asks for it. Where the browser keeps nothing for us, all lasts as long as the page.

const lasting = storage("localStorage");
const passing = storage("sessionStorage");

let current = {
  language: lasting.get("language") ?? "",
  url: lasting.get("url") ?? "",
  key: passing.get("key") ?? lasting.get("key") ?? "",
  remembered: lasting.get("key") !== null,
};
const listeners = new Set();

export function settings() {
  return current;
}

/** The URL of the server that this page came from, without a slash at its end. */
export function serverURL() {
  return new URL(document.querySelector(".brand").href).href.replace(/\/docs$/, "");
}

/**
 * Returns the key as the page shows it: the beginning that tells keys apart, and
 * dots. A key too short to hide the rest of it is all dots.
 */
export function masked(key) {
  return key.length < 24 ? "••••" : `${key.slice(0, 13)}…••••`;
}

/** Calls the listener after each change; returns what ends that. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function chooseLanguage(language) {
  lasting.set("language", language);
  change({ language });
}

/** Takes the reader's key and base URL; either may be empty. */
export function connect({ key, url, remembered }) {
  lasting.set("url", url);
  passing.set("key", key);
  lasting.set("key", remembered ? key : "");
  change({ key, url, remembered: remembered && key !== "" });
}

function change(part) {
  current = { ...current, ...part };
  for (const listener of listeners) listener();
}

/** One of the browser's storages, under names of ours; an empty value is none. */
function storage(name) {
  const prefixed = (key) => `petstore.${key}`;
  return {
    get(key) {
      try {
        return window[name].getItem(prefixed(key));
      } catch {
        return null;
      }
    },
    set(key, value) {
      try {
        if (value === "") window[name].removeItem(prefixed(key));
        else window[name].setItem(prefixed(key), value);
      } catch {
        // Then it lasts as long as the page.
      }
    },
  };
}
