// Code for the pages of the docs: code panels, and the current part.
import { dress, fill } from "./code.js";
import "./form.js";
import "./frame.js";
import "./key.js";
import "./samples.js";
import "./tabs.js";

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
