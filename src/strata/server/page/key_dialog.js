// Asks for the key of a server that was started with one.

import { storeKey } from "/page/api.js";
import { byId, el } from "/page/dom.js";

let asking = null;

/** True when a key was given; `wasWrong` says that one was tried before. Asks once at a time. */
export function askForKey(wasWrong) {
  asking ??= ask(wasWrong).finally(() => {
    asking = null;
  });
  return asking;
}

function ask(wasWrong) {
  const dialog = byId("key");
  const field = el("input", { type: "password", id: "key-field", autocomplete: "current-password", required: true, spellcheck: "false" });
  const keep = el("input", { type: "checkbox" });
  let isGiven = false;
  const form = el("form", {
    onsubmit: (event) => {
      event.preventDefault();
      storeKey(field.value.trim(), keep.checked);
      isGiven = true;
      dialog.close();
    },
  },
  el("h2", { id: "key-title", text: "This server asks for a key" }),
  el("p", { text: wasWrong ? "The key was not right. It is the one the server was started with." : "It is the one the server was started with: strata serve --api-key." }),
  // Who keeps keys wants a name beside each.
  el("input", { type: "text", autocomplete: "username", value: "strata", hidden: true }),
  el("label", { for: "key-field", text: "Key" }), field,
  el("label", { class: "check" }, keep, el("span", { text: "Keep it in this browser" })),
  el("div", { class: "row end" },
    el("button", { type: "button", class: "button quiet", text: "Not now", onclick: () => dialog.close() }),
    el("button", { type: "submit", class: "button", text: "Use the key" })));
  dialog.replaceChildren(form);
  dialog.showModal();
  field.focus();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(isGiven), { once: true }));
}
