// Sends the request of a form and shows the response as it arrives.
import { copyButton, write } from "./code.js";
import { disabledDuring, h, siteURL } from "./dom.js";
import { pretty } from "./json.js";
import { target } from "./request.js";
import { noteIDs, serverURL, settings } from "./settings.js";

const most = 200_000; // characters of a body that the page shows
const soon = 300; // milliseconds; the stop button appears for slower responses

/** Returns the buttons that send and stop a request, and the place of its outcome. */
export function sender(operation, request) {
  const outcome = h("div", { class: "outcomes" });
  const status = h("p", { class: "unseen", role: "status" });
  const sendButton = h("button", { type: "submit", class: "send-button" }, `Send ${operation.method}`);
  const stopButton = h("button", { type: "button", class: "plain-button", hidden: true, onclick: () => running.abort() }, "Stop");
  let running;

  const run = async () => {
    running = new AbortController();
    const { signal } = running;
    const began = performance.now();
    const view = show(outcome, () => performance.now() - began);
    const slow = setTimeout(() => (stopButton.hidden = false), soon);
    status.textContent = "Sending the request.";
    let sent = false;
    try {
      const call = fetchArguments(request(), signal);
      sent = true;
      const response = await fetch(...call);
      view.head(response);
      await view.body(response);
    } catch (error) {
      view.failed(signal.aborted, error, sent);
    }
    clearTimeout(slow);
    view.end();
    status.textContent = view.summary();
  };
  const send = async () => {
    await disabledDuring(sendButton, run);
    if (document.activeElement === stopButton) sendButton.focus();
    stopButton.hidden = true;
  };
  return { buttons: [sendButton, stopButton], outcome: h("div", null, status, outcome), send };
}

function fetchArguments(request, signal) {
  const headers = new Headers(request.headers);
  if (request.type) headers.set("Content-Type", request.type);
  const { key } = settings();
  if (request.keyed && key) headers.set("Authorization", `Bearer ${key}`);
  return [serverURL() + target(request), { method: request.method, headers, body: request.body, signal, cache: "no-store" }];
}

// Shows one response in place of the one before.
function show(outcome, elapsed) {
  const title = h("div", { class: "panel-title" }, "Waiting …");
  const code = h("code");
  const place = h("div", { class: "panel outcome" }, h("div", { class: "panel-bar" }, title));
  outcome.replaceChildren(place);
  const ticking = setInterval(() => (title.textContent = `Waiting for ${Math.round(elapsed() / 1000)} s …`), 1000);
  let text = "";
  let line = "";

  return {
    head(response) {
      clearInterval(ticking);
      line = `${response.status} ${response.statusText}`.trim();
      title.replaceChildren(
        h("span", { class: `status status-${String(response.status)[0]}xx` }, String(response.status)),
        ` ${response.statusText} `,
        h("span", { class: "outcome-time" }, `in ${Math.round(elapsed())} ms`),
      );
      place.append(
        h("pre", { tabindex: "0", role: "group", "aria-label": "Body of the response" }, code),
        headersOf(response),
      );
    },
    async body(response) {
      if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
        text = await response.text();
        noteIDs(text);
        this.print(response);
        return;
      }
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        text = (text + part.value).slice(-most);
        code.textContent = text;
        code.parentElement.scrollTop = code.parentElement.scrollHeight;
      }
    },
    print(response) {
      if (text === "") {
        code.parentElement.replaceWith(h("p", { class: "outcome-note" }, "No body."));
        return;
      }
      const whole = pretty(text);
      write(code, whole.slice(0, most), response.headers.get("Content-Type")?.includes("json") ? "json" : "");
      place.querySelector(".panel-bar").append(copyButton(() => whole));
      if (whole.length > most) place.append(h("p", { class: "outcome-note" }, `The first ${most.toLocaleString("en")} characters.`));
      const known = response.ok ? null : /"code":"(\w+)"/.exec(text);
      if (known) place.append(h("p", { class: "outcome-note" }, h("a", { href: siteURL(`docs/errors#${known[1]}`) }, "How to fix ", h("code", null, known[1]))));
    },
    failed(stopped, error, sent) {
      const began = code.isConnected;
      const lost = began ? "The connection is lost. The response is not complete." : !sent ? `Not sent: ${error.message}` : `No response: ${error.message}. Is the server running?`;
      line = stopped ? "Stopped." : lost;
      const note = stopped ? `Stopped after ${(elapsed() / 1000).toFixed(1)} s.` : lost;
      if (began) place.append(h("p", { class: "outcome-note" }, note));
      else title.replaceChildren(note);
    },
    end: () => clearInterval(ticking),
    summary: () => line,
  };
}

function headersOf({ headers }) {
  return h(
    "details",
    null,
    h("summary", null, "Headers"),
    h("dl", { class: "headers" }, ...[...headers].map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))),
  );
}
