/**
 * Creates an element. Attributes that begin with "on" are listeners. Without a value, an
 * attribute or a child is left out.
 */
export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/**
 * Disables a button while work runs. A disabled button loses the focus, so it gets that back
 * afterwards, unless something else has it.
 */
export async function disabledDuring(button, work) {
  const hadFocus = document.activeElement === button;
  button.disabled = true;
  try {
    return await work();
  } finally {
    button.disabled = false;
    if (hadFocus && document.activeElement === document.body) button.focus();
  }
}

let ids = 0;

/** Returns an id that no other element of the page has. */
export function newID(prefix) {
  return `${prefix}-${++ids}`;
}

/** Returns text with the parts between backticks as code, and links of Markdown as their text. */
export function marked(text) {
  return text
    .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, "$1")
    .split("`")
    .map((part, i) => (i % 2 === 1 ? h("code", null, part) : part));
}

/** Returns the URL of a file next to the folder of the docs, such as "docs/errors". */
export function siteURL(path) {
  return new URL(`../../../${path}`, import.meta.url).href;
}
