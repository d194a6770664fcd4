// The console: signs in with an API key and shows the part of it that the address names, such as
// #requests/sbx_1042/req_1042_57?status=4xx. The address never has a key.
import { Failure, patience, send } from "./console-api.js";
import { eventsView } from "./console-events.js";
import { keysView } from "./console-keys.js";
import { requestsView } from "./console-requests.js";
import { sandboxesView } from "./console-sandboxes.js";
import { keyOf, lacks, loadSandboxes, persist, problem, session } from "./console-session.js";
import { webhooksView } from "./console-webhooks.js";
import { h, newID } from "./dom.js";
import "./frame.js";
import { highlight } from "./highlight.js";
import { connect, forgetKeys, masked, noteSandboxKey, settings, subscribe } from "./settings.js";

const views = {
  requests: { title: "Requests", show: requestsView, needs: "listRecordedRequests", ofSandbox: true },
  events: { title: "Events", show: eventsView, needs: "listEvents" },
  webhooks: { title: "Webhooks", show: webhooksView, needs: "listWebhooks" },
  sandboxes: { title: "Sandboxes", show: sandboxesView, needs: "listSandboxes", ofAccount: true },
  keys: { title: "API keys", show: keysView, needs: "listAPIKeys" },
};

const content = document.getElementById("content");
const welcome = content.querySelector(".welcome");
const sidebar = document.getElementById("sidebar");
const links = new Map([...sidebar.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));

let place = new AbortController(); // ends with the view
let state; // of the address
let mounted; // the view, and what it is of

// The address.

function parse() {
  const [path, ...query] = location.hash.slice(1).split("?");
  const [view, store, item] = path.split("/").map(decode);
  if (store && store !== session.account.id && !store.startsWith("sbx_")) {
    history.replaceState(null, "", `#${view}`); // the store of another account
    return parse();
  }
  const usual = lacks("listRecordedRequests") ? "events" : "requests";
  return { view: Object.hasOwn(views, view) ? view : usual, store: store || session.account.id, item: item ?? "", query: new URLSearchParams(query.join("?")) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function href(change) {
  const { view, store, item, query } = { ...state, query: Object.fromEntries(state.query), ...change };
  const text = new URLSearchParams(query).toString();
  return `#${[view, store, item].filter(Boolean).map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

/** Leads to another place: the present one with a change. */
const go = (change) => (location.hash = href(change));
Object.assign(go, {
  href,
  filter(name, value) {
    const query = Object.fromEntries([...state.query].filter(([other]) => ![name, "before", "after"].includes(other)));
    if (value) query[name] = value;
    history.replaceState(null, "", href({ query, item: "" }));
    route();
  },
  refresh: showSidebar,
});

function route({ first = false, again = false } = {}) {
  if (!session.account) return;
  state = parse();
  showSidebar();
  const spot = `${state.view}/${views[state.view].ofAccount ? "" : state.store}`;
  if (again || spot !== mounted?.spot) {
    place.abort();
    closeForm();
    place = new AbortController();
    mounted = { spot, ...mount(state) };
    document.title = `${views[state.view].title} · Petstore console`;
    // A select changes with each arrow key, so it keeps the focus.
    if (!first && document.activeElement?.id !== "store-select") mounted.heading.focus({ preventScroll: true });
  }
  mounted.update?.(state);
}

// A secret stays until the reader has stored it.
function closeForm() {
  document.querySelector("dialog[open]:not(:has(.secret))")?.close();
}

function mount({ view, store }) {
  const { title, show, needs, ofSandbox, ofAccount } = views[view];
  const notice = (...children) => {
    const heading = h("h1", { tabindex: "-1" }, title);
    content.replaceChildren(h("div", { class: "notice" }, heading, ...children));
    return { heading };
  };
  const missing = lacks(needs);
  if (missing) return notice(h("p", null, "This part needs an API key of the scope ", h("code", null, missing), ". Your key has the scope ", h("code", null, session.account.apiKey.scope), "."));
  if (ofSandbox && !store.startsWith("sbx_")) {
    const list = h("div", null, h("p", null, "Loading …"));
    showChoices(list, place.signal);
    return notice(h("p", null, "The server records the requests of sandboxes. Choose or create one:"), list, h("p", null, h("a", { href: href({ view: "sandboxes", item: "", query: {} }) }, "Create a sandbox")));
  }
  if (!ofSandbox && !ofAccount && !keyOf(store)) return notice(h("p", null, `This part of ${store} needs an API key of the sandbox. This tab has none.`), keyForm(`API key of ${store}`, "Use this key", async (key, outcome, signal) => {
    const account = await persist(outcome, signal, async () => (await send(key, "GET", "/account")).json());
    if (!account) return;
    if (account.id !== store) {
      outcome.replaceChildren(problem(new Failure({ message: `This key belongs to ${account.id}.` })));
      return;
    }
    noteSandboxKey(store, key);
    route({ again: true });
  }));
  return show({ store: ofAccount ? session.account.id : store, place: content, signal: place.signal, go });
}

// Lists the sandboxes, also those that others have created since.
async function showChoices(list, signal) {
  if (!(await persist(list, signal, () => loadSandboxes(signal).then(() => true)))) return;
  showSidebar();
  const choices = session.sandboxes.map(({ id, name }) => h("li", null, h("a", { class: "row", href: href({ store: id, item: "" }) }, h("span", { class: "chip" }, id), h("span", { class: "row-text" }, name))));
  list.replaceChildren(choices.length > 0 ? h("ul", { class: "rows" }, ...choices) : h("p", null, "You have none yet."));
}

// The sidebar: the store, the parts and the session.

const storeSelect = h("select", { id: "store-select", onchange: () => go({ store: storeSelect.value, item: "", query: {} }) });
document.getElementById("store").append(h("label", { for: "store-select" }, "Store"), storeSelect);

function showSidebar() {
  const { account, sandboxes } = session;
  if (!account) return;
  const stores = [{ id: account.id, name: account.name }, ...sandboxes];
  if (!stores.some(({ id }) => id === state.store)) stores.push({ id: state.store, name: "not in the list" });
  const options = stores.map(({ id, name }) => h("option", { value: id }, `${name} · ${id}`));
  if (options.map(({ text }) => text).join("") !== storeSelect.textContent) storeSelect.replaceChildren(...options);
  storeSelect.value = state.store;
  for (const [view, link] of links) {
    link.href = href({ view, item: "", query: {} });
    if (view === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function showSession({ name, apiKey }) {
  document.getElementById("session").replaceChildren(
    h("p", null, h("strong", null, name), h("br"), h("code", null, masked(settings().key)), ` ${apiKey.scope}`),
    h("button", { type: "button", class: "plain-button", onclick: leave }, "Sign out"),
  );
}

// Signing in and out.

function keyForm(label, submit, use) {
  const id = newID("key");
  // The value of an attribute would be part of the HTML of the page, so the key is no attribute.
  const input = h("input", { id, type: "password", autocomplete: "off", spellcheck: "false", placeholder: "petstore_…", "aria-describedby": `${id}-outcome` });
  const outcome = h("div", { id: `${id}-outcome` });
  let attempt = new AbortController(); // ends with the next one
  const onsubmit = async (event) => {
    event.preventDefault();
    attempt.abort();
    attempt = new AbortController();
    const key = input.value.trim();
    outcome.replaceChildren();
    if (!/^[A-Za-z0-9._~+/=-]+$/.test(key)) outcome.replaceChildren(problem(new Failure({ message: "Enter an API key. It begins with petstore_." })));
    else await use(key, outcome, AbortSignal.any([place.signal, attempt.signal]));
  };
  return h("form", { class: "key-form", onsubmit, novalidate: true }, h("div", { class: "field" }, h("label", { for: id }, label), input), h("button", { type: "submit", class: "send-button" }, submit), outcome);
}

function signOut(message) {
  closeForm();
  forgetKeys();
  session.account = undefined;
  mounted = undefined;
  place.abort();
  place = new AbortController();
  sidebar.hidden = true;
  content.classList.remove("console");
  content.replaceChildren(welcome);
  for (const code of welcome.querySelectorAll("code.language-sh")) highlight(code);
  document.title = "Console · Petstore";
  const form = keyForm("API key", "Sign in", signIn);
  document.getElementById("sign-in").replaceChildren(form);
  if (message) form.lastChild.replaceChildren(problem(new Failure({ message })));
  form.querySelector("input").focus();
}

function leave() {
  history.replaceState(null, "", location.pathname); // the next key may be of another account
  signOut("");
}

let operations;

async function loadOperations() {
  let status; // none if there is no whole response
  try {
    const response = await fetch(new URL("reference.json", import.meta.url), { signal: AbortSignal.timeout(patience) });
    if (response.ok) return (await response.json()).operations;
    status = response.status;
  } catch {
    // The connection is lost.
  }
  throw new Failure({ status, message: "The console cannot load. Reload the page." });
}

async function signIn(key, outcome, signal) {
  session.account = undefined; // of an attempt before
  const account = await persist(outcome, signal, async () => {
    operations ??= await loadOperations();
    session.operations = operations;
    return (await send(key, "GET", "/account")).json();
  });
  if (!account) return;
  if (key !== settings().key) connect({ ...settings(), key });
  session.account = account;
  state = parse();
  await persist(outcome, signal, () => loadSandboxes(signal).then(() => true));
  if (session.account !== account) return;
  sidebar.hidden = false;
  content.classList.add("console");
  showSession(account);
  route({ first: true });
}

session.ended = (message) => (message ? signOut(message) : route({ again: true }));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is a place in the console
  content.focus();
});
addEventListener("hashchange", () => route());
subscribe(() => session.account && showSession(session.account));
const { key } = settings();
if (key) {
  const outcome = h("div", null, h("p", null, "Signing in …"));
  document.getElementById("sign-in").replaceChildren(outcome);
  await signIn(key, outcome, place.signal);
  // Without the operations, nobody has refused the key.
  if (operations && !session.account) signOut(outcome.querySelector(".problem-note p")?.firstChild.data);
} else signOut("");
