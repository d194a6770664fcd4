// The dialog for the reader's API key and base URL.
import { connect, masked, serverURL } from "./settings.js";
import { Reference, h, useContext, useEffect, useId, useRef, useSettings, useState } from "./ui.js";

/** Shows the current key and a button that opens the dialog. */
export function KeyButton({ why }) {
  const { openKeyDialog } = useContext(Reference);
  const { key } = useSettings();
  return h(
    "div",
    { className: "key" },
    h("span", { className: "key-state" }, key ? h("code", null, masked(key)) : (why ?? "No API key yet.")),
    h("button", { type: "button", className: "key-button", onClick: openKeyDialog }, key ? "Change key" : "Add API key"),
  );
}

export function KeyDialog({ open, onClose }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (open) dialog.current.showModal();
    else dialog.current.close();
  }, [open]);
  const title = useId();
  return h(
    "dialog",
    { ref: dialog, className: "dialog", "aria-labelledby": title, onClose },
    h("h2", { id: title }, "Authorize"),
    open && h(KeyForm, { onClose }),
  );
}

function KeyForm({ onClose }) {
  const given = useSettings();
  const keyInput = useRef(null);
  const [url, setURL] = useState(given.url);
  const [remembered, setRemembered] = useState(given.remembered);
  const id = useId();
  // React would also write the value of a controlled input into its attribute, where
  // the HTML of the page would contain the key.
  useEffect(() => {
    keyInput.current.value = given.key;
  }, []);
  const onSubmit = (event) => {
    event.preventDefault();
    connect({ key: keyInput.current.value.trim(), url: url.trim().replace(/\/+$/, ""), remembered });
    onClose();
  };
  const onForget = () => {
    connect({ key: "", url: "", remembered: false });
    onClose();
  };
  return h(
    "form",
    { onSubmit },
    h(
      "div",
      { className: "field" },
      h("label", { htmlFor: `${id}key` }, "API key", h("span", null, "sent as Authorization: Bearer")),
      h("input", {
        id: `${id}key`,
        ref: keyInput,
        type: "password",
        // The characters of a token (RFC 6750), which include no quotes.
        pattern: "\\s*[A-Za-z0-9._~+\\/=\\-]*\\s*",
        title: "Letters, digits and - . _ ~ + / =",
        placeholder: "petstore_…",
        autoComplete: "off",
        spellCheck: false,
        autoFocus: true,
      }),
    ),
    h(
      "label",
      { className: "check" },
      h("input", { type: "checkbox", checked: remembered, onChange: (event) => setRemembered(event.target.checked) }),
      "Remember the key in this browser. Otherwise, the browser forgets it with the tab.",
    ),
    h(
      "div",
      { className: "field" },
      h("label", { htmlFor: `${id}url` }, "Base URL", h("span", null, "in the samples; Try it always calls this server")),
      h("input", {
        id: `${id}url`,
        type: "text",
        inputMode: "url",
        value: url,
        pattern: "\\s*(https?:\\/\\/[A-Za-z0-9.:\\[\\]%~_\\/\\-]+)?\\s*",
        title: "http:// or https://, a host and a path",
        placeholder: serverURL(),
        autoComplete: "off",
        spellCheck: false,
        onChange: (event) => setURL(event.target.value),
      }),
    ),
    h(
      "div",
      { className: "buttons" },
      h("button", { type: "submit", className: "send-button" }, "Use"),
      h("button", { type: "button", className: "plain-button", onClick: onClose }, "Cancel"),
      (given.key || given.url) && h("button", { type: "button", className: "plain-button forget", onClick: onForget }, "Forget"),
    ),
  );
}
