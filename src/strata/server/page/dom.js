// Elements, icons and small parts that every view uses. Text is always text: nothing here, or
// anywhere on this page, turns a string into HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `on…` props are functions, `text` is its text, the others are attributes. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An SVG element; attributes only. */
export function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

export const byId = (id) => document.getElementById(id);

// Strokes on a field of 24 by 24.
const ICONS = {
  about: ["M12 11v5.5", "M12 7.6v.2", "M12 3.5a8.5 8.5 0 1 0 0 17a8.5 8.5 0 0 0 0-17z"],
  attach: ["M4 6.5h16v11H4z", "M4 15l4.5-4 4 3.5 3-2.5 4.5 4", "M15.2 9.4v.1"],
  chat: ["M4.5 5.5h15v10.5h-8.5l-4 3.5v-3.5h-2.5z"],
  check: ["M5 12.5l4.5 4.5L19 7"],
  chevron: ["M9 6l6 6-6 6"],
  close: ["M6 6l12 12", "M18 6L6 18"],
  copy: ["M9 9h10.5v10.5H9z", "M15 9V4.5H4.5V15H9"],
  down: ["M12 5v13", "M6.5 12.5L12 18l5.5-5.5"],
  dark: ["M19.5 14.2A8 8 0 0 1 9.8 4.5a8 8 0 1 0 9.7 9.7z"],
  light: ["M12 8a4 4 0 1 0 0 8a4 4 0 0 0 0-8z", "M12 2.5v2", "M12 19.5v2", "M2.5 12h2", "M19.5 12h2",
    "M5.3 5.3l1.4 1.4", "M17.3 17.3l1.4 1.4", "M5.3 18.7l1.4-1.4", "M17.3 6.7l1.4-1.4"],
  menu: ["M4 7h16", "M4 12h16", "M4 17h10"],
  monitor: ["M3 13h4l2.5-7 4.5 12 2.5-7 1 2h3.5"],
  pencil: ["M4.5 19.5l1-4.5L16 4.5l3.5 3.5L9 18.5z", "M13.5 7l3.5 3.5"],
  plus: ["M12 5v14", "M5 12h14"],
  redo: ["M19 12a7 7 0 1 1-2.3-5.2", "M19.5 3.5v4.5H15"],
  send: ["M12 19V5.5", "M6 11.5l6-6 6 6"],
  sliders: ["M4 8h9", "M17 8h3", "M15 6v4", "M4 16h3", "M11 16h9", "M9 14v4"],
  stop: ["M7.5 7.5h9v9h-9z"],
  thought: ["M12 4a6 6 0 0 0-3.5 10.9V17h7v-2.1A6 6 0 0 0 12 4z", "M9.5 20h5"],
  tool: ["M14.5 6.5a4 4 0 0 0-5.2 5.2L4 17v3h3l5.3-5.3a4 4 0 0 0 5.2-5.2l-2.5 2.5-2.5-.5-.5-2.5z"],
  trash: ["M5 7h14", "M9.5 7V4.5h5V7", "M7 7l.8 12.5h8.4L17 7"],
};

/** One icon by name; hidden from screen readers, for its button has a name. */
export function icon(name) {
  const strokes = ICONS[name].map((d) => svg("path", { d }));
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, ...strokes);
}

/** A button with an icon and a name that is shown on hover. */
export function iconButton(name, label, onclick, props = {}) {
  return el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...props },
    icon(name));
}

/** Says something for a moment. */
export function toast(text) {
  const node = el("div", { class: "toast", text });
  byId("toasts").append(node);
  setTimeout(() => node.remove(), 2600);
}

/** Puts text on the clipboard; also where the page has no secure origin. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { value: text, class: "visually-hidden", "aria-hidden": "true" });
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

/** A button that copies what `read` gives, and shows that it did. */
export function copyButton(read, label = "Copy") {
  const button = iconButton("copy", label, async () => {
    const isDone = await copyText(read());
    button.replaceChildren(icon(isDone ? "check" : "close"));
    button.classList.toggle("done", isDone);
    if (!isDone) toast("The browser does not let this page copy.");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.classList.remove("done");
    }, 1400);
  });
  return button;
}

/** Opens a dialog whose outside closes it. */
export function openDialog(dialog) {
  if (dialog.open) return;
  dialog.showModal();
  dialog.onclick = (event) => {
    if (event.target === dialog) dialog.close();
  };
}
