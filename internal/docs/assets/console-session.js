// The session: the account of the API key, the keys of its sandboxes, and calls with them.
import { Failure, follow, pauseAfter, send, sleep } from "./console-api.js";
import { h, marked, siteURL } from "./dom.js";
import { encode } from "./request.js";
import { forgetKeys, noteSandboxKey, sandboxKey, settings } from "./settings.js";

/** The account of the key, the live sandboxes of the account, and the operations of the API. */
export const session = { account: undefined, sandboxes: [], operations: {}, ended: () => {} };

/** Returns the API key for a store; "": the tab has none. */
export function keyOf(store) {
  return store === session.account?.id ? settings().key : sandboxKey(store);
}

/** Returns whether the API has an operation. */
export const has = (id) => id in session.operations;

/** Returns the scope that an operation needs and the key of the session lacks; "": it may use it. */
export function lacks(id) {
  const scopes = ["read", "write", "admin"];
  const { scope } = session.operations[id];
  return scopes.indexOf(session.account.apiKey.scope) < scopes.indexOf(scope) ? scope : "";
}

/** Returns the URL of an operation: the path with its parameters and the query. */
function pathOf(id, { path = {}, query }) {
  const filled = session.operations[id].path.replaceAll(/\{(\w+)\}/g, (_, name) => encode(path[name]));
  const text = new URLSearchParams(query).toString();
  return text ? `${filled}?${text}` : filled;
}

/** Reports whether an operation is about sandboxes and samples, and not about what a store has. */
export const isAboutSandboxes = (id) => /^\/(sandboxes|samples)\b/.test(session.operations[id].path);

// The key of the session manages sandboxes. All else in a store needs a key of the store.
const keyFor = (id, store) => (isAboutSandboxes(id) ? settings().key : keyOf(store));

/** Runs an operation on a store, and returns the response. */
export async function run(id, { store, body, headers, signal, ...where } = {}) {
  const key = keyFor(id, store);
  try {
    return await send(key, session.operations[id].method, pathOf(id, where), { body, headers, signal });
  } catch (failure) {
    noteEnd(failure, key, store);
    throw failure;
  }
}

/** Runs an operation, and returns the JSON of the response with the path of the next page, if any. */
export async function read(id, options) {
  const response = await run(id, options);
  const [, next] = /<([^>]*)>; rel="next"/.exec(response.headers.get("Link") ?? "") ?? [];
  return { data: await response.json(), next: next && Object.fromEntries(new URL(next, "http://x").searchParams) };
}

/** Follows the stream of an operation. */
export function stream(id, { store, onState, signal, ...options }) {
  const key = keyFor(id, store);
  const where = { path: options.path, query: options.query };
  return follow(key, pathOf(id, where), { ...options, signal, onState: (state) => (noteEnd(state.failure, key, store), onState(state)) });
}

// A key that has stopped working ends the session, or the access to the sandbox of the key.
function noteEnd(failure, key, store) {
  if (failure?.status !== 401) return;
  if (key === settings().key) {
    forgetKeys();
    session.account = undefined;
    session.ended("The API key does not work any more. Somebody revoked it, or it has expired, or its sandbox has ended.");
  } else if (key === sandboxKey(store)) {
    noteSandboxKey(store, "");
    session.ended();
  }
}

/** Reads the sandboxes of the account again. */
export async function loadSandboxes(signal) {
  session.sandboxes = lacks("listSandboxes") ? [] : (await read("listSandboxes", { query: { limit: 200 }, signal })).data;
}

/** Returns what to show of an error. */
export function problem(failure, pause) {
  const again = pause && ` Trying again in ${Math.ceil(pause / 1000)} s.`;
  const message = failure.errors.length > 0 ? failure.message.replace(/ [^.]*`errors`[^.]*\.$/, "") : failure.message;
  return h(
    "div",
    { class: "problem-note", role: "alert" },
    h("p", null, ...marked(message), again, " ", failure.code && h("a", { href: siteURL(`docs/errors#${failure.code}`) }, h("code", null, failure.code))),
    failure.errors.length > 0 && h("ul", null, ...failure.errors.map((one) => h("li", null, h("code", null, one.pointer ?? one.parameter ?? one.header ?? ""), " ", ...marked(one.message)))),
  );
}

/**
 * Runs load until it succeeds or never will. Meanwhile, the place says what is wrong. The result
 * is undefined if there is none.
 */
export async function persist(place, signal, load) {
  for (let attempts = 0; !signal.aborted; attempts++) {
    try {
      const result = await load();
      return signal.aborted ? undefined : result;
    } catch (failure) {
      if (signal.aborted) return undefined;
      if (!(failure instanceof Failure)) throw failure;
      const pause = failure.passes && pauseAfter(failure, attempts);
      place.replaceChildren(problem(failure, pause));
      if (!pause) return undefined;
      await sleep(pause, signal);
    }
  }
  return undefined;
}
