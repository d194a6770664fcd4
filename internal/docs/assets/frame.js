// Code for all pages: the search, the theme and the menu of narrow windows.
import "./palette.js";

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
