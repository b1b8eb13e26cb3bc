// The drawer of settings: what the next answers are asked with. An empty field leaves the choice
// to the server. Kept in this browser for all conversations; the system prompt is a conversation's.

import { byId, el, iconButton, openDialog } from "/page/dom.js";

const STORED = "strata.sampling";

// name, label, lowest, highest, step, what it does
const NUMBERS = [
  ["temperature", "Temperature", 0, 2, 0.05, "0 always takes the likeliest token; higher is more varied."],
  ["top_p", "Top P", 0, 1, 0.01, "Only the likeliest tokens that make up this share."],
  ["top_k", "Top K", 1, 64, 1, "Only this many of the likeliest tokens."],
  ["min_p", "Min P", 0, 1, 0.01, "Only tokens with this share of the likeliest one's probability."],
  ["max_tokens", "Longest answer", 1, 8192, 1, "Tokens, the thinking included."],
  ["repeat_penalty", "Repeat penalty", 1, 2, 0.01, "Above 1 makes tokens that were used less likely."],
  ["presence_penalty", "Presence penalty", -2, 2, 0.05, "Once for every token that was used."],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.05, "For every time a token was used."],
];

let values = read();

function read() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) ?? {};
  } catch {
    return {};
  }
}

function set(name, value) {
  if (value === "" || value === null || value === undefined) delete values[name];
  else values[name] = value;
  localStorage.setItem(STORED, JSON.stringify(values));
}

/** Fields of the request. */
export function samplingFields() {
  const fields = {};
  for (const [name] of NUMBERS) if (values[name] !== undefined) fields[name] = values[name];
  for (const name of ["seed", "reasoning_budget_tokens"]) if (values[name] !== undefined) fields[name] = values[name];
  const stops = (values.stop ?? "").split("\n").filter((line) => line !== "");
  if (stops.length > 0) fields.stop = stops;
  if (values.thinking !== undefined) fields.chat_template_kwargs = { enable_thinking: values.thinking === "on" };
  const tools = toolsOf(values.tools ?? "");
  if (tools !== null && tools.length > 0) fields.tools = tools;
  return fields;
}

/** How many settings are not the server's own. */
export const numChanged = () => Object.keys(values).length;

/** Functions from the text of the field; null where it is no list of them. */
function toolsOf(text) {
  if (text.trim() === "") return [];
  try {
    const parsed = JSON.parse(text);
    const tools = Array.isArray(parsed) ? parsed : [parsed];
    if (tools.some((tool) => typeof (tool.function ?? tool)?.name !== "string")) return null;
    return tools.map((tool) => (tool.function ? tool : { type: "function", function: tool }));
  } catch {
    return null;
  }
}

let draw = () => {};

/** Draws an open drawer again: what the model can do may be told after it was opened. */
export function settingsChanged() {
  if (!byId("settings").open) return;
  const focused = document.activeElement?.id;
  draw();
  if (focused) byId(focused)?.focus();
}

/** Opens the drawer for a conversation. */
export function openSettings(conversation, { facts, onSystem, onChange }) {
  draw = () => drawSettings(conversation, { facts, onSystem, onChange });
  draw();
  openDialog(byId("settings"));
}

function drawSettings(conversation, { facts, onSystem, onChange }) {
  const drawer = byId("settings");
  const close = () => drawer.close();
  const changed = (name, value) => {
    set(name, value);
    onChange();
  };
  const reset = () => {
    values = {};
    localStorage.removeItem(STORED);
    onChange();
    draw();
  };
  const system = el("textarea", {
    id: "system", rows: 4, value: conversation.system ?? "", placeholder: "You are a helpful assistant who answers briefly.",
    oninput: (event) => onSystem(event.target.value),
  });
  drawer.replaceChildren(
    el("header", { class: "drawer-head" },
      el("h2", { id: "settings-title", text: "Settings" }),
      el("button", { type: "button", class: "button quiet", text: "Use the defaults", onclick: reset }),
      iconButton("close", "Close the settings", close, { autofocus: true })),
    el("div", { class: "drawer-body" },
      field("System prompt", system, "Goes before this conversation.", "system"),
      facts.hasThinking ? [thinkingField(changed), budgetField(facts, changed)] : null,
      el("h3", { text: "Sampling" }),
      NUMBERS.map((item) => numberField(item, facts, changed)),
      seedField(changed),
      el("h3", { text: "More" }),
      textField("stop", "Stop at", "One text a line.", 2, changed),
      toolsField(changed)));
}

function field(label, control, help, id) {
  return el("div", { class: "field" }, el("label", { for: id, text: label }), control, el("p", { class: "help", text: help }));
}

function numberField([name, label, lowest, most, step, help], facts, changed) {
  const highest = name.endsWith("tokens") && facts.contextLen ? facts.contextLen : most;
  // Where the slider stands, and what the field says, while the choice is the server's.
  const usual = facts.sampling[name] ?? (name.endsWith("tokens") ? highest : lowest);
  const id = `field-${name}`;
  const isSet = values[name] !== undefined;
  const limits = { min: lowest, max: highest, step };
  const number = el("input", { type: "number", id, inputmode: "decimal", placeholder: name.endsWith("tokens") ? "no limit" : usual, ...limits, value: values[name] ?? "" });
  const slider = el("input", { type: "range", "aria-label": `${label}, slider`, ...limits, value: isSet ? values[name] : usual });
  const row = el("div", { class: isSet ? "number-row" : "number-row unset" }, slider, number);
  const take = (text) => {
    const value = text === "" ? "" : Math.min(highest, Math.max(lowest, Number(text)));
    row.classList.toggle("unset", value === "");
    changed(name, value);
    return value;
  };
  slider.addEventListener("input", () => {
    number.value = take(slider.value);
  });
  number.addEventListener("change", () => {
    const value = take(number.value);
    number.value = value;
    slider.value = value === "" ? usual : value;
  });
  return field(label, row, help, id);
}

function seedField(changed) {
  const number = el("input", {
    type: "number", id: "field-seed", step: 1, placeholder: "another each time", value: values.seed ?? "",
    onchange: (event) => changed("seed", event.target.value === "" ? "" : Math.trunc(Number(event.target.value))),
  });
  return field("Seed", number, "The same seed and settings give the same answer.", "field-seed");
}

function budgetField(facts, changed) {
  const limit = ["reasoning_budget_tokens", "Longest thinking", 0, 8192, 1, "Tokens; after them the model is made to answer."];
  return numberField(limit, facts, changed);
}

function thinkingField(changed) {
  const choices = [["", "Model's own"], ["on", "On"], ["off", "Off"]];
  const radios = choices.map(([value, label]) => {
    const radio = el("input", {
      type: "radio", name: "thinking", value, checked: (values.thinking ?? "") === value, onchange: () => changed("thinking", value),
    });
    return el("label", {}, radio, el("span", { text: label }));
  });
  return el("fieldset", { class: "field" }, el("legend", { text: "Thinking before the answer" }), el("div", { class: "choices" }, radios));
}

function textField(name, label, help, rows, changed) {
  const id = `field-${name}`;
  const area = el("textarea", { id, rows, value: values[name] ?? "", oninput: (event) => changed(name, event.target.value) });
  return field(label, area, help, id);
}

function toolsField(changed) {
  const fault = el("p", { class: "help bad", role: "alert", hidden: true, text: "This is no JSON list of functions, so no tools are sent." });
  const check = (text) => {
    fault.hidden = toolsOf(text) !== null;
  };
  const area = el("textarea", {
    id: "field-tools", rows: 5, class: "mono", spellcheck: "false", value: values.tools ?? "",
    placeholder: '[{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]',
    oninput: (event) => {
      changed("tools", event.target.value);
      check(event.target.value);
    },
  });
  check(values.tools ?? "");
  const box = field("Tools", area, "Functions as JSON. When the model calls one, you are asked for its result.", "field-tools");
  box.append(fault);
  return box;
}
