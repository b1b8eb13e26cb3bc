// The page's start: views, colours, keys, and how the engine is doing.

import { drawAbout, shortcutList } from "/page/about.js";
import { getJson, health, onKeyWanted } from "/page/api.js";
import { factsChanged, newChat, startChat, stop } from "/page/chat.js";
import { byId, el, icon, openDialog, toast } from "/page/dom.js";
import { bytes } from "/page/format.js";
import { askForKey } from "/page/key_dialog.js";
import { hideMonitor, showMonitor } from "/page/monitor.js";

const VIEWS = ["chat", "monitor", "about"];
const THEME = "strata.theme";
// The demo model can do little; these it can.
const DEMO_SUGGESTIONS = ["What is 27 + 48?", "Tell me a short story about a fox.", "Look up the value of pear in this list: apple: 7, pear: 12, plum: 3", "Mia has 5 pens and buys 7 more. How many has she?"];
const SUGGESTIONS = ["Explain how a mixture-of-experts model works, in five sentences.", "Write a Python function that merges overlapping intervals, with tests.", "What should I ask before I buy a used bicycle?", "Make a table of the rock types with one example each."];

const facts = { model: "", hasThinking: false, contextLen: null, suggestions: [], sampling: {}, find: findModel };
let about = null;
let engineState = "";

function showView() {
  const wanted = location.hash.slice(1);
  const name = VIEWS.includes(wanted) ? wanted : "chat";
  for (const view of VIEWS) byId(`view-${view}`).hidden = view !== name;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = name === "chat" ? "Strata" : `${name[0].toUpperCase()}${name.slice(1)} · Strata`;
  if (name === "monitor") showMonitor();
  else hideMonitor();
  if (name === "about" && about === null) loadFacts();
  closeMenu();
}

/** The model's name, asked for if it is not known yet. Throws the server's error. */
async function findModel() {
  if (facts.model === "") takeFacts(await getJson("/v1/about"));
  return facts.model;
}

/** Facts of the model, which need the key; asked for again until they come. */
async function loadFacts() {
  try {
    takeFacts(await getJson("/v1/about"));
  } catch (error) {
    byId("about").replaceChildren(el("p", { class: "nothing", text: error.message }),
      el("button", { type: "button", class: "button", text: "Try again", onclick: loadFacts }));
  }
}

function takeFacts(told) {
  about = told;
  facts.model = about.model.id;
  facts.hasThinking = about.model.has_thinking;
  facts.contextLen = about.context_len;
  facts.sampling = about.sampling;
  facts.suggestions = about.model.id === "strata-demo" ? DEMO_SUGGESTIONS : SUGGESTIONS;
  byId("engine-model").textContent = facts.model;
  drawAbout(about, {
    onAllRemoved: () => {
      newChat();
      toast("All conversations are deleted.");
    },
    onUnload: () => switchModel("unload"),
    onLoad: () => switchModel("load"),
  });
  factsChanged();
}

/** Looks whether the engine is ready; more often while it is not. */
async function watchEngine() {
  if (!document.hidden) {
    const told = await health();
    drawEngine(told);
    if (told.state === "ready" && (about === null || about.context_len === null) && engineState !== "ready") await loadFacts();
    engineState = told.state;
  }
  setTimeout(watchEngine, engineState === "ready" ? 5000 : 1000);
}

function drawEngine({ state, done, total }) {
  const words = { ready: "ready", loading: "loading", unloaded: "not loaded", failed: "could not load", not_answering: "not answering", closed: "shutting down", offline: "not reachable" };
  const progress = state === "loading" && total ? ` ${Math.floor((100 * done) / total)} % of ${bytes(total)}` : "";
  byId("engine-state").textContent = (words[state] ?? state) + progress;
  byId("engine-dot").className = `dot is-${state}`;
  drawBanner(state, done, total);
}

/** Says above the message field why there is no answer now, and what can be done. */
function drawBanner(state, done, total) {
  const words = {
    loading: "The model is being loaded. A message waits for it.",
    unloaded: "The model is not in memory.",
    failed: "The model could not be loaded; the server's log says why.",
    not_answering: "The engine does not answer. If it stays so, it is started again by itself.",
    offline: "The server does not answer. It may have been stopped.",
    closed: "The server is shutting down.",
  };
  const banner = byId("banner");
  const text = words[state];
  const isShown = text !== undefined;
  const wanted = isShown ? `${state} ${done} ${total}` : "";
  if (banner.dataset.shown === wanted) return;
  banner.dataset.shown = wanted;
  banner.hidden = !isShown;
  if (!isShown) return;
  banner.classList.toggle("is-bad", state === "failed" || state === "offline");
  banner.replaceChildren(el("span", { text }));
  if (state === "loading" && total > 0) banner.append(el("progress", { max: total, value: done, "aria-label": "Loaded" }));
  if (state === "unloaded") {
    banner.append(el("button", { type: "button", class: "button", text: "Load it", onclick: () => switchModel("load") }));
  }
}

async function switchModel(what) {
  try {
    await getJson(`/${what}`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
  } catch (error) {
    toast(error.message);
  }
  drawEngine(await health());
}

function setUpTheme() {
  const root = document.documentElement;
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const draw = () => button.replaceChildren(icon(isDark() ? "light" : "dark"));
  const stored = localStorage.getItem(THEME);
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    root.dataset.theme = next;
    localStorage.setItem(THEME, next);
    draw();
  });
  system.addEventListener("change", draw);
  draw();
}

function openMenu() {
  byId("sidebar").classList.add("is-open");
  byId("scrim").hidden = false;
  byId("close-menu").focus();
}

function closeMenu() {
  byId("sidebar").classList.remove("is-open");
  byId("scrim").hidden = true;
}

function setUpMenu() {
  for (const button of document.querySelectorAll("[data-menu]")) {
    button.append(icon("menu"));
    button.addEventListener("click", openMenu);
  }
  byId("close-menu").append(icon("close"));
  byId("close-menu").addEventListener("click", closeMenu);
  byId("scrim").addEventListener("click", closeMenu);
  // A conversation that was chosen is shown, not the list.
  byId("past").addEventListener("click", (event) => {
    if (event.target.closest(".conversation, #new-chat")) closeMenu();
  });
  for (const link of document.querySelectorAll(".tabs a")) link.prepend(icon(link.dataset.view));
}

function showShortcuts() {
  const dialog = byId("shortcuts");
  dialog.replaceChildren(el("h2", { id: "shortcuts-title", text: "Keys" }), shortcutList(),
    el("div", { class: "row end" }, el("button", { type: "button", class: "button", text: "Close", onclick: () => dialog.close() })));
  openDialog(dialog);
}

function onKey(event) {
  const isTyping = event.target.closest?.("input, textarea, select") !== null;
  const isWithControl = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (byId("sidebar").classList.contains("is-open")) closeMenu();
    else stop();
  } else if (isWithControl && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    newChat();
  } else if (isWithControl && event.key === ",") {
    event.preventDefault();
    location.hash = "#chat";
    byId("open-settings").click();
  } else if (!isTyping && !isWithControl && event.key === "/") {
    event.preventDefault();
    location.hash = "#chat";
    byId("prompt").focus();
  } else if (!isTyping && event.key === "?") {
    showShortcuts();
  }
}

/** Past the list to what is shown, whichever view that is. */
function skip(event) {
  event.preventDefault();
  byId("main").focus();
}

async function start() {
  document.querySelector(".skip").addEventListener("click", skip);
  setUpTheme();
  setUpMenu();
  onKeyWanted(askForKey);
  await startChat(facts);
  addEventListener("hashchange", showView);
  addEventListener("keydown", onKey);
  showView();
  watchEngine();
  if (matchMedia("(pointer: fine)").matches) byId("prompt").focus();
}

start();
