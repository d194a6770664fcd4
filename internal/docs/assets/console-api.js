// Calls the API, and follows its streams.
import { serverURL } from "./settings.js";

/** Milliseconds for a whole response. The server takes 10 s at most, and its pages have about 512 KiB. */
export const patience = 30_000;
const silence = 30_000; // milliseconds without a byte after which a stream is lost; the server sends a comment every 10 s
const longest = 15_000; // milliseconds between two attempts, unless the server asks for more

/** An error of the API. The status 0 means that there is no response. */
export class Failure extends Error {
  constructor({ status = 0, code = "", message, errors = [] }, seconds = 0) {
    super(message);
    Object.assign(this, { status, code, errors, seconds });
  }

  /** True if the same request may succeed later. */
  get passes() {
    return [0, 408, 429].includes(this.status) || this.status >= 500;
  }
}

/** Sends a request, and returns the response if it is successful, with the whole body unless it is a stream. */
export async function send(key, method, path, { body, headers, signal } = {}) {
  const isStream = headers?.Accept === "text/event-stream";
  const ends = [signal, !isStream && AbortSignal.timeout(patience)].filter(Boolean);
  let response;
  try {
    const type = body === undefined ? {} : { "Content-Type": "application/json" };
    response = await fetch(serverURL() + path, { method, body, signal: AbortSignal.any(ends), cache: "no-store", headers: { Authorization: `Bearer ${key}`, "Petstore-Observer": "true", ...type, ...headers } });
    if (!isStream) response = new Response((await response.text()) || null, response);
  } catch (error) {
    throw signal?.aborted ? error : new Failure({ message: response ? "The connection is lost." : "The server does not respond." });
  }
  const isOurs = /^$|json|event-stream/.test(response.headers.get("Content-Type") ?? ""); // unlike the page of a proxy
  if (response.ok && !isOurs) throw new Failure({ message: "The response does not come from Petstore." });
  if (response.ok) return response;
  const problem = (await response.json().catch(() => null)) ?? {};
  throw new Failure({ message: `The server returned ${response.status}.`, ...problem, status: response.status }, Number(response.headers.get("Retry-After")) || 0);
}

/** Returns the milliseconds before the next attempt. Half of them are random, so that clients do not return all at once. */
export function pauseAfter(failure, attempts) {
  const most = Math.min(longest, 1000 * 2 ** attempts);
  return Math.max(1000 * (failure?.seconds ?? 0), most / 2 + (Math.random() * most) / 2);
}

/** Waits, unless the signal ends it. */
export function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener("abort", end);
  });
}

/**
 * Follows a stream of Server-Sent Events after the item with the id `last` until the signal
 * aborts. After a lost connection, it continues after the last item. It calls onState with
 * { live }, with { failure, pause } before the next attempt, or with { failure } at the end.
 */
export async function follow(key, path, { last, signal, onItem, onState }) {
  for (let attempts = 0; !signal.aborted; attempts++) {
    const silent = new AbortController();
    let failure;
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), silence);
    };
    heard();
    try {
      const headers = { Accept: "text/event-stream", ...(last && { "Last-Event-ID": last }) };
      const response = await send(key, "GET", path, { headers, signal: AbortSignal.any([signal, silent.signal]) });
      attempts = 0;
      onState({ live: true });
      for await (const { id, data } of messages(response.body, heard)) {
        last = id || last;
        if (data) onItem(JSON.parse(data));
      }
    } catch (error) {
      failure = error instanceof Failure ? error : new Failure({ message: "The connection is lost." });
    }
    clearTimeout(timer);
    silent.abort(); // closes the connection
    if (signal.aborted) return;
    if (failure && !failure.passes) {
      onState({ failure });
      return;
    }
    const pause = pauseAfter(failure, attempts);
    onState({ failure: failure ?? new Failure({ message: "The server has ended the stream." }), pause });
    await sleep(pause, signal);
  }
}

async function* messages(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let message = {};
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    heard();
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const [, name, value] = /^(\w+): ?(.*)$/s.exec(line) ?? []; // U+2028 ends no line
      if (name) message[name] = value;
      else if (line === "") {
        yield message;
        message = {};
      }
    }
  }
}
