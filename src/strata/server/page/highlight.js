// Colours for code. The library gives a tree of scopes, which becomes spans here. A language is
// loaded when its first code is met, and the code stands there plain until then.

import hljs from "/page/vendor/highlight/core.min.js";
import { el } from "/page/dom.js";

const SHIPPED = new Set(["python", "javascript", "typescript", "bash", "json", "cpp", "c", "rust", "go", "java", "sql",
  "xml", "css", "yaml", "diff", "markdown", "ini", "csharp"]);
const ALIASES = new Map(Object.entries({ py: "python", py3: "python", js: "javascript", mjs: "javascript", jsx: "javascript", node: "javascript",
  ts: "typescript", tsx: "typescript", sh: "bash", shell: "bash", zsh: "bash", console: "bash", "c++": "cpp", cc: "cpp",
  hpp: "cpp", h: "c", rs: "rust", golang: "go", html: "xml", svg: "xml", yml: "yaml", patch: "diff", md: "markdown",
  toml: "ini", cfg: "ini", cs: "csharp", "c#": "csharp", jsonc: "json", json5: "json", postgresql: "sql", sqlite: "sql" }));
// Colouring is done again with every word that streams in.
const MAX_CHARS = 20000;

const loading = new Map();

/** Colours `code`, an element that holds `text`, now or when the language is there. */
export function paintCode(code, text, name) {
  const lower = name.toLowerCase();
  const language = ALIASES.get(lower) ?? lower;
  if (!SHIPPED.has(language) || text.length > MAX_CHARS) return;
  if (hljs.getLanguage(language)) paint(code, text, language);
  else load(language).then(() => paint(code, text, language), () => undefined);
}

function load(language) {
  if (!loading.has(language)) {
    const whenLoaded = import(`/page/vendor/highlight/languages/${language}.min.js`)
      .then((module) => hljs.registerLanguage(language, module.default));
    loading.set(language, whenLoaded);
  }
  return loading.get(language);
}

function paint(code, text, language) {
  const tree = hljs.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode;
  code.replaceChildren(...tree.children.map(spanOf));
}

function spanOf(node) {
  if (typeof node === "string") return node;
  const scope = (node.scope ?? "").split(".")[0].replace(/[^\w-]/g, "");
  return el("span", { class: scope ? `hl-${scope}` : undefined }, node.children.map(spanOf));
}
