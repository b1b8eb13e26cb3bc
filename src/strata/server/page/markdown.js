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

/** Shows `text` in `container`, keeping the blocks in front that have not changed. */
export function renderMarkdown(container, text) {
  const tokens = tokensOf(text);
  const before = container.strataBlocks ?? [];
  let same = 0;
  while (same < before.length && same < tokens.length && before[same].raw === tokens[same].raw) same += 1;
  for (const block of before.slice(same)) block.node?.remove();
  const blocks = before.slice(0, same);
  for (const token of tokens.slice(same)) {
    const node = blockOf(token, 0);
    if (node) container.append(node);
    blocks.push({ raw: token.raw, node });
  }
  container.strataBlocks = blocks;
}

function tokensOf(text) {
  try {
    return lexer(text, { gfm: true, breaks: false });
  } catch {
    return [{ type: "text", raw: text, text }];
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
