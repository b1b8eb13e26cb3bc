// About: where clients connect, what the model is, and what this page is made of.

import { storedKey } from "/page/api.js";
import * as store from "/page/conversations.js";
import { byId, copyButton, el } from "/page/dom.js";
import { DASH, bytes, count } from "/page/format.js";
import { codeBlock } from "/page/markdown.js";
import { RECIPES } from "/page/recipes.js";

const SHORTCUTS = [
  ["Enter", "Send the message"],
  ["Shift Enter", "Start a new line"],
  ["Esc", "Stop the answer"],
  ["Ctrl Shift O", "New chat"],
  ["Ctrl ,", "Settings"],
  ["/", "Go to the message field"],
  ["?", "These shortcuts"],
];

/** Draws the view from what /v1/about told. */
export function drawAbout(facts, { onAllRemoved, onUnload, onLoad }) {
  const base = location.origin;
  const wish = { base, model: facts.model.id, hasKey: Boolean(storedKey()) };
  byId("about").replaceChildren(
    el("section", { class: "block" }, el("h2", { text: "Connect a client" }),
      el("p", { text: "The server speaks the APIs of OpenAI and Anthropic. Point a client here and use the model's name." }),
      el("dl", { class: "addresses" },
        address("OpenAI", `${base}/v1`),
        address("Anthropic", base),
        address("Model", facts.model.id)),
      recipePicker(wish)),
    el("section", { class: "block" }, el("h2", { text: "The model" }), modelFacts(facts)),
    el("section", { class: "block" }, el("h2", { text: "This server" }), serverFacts(facts), memoryButtons(onUnload, onLoad)),
    el("section", { class: "block" }, el("h2", { text: "Keys" }), shortcutList()),
    el("section", { class: "block" }, el("h2", { text: "Conversations in this browser" }), privacy(onAllRemoved)));
}

function address(name, text) {
  return el("div", {}, el("dt", { text: name }), el("dd", {}, el("code", { text }), copyButton(() => text, `Copy the ${name} address`)));
}

function recipePicker(wish) {
  const shown = el("div", { id: "recipe", role: "tabpanel", "aria-live": "polite" });
  const show = (index) => {
    const [, language, textOf] = RECIPES[index];
    shown.replaceChildren(codeBlock(textOf(wish), language));
    tabs.forEach((tab, place) => {
      tab.setAttribute("aria-selected", String(place === index));
      tab.tabIndex = place === index ? 0 : -1;
    });
  };
  const tabs = RECIPES.map(([name], index) => el("button", { type: "button", role: "tab", "aria-controls": "recipe", text: name, onclick: () => show(index) }));
  const list = el("div", {
    class: "recipe-tabs", role: "tablist", "aria-label": "Clients",
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length;
      show(next);
      tabs[next].focus();
    },
  }, tabs);
  show(0);
  return [list, shown];
}

function facts(pairs) {
  return el("dl", { class: "pairs" }, pairs.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value ?? DASH }))));
}

function modelFacts({ model, context_len: contextLen }) {
  return facts([
    ["Name", model.name && model.name !== model.id ? `${model.id} (${model.name})` : model.id],
    ["Also called", model.aliases.join(", ") || DASH],
    ["Context", `${count(contextLen)} tokens${model.trained_context !== contextLen ? `, trained with ${count(model.trained_context)}` : ""}`],
    ["Layers", `${count(model.layers)}: ${count(model.recurrent_layers)} recurrent, ${count(model.attention_layers)} with attention${model.draft_layers ? `, and ${count(model.draft_layers)} for drafts` : ""}`],
    ["Experts", `${count(model.experts)} in a layer, ${count(model.active_experts)} for a token`],
    ["Width", count(model.width)],
    ["Vocabulary", `${count(model.vocabulary)} tokens`],
    ["Thinking", model.has_thinking ? "can be turned on and off" : "no"],
    ["Pictures", model.has_images ? "yes" : "no, text only"],
  ]);
}

function serverFacts({ version, machine }) {
  return facts([
    ["Strata", version],
    ["Processor", machine.cpu_name],
    ["Cores", machine.cores === null ? DASH : `${count(machine.cores)}, ${count(machine.threads)} threads`],
    ["Memory", bytes(machine.ram_total)],
    ["System", machine.system],
    ["This page uses", "marked 18.2.1 (MIT) and highlight.js 11.12.0 (BSD 3-Clause), shipped with it"],
  ]);
}

function memoryButtons(onUnload, onLoad) {
  return el("div", { class: "row" },
    el("button", { type: "button", class: "button quiet", text: "Give the model's memory back", onclick: onUnload }),
    el("button", { type: "button", class: "button quiet", text: "Load the model", onclick: onLoad }));
}

/** The shortcuts as a list; the dialog shows the same. */
export function shortcutList() {
  return el("dl", { class: "keys" }, SHORTCUTS.map(([keys, text]) =>
    el("div", {}, el("dt", {}, keys.split(" ").map((key) => el("kbd", { text: key }))), el("dd", { text }))));
}

function privacy(onAllRemoved) {
  const button = el("button", {
    type: "button", class: "button quiet danger", text: "Delete all conversations",
    onclick: async () => {
      if (button.dataset.isSure !== "yes") {
        button.dataset.isSure = "yes";
        button.textContent = "Click again to delete all";
        setTimeout(() => {
          button.dataset.isSure = "";
          button.textContent = "Delete all conversations";
        }, 4000);
        return;
      }
      await store.removeAll();
      onAllRemoved();
    },
  });
  return el("div", {}, el("p", { text: "They are kept here and nowhere else. The server keeps no text, only numbers of each request." }), el("div", { class: "row" }, button));
}
