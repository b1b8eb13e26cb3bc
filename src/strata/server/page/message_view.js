// How a message looks. A view is made once and updated while its message grows.

import { copyButton, el, icon, iconButton } from "/page/dom.js";
import { DASH, count, duration, rate, share } from "/page/format.js";
import { codeBlock, renderMarkdown } from "/page/markdown.js";

/** What a person said. `actions` are edit and remove-pictures of the chat. */
export function userView(message, actions) {
  const bubble = el("div", { class: "bubble", text: message.content });
  const pictures = (message.pictures ?? []).map((url, index) => el("img", { src: url, alt: `Picture ${index + 1} you attached` }));
  const tools = el("div", { class: "message-tools" },
    copyButton(() => message.content, "Copy the message"),
    iconButton("pencil", "Edit the message", () => edit()));
  const node = el("article", { class: "message user", "aria-label": "You" },
    pictures.length > 0 && el("div", { class: "pictures" }, pictures),
    el("div", { class: "bubble-row" }, tools, message.content && bubble));

  function edit() {
    const area = el("textarea", { class: "edit", value: message.content, "aria-label": "Edit your message" });
    const form = el("form", { class: "edit-form" }, area,
      el("div", { class: "row end" },
        el("button", { type: "button", class: "button quiet", text: "Cancel", onclick: () => form.replaceWith(...shown) }),
        el("button", { type: "submit", class: "button", text: "Send again" })));
    const shown = [...node.children];
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (area.value.trim()) actions.edit(message, area.value.trim());
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        form.replaceWith(...shown);
      }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    node.replaceChildren(form);
    area.style.height = `${Math.min(400, area.scrollHeight + 4)}px`;
    area.focus();
  }
  return { node, update: () => undefined };
}

/** What the model answered. */
export function answerView(message, actions) {
  const thinking = thinkingPart(message);
  const body = el("div", { class: "prose" });
  const calls = el("div", { class: "calls" });
  const wait = el("div", { class: "wait" });
  const foot = el("footer", { class: "answer-foot" });
  const node = el("article", { class: "message answer", "aria-label": "Answer" }, thinking.node, body, calls, wait, foot);
  let shownStatus = null;

  function update() {
    const isOpen = message.status === "waiting" || message.status === "writing";
    node.setAttribute("aria-busy", String(isOpen));
    node.classList.toggle("is-writing", isOpen);
    thinking.update();
    renderMarkdown(body, message.content, !isOpen);
    showWait(wait, message);
    if (message.calls.length > 0) showCalls(calls, message, isOpen, actions);
    const status = `${message.status} ${message.isLast} ${message.calls.some((call) => call.result !== undefined)}`;
    if (!isOpen && shownStatus !== status) foot.replaceChildren(...footOf(message, actions));
    if (isOpen) foot.replaceChildren();
    shownStatus = status;
  }
  return { node, update };
}

function thinkingPart(message) {
  let wasOpened = false; // since there is nothing else to see
  const label = el("span");
  const text = el("div", { class: "thought-text" });
  const node = el("details", { class: "thought", hidden: true }, el("summary", {}, icon("thought"), label, icon("chevron")), text);
  return {
    node,
    update() {
      node.hidden = message.thinking.trim() === "";
      const isOver = message.thinkingMs !== undefined;
      const isAll = isOver && message.content === "" && message.calls.length === 0;
      if (isAll && message.status !== "writing" && !wasOpened) node.open = wasOpened = true;
      node.classList.toggle("is-thinking", !isOver);
      label.textContent = isOver ? `Thought for ${message.thinkingMs < 1000 ? "a moment" : duration(message.thinkingMs / 1000)}` : "Thinking";
      if (text.textContent !== message.thinking) text.textContent = message.thinking.trim();
    },
  };
}

function showWait(wait, message) {
  const isWaiting = message.status === "waiting";
  wait.hidden = !isWaiting;
  if (!isWaiting) return;
  const progress = message.progress;
  if (progress && progress.total > 512 && progress.processed < progress.total) {
    wait.replaceChildren(
      el("progress", { max: progress.total, value: progress.processed, "aria-label": "Prompt read" }),
      el("span", { text: `Reading ${count(progress.processed)} of ${count(progress.total)} tokens` }));
  } else if (!wait.querySelector(".pulse")) {
    wait.replaceChildren(el("span", { class: "pulse", role: "img", "aria-label": "Waiting for the answer" }));
  }
}

function showCalls(box, message, isOpen, actions) {
  const wanted = JSON.stringify([message.calls, isOpen, message.isLast]);
  if (box.strataShown === wanted) return;
  box.strataShown = wanted;
  box.replaceChildren(...message.calls.filter(Boolean).map((call) => callCard(call)));
  const isAsking = !isOpen && message.isLast && message.calls.every((call) => call.result === undefined);
  if (isAsking && message.status !== "error") box.append(resultForm(message, actions));
}

function callCard(call) {
  return el("section", { class: "call", "aria-label": `Call of ${call.name}` },
    el("div", { class: "call-head" }, icon("tool"), el("span", { text: "Calls " }), el("code", { text: call.name })),
    codeBlock(indented(call.arguments), "json"),
    call.result !== undefined && el("div", { class: "call-result" }, el("span", { class: "label", text: "Result" }), el("pre", { text: call.result })));
}

function resultForm(message, actions) {
  const areas = message.calls.map((call) =>
    el("label", { class: "result-field" }, el("span", { text: `Result of ${call.name}` }), el("textarea", { rows: 2, required: true, class: "mono" })));
  return el("form", {
    class: "result-form",
    onsubmit: (event) => {
      event.preventDefault();
      actions.giveResults(message, areas.map((area) => area.querySelector("textarea").value));
    },
  }, areas, el("div", { class: "row end" }, el("button", { type: "submit", class: "button", text: message.calls.length > 1 ? "Send the results" : "Send the result" })));
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function footOf(message, actions) {
  const parts = [];
  if (message.status === "error") parts.push(errorNotice(message, actions));
  const tools = el("div", { class: "message-tools" });
  if (message.content) tools.append(copyButton(() => message.content, "Copy the answer"));
  if (message.isLast) tools.append(iconButton("redo", "Answer again", () => actions.regenerate()));
  if (message.isLast && message.versions?.length > 1) tools.append(versionsOf(message, actions));
  tools.append(statsOf(message));
  parts.push(tools);
  return parts;
}

function versionsOf(message, actions) {
  const { version, versions } = message;
  const step = (by, label) => iconButton("chevron", label, () => actions.showVersion(message, version + by),
    { class: by < 0 ? "icon-button is-back" : "icon-button", disabled: versions[version + by] === undefined });
  return el("span", { class: "versions" }, step(-1, "Earlier version"), `${version + 1} of ${versions.length}`, step(1, "Later version"));
}

const ENDINGS = { stopped: "Stopped", length: "Cut at the longest answer" };

function statsOf(message) {
  const told = [];
  if (ENDINGS[message.status]) told.push(el("span", { class: "ending", text: ENDINGS[message.status] }));
  const timings = message.timings;
  if (timings) {
    told.push(el("span", { text: `${rate(timings.predicted_per_second)} tok/s` }));
    told.push(el("span", { text: `${count(timings.predicted_n)} tokens` }));
    const prompt = timings.prompt_n + timings.cache_n;
    told.push(el("span", { title: "Prompt tokens that did not have to be read again", text: `${share(prompt ? timings.cache_n / prompt : null)} reused` }));
    told.push(el("span", { title: "Reading and writing", text: duration((timings.prompt_ms + timings.predicted_ms) / 1000) }));
  }
  return el("span", { class: "stats" }, told.length > 0 ? told : DASH);
}

function errorNotice(message, actions) {
  const { text, hint, button, isMild } = wordsOf(message.error, actions);
  return el("div", { class: isMild ? "notice is-mild" : "notice", role: "alert" },
    el("p", {}, el("strong", { text }), hint && el("span", { text: ` ${hint}` })),
    el("div", { class: "row" }, button));
}

function wordsOf(error, actions) {
  const retry = el("button", { type: "button", class: "button", text: "Try again", onclick: () => actions.regenerate() });
  if (/\bimage\b/.test(error.message) && error.status === 400) {
    const without = el("button", { type: "button", class: "button", text: "Send without the picture", onclick: () => actions.dropPictures() });
    return { text: "This model reads text, not pictures.", hint: "Your message is still here.", button: without, isMild: true };
  }
  // Behind the first line the server says what one might try.
  const [first, ...rest] = error.message.split("\n");
  return { text: first.charAt(0).toUpperCase() + first.slice(1), hint: rest.join(" ").trim(), button: retry };
}
