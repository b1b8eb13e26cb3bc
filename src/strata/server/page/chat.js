// The chat: which conversation is shown, what is sent, and what is done with the answers.

import { anotherAnswer, fetchAnswer, switchVersion } from "/page/answer.js";
import * as store from "/page/conversations.js";
import { byId, el, icon, iconButton, toast } from "/page/dom.js";
import { count, dayOf } from "/page/format.js";
import { answerView, userView } from "/page/message_view.js";
import { pictureOf } from "/page/pictures.js";
import { numChanged, openSettings, settingsChanged } from "/page/sampling.js";

const LAST_SYSTEM = "strata.system";
const NEAR_END_PX = 90;
// A page that is closed loses no more of an answer than this.
const SAVE_EVERY_MS = 2000;

const state = {
  conversation: null,
  views: new Map(), // message to its view
  running: new Map(), // id of a conversation to what stops its answer
  pictures: [],
  facts: null, // of the model, from the page's start
  isFollowing: true,
  frame: 0,
  saveAt: 0,
};

/** Makes the view work. `facts` tells of the model what it says once it is known. */
export async function startChat(facts) {
  state.facts = facts;
  await store.openStore();
  decorate();
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (state.running.has(state.conversation.id)) stop();
    else submit();
  });
  const prompt = byId("prompt");
  prompt.addEventListener("input", sizePrompt);
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    // On a phone the key starts a line, as everywhere there.
    if (matchMedia("(pointer: coarse)").matches) return;
    event.preventDefault();
    if (!state.running.has(state.conversation.id)) submit();
  });
  prompt.addEventListener("paste", (event) => addFiles(event.clipboardData?.files));
  byId("attach").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", (event) => {
    addFiles(event.target.files);
    event.target.value = "";
  });
  byId("view-chat").addEventListener("dragover", (event) => event.preventDefault());
  byId("view-chat").addEventListener("drop", (event) => {
    event.preventDefault();
    addFiles(event.dataTransfer?.files);
  });
  byId("new-chat").addEventListener("click", newChat);
  byId("open-settings").addEventListener("click", showSettings);
  byId("to-end").addEventListener("click", () => toEnd(true));
  byId("scroller").addEventListener("scroll", onScroll, { passive: true });
  open(store.create(localStorage.getItem(LAST_SYSTEM) ?? ""));
}

function decorate() {
  byId("attach").append(icon("attach"));
  byId("to-end").append(icon("down"));
  byId("new-chat").prepend(icon("plus"));
  byId("open-settings").prepend(icon("sliders"));
}

/** Begins a conversation. */
export function newChat() {
  open(store.create(localStorage.getItem(LAST_SYSTEM) ?? ""));
  location.hash = "#chat";
  byId("prompt").focus();
}

/** Ends the answer that is being written here; true if there was one. */
export function stop() {
  const controller = state.running.get(state.conversation.id);
  controller?.abort();
  return controller !== undefined;
}

/** Draws again what depends on the model, once it is known. */
export function factsChanged() {
  if (state.conversation.messages.length === 0) drawThread();
  drawContext();
  settingsChanged();
}

function open(conversation) {
  state.conversation = conversation;
  state.isFollowing = true;
  drawThread();
  drawList();
  drawBar();
  toEnd(true);
}

function submit() {
  const prompt = byId("prompt");
  const content = prompt.value.trim();
  if (content === "" && state.pictures.length === 0) return;
  const message = { role: "user", content };
  if (state.pictures.length > 0) message.pictures = state.pictures;
  state.pictures = [];
  prompt.value = "";
  sizePrompt();
  drawPictures();
  say(message);
}

function say(message) {
  const conversation = state.conversation;
  if (conversation.title === "") conversation.title = (message.content || "A picture").split("\n")[0].slice(0, 80);
  conversation.messages.push(message);
  state.isFollowing = true;
  answer();
}

/** Asks for the next message of the conversation that is shown; `before` is the one it replaces. */
async function answer(before = null) {
  const conversation = state.conversation;
  const message = anotherAnswer(before);
  conversation.messages.push(message);
  const controller = new AbortController();
  state.running.set(conversation.id, controller);
  store.save(conversation);
  drawThread();
  drawList();
  drawBar();
  byId("announce").textContent = "The answer is being written.";
  await fetchAnswer(conversation, message, state.facts.find, controller.signal, () => changed(conversation, message));
  state.running.delete(conversation.id);
  await store.save(conversation);
  byId("announce").textContent = message.status === "error" ? "The answer failed." : "The answer is complete.";
  drawList();
  if (state.conversation === conversation) drawBar();
}

/** Draws a message that has grown, at most once a frame. */
function changed(conversation, message) {
  if (performance.now() > state.saveAt) {
    state.saveAt = performance.now() + SAVE_EVERY_MS;
    store.save(conversation);
  }
  if (state.conversation !== conversation || state.frame) return;
  state.frame = requestAnimationFrame(() => {
    state.frame = 0;
    // Looked at before the text grows; a scroll of this very moment has not been told yet.
    state.isFollowing = isNearEnd();
    state.views.get(message)?.update();
    if (state.isFollowing) toEnd(false);
  });
}

const actions = {
  edit(message, content) {
    if (state.running.has(state.conversation.id)) return;
    cut(state.conversation.messages.indexOf(message));
    say({ ...message, content });
  },
  regenerate() {
    if (state.running.has(state.conversation.id)) return;
    const messages = state.conversation.messages;
    // An answer that followed the result of a tool is made again from that result.
    const place = messages.findLastIndex((message) => message.role !== "assistant") + 1;
    const before = messages[place];
    cut(place);
    answer(before);
  },
  showVersion(message, version) {
    if (state.running.has(state.conversation.id)) return;
    switchVersion(message, version);
    state.views.delete(message);
    drawThread();
    store.save(state.conversation);
  },
  dropPictures() {
    for (const message of state.conversation.messages) {
      if (!message.pictures) continue;
      delete message.pictures;
      state.views.delete(message);
    }
    const messages = state.conversation.messages;
    const last = messages.findLast((message) => message.role === "user");
    if (last?.content) this.regenerate();
    else {
      cut(messages.indexOf(last));
      drawThread();
      toast("The picture was all there was; write something with it.");
    }
  },
  giveResults(message, results) {
    message.calls.forEach((call, index) => {
      call.result = results[index];
      state.conversation.messages.push({ role: "tool", callId: call.id, content: results[index] });
    });
    answer();
  },
};

function cut(length) {
  state.conversation.messages.length = Math.max(0, length);
}

function drawThread() {
  const thread = byId("thread");
  const messages = state.conversation.messages;
  const before = state.views;
  state.views = new Map();
  thread.classList.toggle("is-empty", messages.length === 0);
  if (messages.length === 0) {
    thread.replaceChildren(emptyState());
    return;
  }
  const last = messages.at(-1);
  const views = messages.filter((message) => message.role !== "tool").map((message) => {
    message.isLast = message === last;
    // A message that was shown stays as it is: a thought that was opened, a place in a wide table.
    const view = before.get(message) ?? (message.role === "user" ? userView(message, actions) : answerView(message, actions));
    state.views.set(message, view);
    view.update();
    return view.node;
  });
  thread.replaceChildren(...views);
  if (state.isFollowing) toEnd(false);
}

function emptyState() {
  const suggestions = state.facts.suggestions.map((text) =>
    el("button", { type: "button", class: "suggestion", text, onclick: () => say({ role: "user", content: text }) }));
  return el("div", { class: "empty" },
    el("img", { src: "/page/icon.svg", alt: "", class: "empty-mark" }),
    el("h2", { text: "What shall we work on?" }),
    el("p", { text: state.facts.model ? `You are talking to ${state.facts.model}, on this machine. Nothing leaves it.` : "The model runs on this machine. Nothing leaves it." }),
    el("div", { class: "suggestions" }, suggestions));
}

function drawList() {
  const groups = new Map();
  for (const conversation of store.all()) {
    const day = dayOf(conversation.updated);
    if (!groups.has(day)) groups.set(day, []);
    groups.get(day).push(conversation);
  }
  const nodes = [...groups].map(([day, conversations]) =>
    el("section", {}, el("h2", { class: "label", text: day }), el("ul", {}, conversations.map(listItem))));
  if (nodes.length === 0) nodes.push(el("p", { class: "nothing", text: "Conversations you begin appear here." }));
  if (!store.isKept()) nodes.push(el("p", { class: "nothing", text: "This browser keeps nothing: they end with the page." }));
  byId("conversations").replaceChildren(...nodes);
}

function listItem(conversation) {
  const isShown = conversation === state.conversation;
  const openIt = () => {
    open(conversation);
    location.hash = "#chat";
  };
  const remove = async () => {
    state.running.get(conversation.id)?.abort();
    await store.remove(conversation.id);
    if (isShown) newChat();
    else drawList();
  };
  return el("li", { class: isShown ? "is-shown" : undefined },
    el("button", { type: "button", class: "conversation", onclick: openIt, "aria-current": isShown ? "true" : undefined, title: conversation.title },
      state.running.has(conversation.id) && el("span", { class: "pulse small", "aria-label": "being answered" }),
      el("span", { text: conversation.title || "New chat" })),
    iconButton("trash", `Delete ${conversation.title || "the conversation"}`, remove));
}

function drawBar() {
  byId("chat-title").textContent = state.conversation.title || "New chat";
  const isRunning = state.running.has(state.conversation.id);
  const send = byId("send");
  send.replaceChildren(icon(isRunning ? "stop" : "send"));
  send.setAttribute("aria-label", isRunning ? "Stop" : "Send");
  send.title = isRunning ? "Stop (Esc)" : "Send (Enter)";
  send.classList.toggle("is-stop", isRunning);
  byId("open-settings").classList.toggle("has-changes", numChanged() > 0 || Boolean(state.conversation.system));
  drawContext();
}

function drawContext() {
  const box = byId("context");
  const usage = state.conversation.messages.findLast((message) => message.usage)?.usage;
  box.hidden = !usage;
  if (!usage) return;
  const total = state.facts.contextLen;
  box.textContent = total ? `${count(usage.total_tokens)} of ${count(total)} tokens` : `${count(usage.total_tokens)} tokens`;
  box.classList.toggle("is-tight", Boolean(total) && usage.total_tokens > 0.9 * total);
}

function showSettings() {
  const conversation = state.conversation;
  openSettings(conversation, {
    facts: state.facts,
    onSystem: (text) => {
      conversation.system = text;
      localStorage.setItem(LAST_SYSTEM, text);
      if (conversation.messages.length > 0) store.save(conversation);
      drawBar();
    },
    onChange: drawBar,
  });
}

async function addFiles(files) {
  for (const file of files ?? []) {
    if (!file.type.startsWith("image/")) continue;
    try {
      state.pictures.push(await pictureOf(file));
    } catch {
      toast(`${file.name} is no picture this browser can read.`);
    }
  }
  drawPictures();
}

function drawPictures() {
  const box = byId("attached");
  box.hidden = state.pictures.length === 0;
  box.replaceChildren(...state.pictures.map((url, index) =>
    el("div", { class: "thumb" },
      el("img", { src: url, alt: `Attached picture ${index + 1}` }),
      iconButton("close", `Remove picture ${index + 1}`, () => {
        state.pictures.splice(index, 1);
        drawPictures();
      }))));
}

function sizePrompt() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, 220)}px`;
}

function isNearEnd() {
  const box = byId("scroller");
  // Behind another view nothing has a height, and nobody scrolls.
  return box.clientHeight === 0 ? state.isFollowing : box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END_PX;
}

function onScroll() {
  state.isFollowing = isNearEnd();
  byId("to-end").hidden = state.isFollowing;
}

function toEnd(isAsked) {
  const box = byId("scroller");
  if (isAsked) state.isFollowing = true;
  box.scrollTop = box.scrollHeight;
  byId("to-end").hidden = true;
}
