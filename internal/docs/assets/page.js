// Code for all pages: the theme, the menu of narrow windows, code panels, and the current part.
import { dress, fill } from "./code.js";
import "./form.js";
import "./key.js";
import "./palette.js";
import "./samples.js";
import "./tabs.js";

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

// Code.
for (const code of document.querySelectorAll(".page .panel code.language-sh")) fill(code);
for (const panel of document.querySelectorAll(".panel")) if (!panel.closest(".samples, .tabs")) dress(panel);

// The current part: the sidebar and the address follow the scroll.
const links = new Map([...document.querySelectorAll(".nav-parts a")].map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
const parts = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);

function showCurrent() {
  const line = innerHeight / 4;
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
  const passed = parts.filter((part) => part.getBoundingClientRect().top < line);
  const current = atEnd && scrollY > 0 ? parts.at(-1) : passed.at(-1);
  if (current === showCurrent.last) return;
  showCurrent.last = current;
  for (const link of links.values()) link.removeAttribute("aria-current");
  const link = current && links.get(current.id);
  link?.setAttribute("aria-current", "location");
  link?.scrollIntoView({ block: "nearest" });
  history.replaceState(history.state, "", current ? `#${current.id}` : location.pathname + location.search);
}

if (parts.length > 0) {
  let waiting = false;
  addEventListener(
    "scroll",
    () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        showCurrent();
      });
    },
    { passive: true },
  );
}
