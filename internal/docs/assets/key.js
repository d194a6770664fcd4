// The reader's API key and base URL: the button in the header, and the dialog.
import { h } from "./dom.js";
import { connect, forgetKeys, masked, serverURL, settings, subscribe } from "./settings.js";

/** Lets a button open the dialog, and returns it. Its text tells whether there is a key. */
export function keyButton(button = h("button", { type: "button", class: "key-button" })) {
  button.addEventListener("click", openKeyDialog);
  const show = () => (button.textContent = settings().key ? "Change key" : "Add API key");
  subscribe(show);
  show();
  return button;
}

/** Returns the beginning of the key, or what to say without a key. It follows changes. */
export function keyState(missing) {
  const place = h("span", { class: "key-state" });
  const show = () => {
    const { key } = settings();
    place.replaceChildren(...(key ? ["Sends the key ", h("code", null, masked(key))] : missing));
  };
  subscribe(show);
  show();
  return place;
}

export function openKeyDialog() {
  const { key, url } = settings();
  const done = () => dialog.close();
  // The value of an attribute would be part of the HTML of the page, so the key is no attribute.
  const keyInput = input({
    id: "key-input", type: "password", value: key, autofocus: true, placeholder: "petstore_…",
    pattern: "\\s*[A-Za-z0-9._~+\\/=\\-]*\\s*", // the characters of a token (RFC 6750), which include no quotes
    title: "Letters, digits and - . _ ~ + / =",
  });
  const urlInput = input({
    id: "url-input", type: "text", inputmode: "url", value: url, placeholder: serverURL(),
    pattern: "\\s*(https?:\\/\\/[A-Za-z0-9.:\\[\\]%~_\\/\\-]+)?\\s*", title: "http:// or https://, a host and a path",
  });
  const onsubmit = (event) => {
    event.preventDefault();
    connect({ key: keyInput.value.trim(), url: urlInput.value.trim().replace(/\/+$/, "") });
    done();
  };
  const forget = () => {
    forgetKeys();
    connect({ key: "", url: "" });
    done();
  };
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": "key-title", onclose: () => dialog.remove() },
    h("h2", { id: "key-title" }, "API key"),
    h(
      "form",
      { onsubmit },
      h("div", { class: "field" }, h("label", { for: "key-input" }, "Key", h("span", null, "sent as Authorization: Bearer")), keyInput),
      h("div", { class: "field" }, h("label", { for: "url-input" }, "Base URL", h("span", null, "in samples; forms send to this server")), urlInput),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "submit", class: "send-button" }, "Use"),
        h("button", { type: "button", class: "plain-button", onclick: done }, "Cancel"),
        (key || url) && h("button", { type: "button", class: "plain-button forget", onclick: forget }, "Forget"),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}

function input(attributes) {
  return h("input", { autocomplete: "off", spellcheck: "false", ...attributes });
}

keyButton(document.querySelector(".bar .key-button"));
