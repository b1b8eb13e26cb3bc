// Markdown to elements. The text is a model's and may be hostile: it is parsed to tokens, and each
// kind of token makes one of the elements below. No HTML is ever parsed; HTML in the text is shown
// as it was written. Links lead to web and mail addresses only, pictures are named and not loaded.

import { copyButton, el } from "/page/dom.js";
import { paintCode } from "/page/highlight.js";
import { lexer } from "/page/vendor/marked.esm.js";

const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);
const ENTITIES = new Map([["amp", "&"], ["lt", "<"], ["gt", ">"], ["quot", '"'], ["apos", "'"], ["nbsp", "\u00a0"],
  ["hellip", "…"], ["mdash", "—"], ["ndash", "–"], ["copy", "©"]]);
const ALIGNED = { left: "start", center: "center", right: "end" };
// Deeper nesting than any person writes; a browser's own recursion is bounded too.
const MAX_DEPTH = 40;

// Blocks at the end that more text may still change: a line below makes a heading or a table.
const OPEN_BLOCKS = 3;
// Some texts take the parser very long. Those are read less often, and in the end not at all.
const SLOW_MS = 25;
const TOO_SLOW_MS = 300;

/** Shows `text`, which only grows, in `container`. Reads the end of it alone, where it can have changed. */
export function renderMarkdown(container, text, isWhole = true) {
  const state = (container.strataMarkdown ??= { blocks: [], isPlain: false, notBefore: 0 });
  const whole = text.replace(/\r\n?/g, "\n");
  if (!isWhole && performance.now() < state.notBefore) return;
  const closed = state.isPlain ? state.blocks.length - 1 : Math.max(0, state.blocks.length - OPEN_BLOCKS);
  const start = lengthOf(state.blocks.slice(0, closed));
  const begun = performance.now();
  const tokens = state.isPlain ? [plain(whole.slice(start))] : tokensOf(whole.slice(start));
  const cost = performance.now() - begun;
  state.notBefore = cost > SLOW_MS ? performance.now() + 10 * cost : 0;
  if (cost > TOO_SLOW_MS && !state.isPlain) {
    state.isPlain = true;
    show(container, state, closed, [plain(whole.slice(start))]);
    return;
  }
  show(container, state, closed, tokens);
}

/** Puts `tokens` behind the first `closed` blocks; what is there already and equal stays. */
function show(container, state, closed, tokens) {
  const before = state.blocks;
  let same = 0;
  while (closed + same < before.length && same < tokens.length && before[closed + same].raw === tokens[same].raw) same += 1;
  for (const block of before.slice(closed + same)) block.node?.remove();
  state.blocks = before.slice(0, closed + same);
  for (const token of tokens.slice(same)) {
    const node = blockOf(token, 0);
    if (node) container.append(node);
    state.blocks.push({ raw: token.raw, node });
  }
}

const lengthOf = (blocks) => blocks.reduce((sum, block) => sum + block.raw.length, 0);

const plain = (text) => ({ type: "html", raw: text });

function tokensOf(text) {
  try {
    const tokens = lexer(text, { gfm: true, breaks: false });
    // Where the parser left something out, the place of the next text would not be known.
    return lengthOf(tokens) === text.length ? tokens : [plain(text)];
  } catch {
    return [plain(text)];
  }
}

function blockOf(token, depth) {
  if (depth > MAX_DEPTH) return el("p", { text: token.raw });
  const inner = () => (token.tokens ?? []).map((part) => blockOf(part, depth + 1));
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      // The page has its own first heading.
      return el(`h${Math.min(6, token.depth + 1)}`, {}, inlines(token.tokens, depth));
    case "paragraph":
      return el("p", {}, inlines(token.tokens, depth));
    case "code":
      return codeBlock(token.text, (token.lang ?? "").trim().split(/\s+/)[0]);
    case "blockquote":
      return el("blockquote", {}, inner());
    case "hr":
      return el("hr");
    case "list":
      return listOf(token, depth);
    case "table":
      return tableOf(token, depth);
    case "html":
      return el("p", { class: "literal", text: token.raw.trimEnd() });
    case "text":
      return el("p", {}, token.tokens ? inlines(token.tokens, depth) : decoded(token.text));
    default:
      return el("p", { text: token.raw });
  }
}

function listOf(token, depth) {
  const items = token.items.map((item) => {
    const parts = item.tokens
      .filter((part) => part.type !== "checkbox")
      // In a tight list the text of an item is no paragraph.
      .map((part) => (part.type === "text" ? inlines(part.tokens ?? [part], depth + 1) : blockOf(part, depth + 1)));
    const box = item.task && el("input", { type: "checkbox", disabled: true, checked: item.checked, "aria-label": item.checked ? "done" : "open" });
    return el("li", { class: item.task ? "task" : undefined }, box, parts.flat());
  });
  const start = token.ordered && token.start !== 1 ? Number(token.start) : undefined;
  return el(token.ordered ? "ol" : "ul", { start }, items);
}

function tableOf(token, depth) {
  const cell = (tag) => (item) =>
    el(tag, { class: item.align ? `align-${ALIGNED[item.align]}` : undefined }, inlines(item.tokens, depth));
  return el("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {},
      el("thead", {}, el("tr", {}, token.header.map(cell("th")))),
      el("tbody", {}, token.rows.map((row) => el("tr", {}, row.map(cell("td")))))));
}

function inlines(tokens, depth) {
  return (tokens ?? []).map((token) => inlineOf(token, depth + 1));
}

function inlineOf(token, depth) {
  if (depth > MAX_DEPTH) return token.raw;
  const inner = () => inlines(token.tokens, depth);
  switch (token.type) {
    case "text":
      return token.tokens ? inner() : decoded(token.text);
    case "escape":
      return token.text;
    case "strong":
    case "em":
    case "del":
      return el(token.type, {}, inner());
    case "codespan":
      return el("code", { text: token.text });
    case "br":
      return el("br");
    case "link":
      return linkOf(token.href, inner());
    case "image":
      return linkOf(token.href, [`Picture: ${decoded(token.text) || "without a name"}`], "picture");
    case "html":
      return /^<br\s*\/?>$/i.test(token.raw) ? el("br") : token.raw;
    default:
      return token.raw;
  }
}

/** The address as it may be followed, or null. */
export function safeAddress(href) {
  try {
    // No base: a relative address would lead into this server.
    const address = new URL(decoded(href));
    return PROTOCOLS.has(address.protocol) ? address.href : null;
  } catch {
    return null;
  }
}

function linkOf(href, children, kind) {
  const address = safeAddress(href);
  if (address === null) return el("span", { class: kind ?? "no-link", title: "This address is not followed" }, children);
  return el("a", { href: address, title: address, class: kind, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

function decoded(text) {
  return text.replace(/&(#x[0-9a-f]{1,6}|#\d{1,7}|[a-z]+);/gi, (whole, name) => {
    if (name[0] !== "#") return ENTITIES.get(name.toLowerCase()) ?? whole;
    const code = name[1].toLowerCase() === "x" ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
  });
}

/** A block of code with its language and a button that copies it. */
export function codeBlock(text, language = "") {
  const code = el("code", { text });
  paintCode(code, text, language);
  return el("div", { class: "code" },
    el("div", { class: "code-head" }, el("span", { text: language || "text" }), copyButton(() => text, "Copy the code")),
    el("pre", { tabindex: "0" }, code));
}
