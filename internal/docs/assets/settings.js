// The reader's settings: language of the samples, API key and base URL.
//
// The key lasts as long as the tab. Without storage in the browser, all settings last
// as long as the page.
import { siteURL } from "./dom.js";

const lasting = storage("localStorage");
const passing = storage("sessionStorage");

let current = { language: lasting.get("language") ?? "", url: lasting.get("url") ?? "", key: passing.get("key") ?? "" };
const listeners = new Set();

export function settings() {
  return current;
}

/** Returns the URL of the server of this page, without a trailing slash. */
export function serverURL() {
  return siteURL("").replace(/\/$/, "");
}

/**
 * Returns the key as the page shows it: the beginning that tells keys apart, and
 * dots. A key too short to hide the rest of it is all dots.
 */
export function masked(key) {
  return key.length < 24 ? "••••" : `${key.slice(0, 13)}…••••`;
}

/**
 * Returns the URL and the key for samples, and "" for what the reader has not set. With a key
 * and no URL, it is the URL of this server, so that the copied sample runs.
 */
export function own({ hidden }) {
  const { key, url } = current;
  return { url: url || (key && serverURL()), key: key && (hidden ? masked(key) : key) };
}

/** Calls the listener after each change. */
export function subscribe(listener) {
  listeners.add(listener);
}

export function chooseLanguage(language) {
  lasting.set("language", language);
  change({ language });
}

/** Sets the reader's key and base URL. Either may be empty. */
export function connect({ key, url }) {
  passing.set("key", key);
  if (url !== current.url) lasting.set("url", url);
  change({ key, url });
}

/** Returns a key that belongs to a sandbox, or "". */
export function sandboxKey(id) {
  return passing.get(`key.${id}`) ?? "";
}

/** Keeps the key of a sandbox as long as the tab. An empty key removes it. */
export function noteSandboxKey(id, key) {
  passing.set(`key.${id}`, key);
}

/** Forgets all keys, also those of sandboxes. */
export function forgetKeys() {
  connect({ ...current, key: "" });
  passing.clear("key.");
}

function change(part) {
  current = { ...current, ...part };
  for (const listener of listeners) listener();
}

/** Returns the last id with this prefix, such as "wh", in a response of this tab. */
export function knownID(prefix) {
  return passing.get(`id.${prefix}`);
}

/** Remembers the ids of a response, which later requests need. */
export function noteIDs(text) {
  for (const [, id, prefix] of text.matchAll(/"id":"((wh|msg|evt|dlv|sbx|req)_\w+)"/g)) passing.set(`id.${prefix}`, id);
}

/**
 * Wraps a storage of the browser with our prefix. An empty value removes the entry. A value that the
 * browser does not store lasts as long as the page.
 */
function storage(name) {
  const prefixed = (key) => `petstore.${key}`;
  const unstored = new Map();
  return {
    clear(beginning) {
      for (const key of unstored.keys()) if (key.startsWith(beginning)) unstored.delete(key);
      try {
        for (const key of Object.keys(window[name])) if (key.startsWith(prefixed(beginning))) window[name].removeItem(key);
      } catch {
        // There is nothing to remove.
      }
    },
    get(key) {
      if (unstored.has(key)) return unstored.get(key);
      try {
        return window[name].getItem(prefixed(key));
      } catch {
        return null;
      }
    },
    set(key, value) {
      unstored.delete(key);
      try {
        if (value === "") window[name].removeItem(prefixed(key));
        else window[name].setItem(prefixed(key), value);
      } catch {
        unstored.set(key, value);
      }
    },
  };
}
