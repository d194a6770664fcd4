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

// The current part: the sidebar and the address follow the scroll. A part without an entry in the
// sidebar, such as a type of events, belongs to the entry before it. Models below operations do not.
const links = new Map([...document.querySelectorAll(".nav-parts a")].map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
const parts = [...document.querySelectorAll("#content :is(article, section, h2, h3)[id]:not([id$='-title'])")];
const linkOf = new Map();
for (const [i, part] of parts.entries()) {
  linkOf.set(part, links.get(part.id) ?? (part.matches(".model") ? undefined : linkOf.get(parts[i - 1])));
}

/** Reports whether the address names a part, and its beginning is in view. */
function isNamed(part) {
  const top = part.getBoundingClientRect().top;
  return decodeURIComponent(location.hash.slice(1)) === part.id && top >= 0 && top < innerHeight;
}

function currentPart() {
  const target = document.querySelector(":target");
  if (linkOf.has(target) && isNamed(target)) return target;
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
  if (atEnd && scrollY > 0) return parts.at(-1);
  const line = innerHeight / 4;
  return parts.findLast((part) => part.getBoundingClientRect().top < line);
}

let current;

function showCurrent() {
  const before = current;
  current = currentPart();
  if (current === before) return;
  for (const link of links.values()) link.removeAttribute("aria-current");
  const link = linkOf.get(current);
  link?.setAttribute("aria-current", "location");
  link?.scrollIntoView({ block: "nearest" });
  history.replaceState(history.state, "", current ? `#${current.id}` : location.pathname + location.search);
}

if (links.size > 0) {
  let waiting = false;
  const follow = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      showCurrent();
    });
  };
  addEventListener("scroll", follow, { passive: true });
  addEventListener("hashchange", follow);
}
