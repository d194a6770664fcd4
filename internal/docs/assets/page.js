// Code for all pages: the theme and the menu of narrow windows. On all but the
// reference also copy buttons and the reader's own values.
import { copy } from "./clipboard.js";
import { pieces } from "./highlight.js";
import { masked, serverURL, settings } from "./settings.js";

const root = document.documentElement;

// The theme.
const themeButton = document.querySelector(".theme-button");
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : systemIsDark.matches;
}

function showTheme() {
  themeButton.setAttribute("aria-pressed", String(isDark()));
}

themeButton.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("petstore.theme", root.dataset.theme);
  } catch {
    // Without storage, the choice lasts as long as the page.
  }
  showTheme();
});
systemIsDark.addEventListener("change", showTheme);
showTheme();

// The menu.
const menuButton = document.querySelector(".menu-button");

function openMenu(open) {
  root.classList.toggle("menu-open", open);
  menuButton.setAttribute("aria-expanded", String(open));
}

menuButton.addEventListener("click", () => {
  const open = !root.classList.contains("menu-open");
  openMenu(open);
  if (open) document.querySelector("#sidebar :is(input, a)")?.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && root.classList.contains("menu-open")) {
    openMenu(false);
    menuButton.focus();
  }
});
document.addEventListener("click", (event) => {
  const { target } = event;
  if (target.closest(".menu-button")) return;
  if (target.closest("#sidebar a") || !target.closest("#sidebar")) openMenu(false);
});

// The reader's own values. The page shows the key masked and copies it in full.
const { key, url } = settings();
const values = { url: url || serverURL(), key: key && masked(key) };
for (const place of document.querySelectorAll("[data-fill]")) {
  const value = values[place.dataset.fill];
  if (value) place.textContent = value;
}

function whole(text) {
  return key ? text.replaceAll(masked(key), () => key) : text;
}

// Highlighting.
for (const code of document.querySelectorAll(".page .panel code")) {
  const language = code.closest("[data-language]")?.dataset.language ?? "";
  const nodes = pieces(code.textContent, language).map(([kind, text]) => {
    if (!kind) return text;
    const span = document.createElement("span");
    span.className = `code-${kind}`;
    span.textContent = text;
    return span;
  });
  code.replaceChildren(...nodes);
}

// Copying.
for (const sample of document.querySelectorAll(".page .panel pre")) {
  if (sample.previousElementSibling) continue; // a response
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await copy(whole(sample.textContent));
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  sample.after(button);
}
