// The API keys of an account.
import { actions, collectionView, readAll } from "./console-collection.js";
import { action, showSecret } from "./console-dialog.js";
import { dayAndTime, fact, when } from "./console-list.js";
import { keyOf, session } from "./console-session.js";
import { h } from "./dom.js";
import { connect, noteSandboxKey, settings } from "./settings.js";

/** Returns the view of the API keys of an account. */
export function keysView(context) {
  return collectionView(
    {
      title: "API keys", things: "keys", empty: "No API keys.",
      load: ({ store, signal }) => readAll("listAPIKeys", { store, signal }),
      cells: (key) => [h("span", { class: `chip chip-${stateOf(key)}` }, stateOf(key)), h("span", { class: "row-text" }, key.name), h("span", { class: "row-note faint" }, key.scope), h("code", { class: "faint" }, key.prefix)],
      tools: ({ store, reload }) => [action("createAPIKey", { label: "New API key", submit: "Create", options: { store }, then: async (response) => {
        const { id, secret } = await response.json();
        await showSecret("New API key", secret);
        await reload(id, "Created.");
      } })],
      detail,
    },
    context,
  );
}

const stateOf = ({ revokedAt, expiresAt }) => (revokedAt ? "revoked" : expiresAt && new Date(expiresAt) < Date.now() ? "expired" : "active");

function detail(key, { store, reload }) {
  const { id, name, scope, prefix, createdAt, expiresAt, lastUsedAt, revokedAt } = key;
  const options = { store, path: { apiKeyId: id } };
  const own = keyOf(store).startsWith(prefix);
  return [
    h("h2", { class: "line" }, name),
    own && h("p", { class: "hint" }, "The console uses this key."),
    stateOf(key) === "active" && actions(
      action("rotateAPIKey", { label: "Rotate", title: "Rotate the secret", note: "The key gets a new secret. Without graceSeconds, the old secret stops at once.", options, then: async (response) => {
        const { secret } = await response.json();
        if (own && store === session.account.id) connect({ ...settings(), key: secret });
        else if (own) noteSandboxKey(store, secret);
        await showSecret("New secret", secret);
        await reload(id, "Rotated.");
      } }),
      action("revokeAPIKey", { label: "Revoke", title: "Revoke the API key", note: own ? "The console uses this key, and asks for another one afterwards." : "Clients that use this key get 401 from then on.", danger: true, options, then: () => reload(id, "Revoked.") }),
    ),
    h(
      "dl",
      { class: "facts-of" },
      fact("Scope", scope), fact("Prefix", h("code", null, prefix)), fact("Created", when(createdAt, dayAndTime)), fact("Last used", lastUsedAt && when(lastUsedAt, dayAndTime)),
      fact("Expires", expiresAt && when(expiresAt, dayAndTime)), fact("Revoked", revokedAt && when(revokedAt, dayAndTime)), fact("Id", String(id)),
    ),
  ];
}
