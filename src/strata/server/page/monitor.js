// The monitor: speed, where experts are found, the machine, and the requests. Asks once a second
// while it is looked at.

import { getJson } from "/page/api.js";
import { meter, sparkline, stackedBar } from "/page/charts.js";
import { byId, el } from "/page/dom.js";
import { DASH, bandwidth, bytes, clock, count, duration, rate, share } from "/page/format.js";

const EVERY_MS = 1000;
const OUTCOMES = { done: "Done", length: "Most tokens", stopped: "Stopped", refused: "Refused", error: "Error" };
const PHASES = { waiting: "Waiting", reading: "Reading", writing: "Writing" };
const STATES = { idle: "Idle", reading: "Reading a prompt", writing: "Writing" };
const TIERS = [
  ["vram", "VRAM", "Hits: the expert lay in a slot of the card"],
  ["ram", "RAM", "Misses that were in memory: computed there or copied"],
  ["disk", "Disk", "Misses that had to be read from the file"],
];

let timer = 0;
let showsAll = false;

/** Begins to ask and draw. */
export function showMonitor() {
  if (timer) return;
  tick();
}

/** Ends that. */
export function hideMonitor() {
  clearTimeout(timer);
  timer = 0;
}

async function tick() {
  timer = setTimeout(tick, EVERY_MS);
  if (document.hidden) return;
  try {
    draw(await getJson(`/v1/monitor${showsAll ? "?requests=all" : ""}`));
    byId("monitor-note").textContent = "";
    byId("monitor").classList.remove("is-stale");
  } catch (error) {
    byId("monitor-note").textContent = error.status === 401 ? "The key is needed." : "No answer; these are the last figures.";
    byId("monitor").classList.add("is-stale");
    if (byId("monitor").childElementCount === 0) byId("monitor").replaceChildren(el("p", { class: "nothing", text: error.message }));
    if (error.status === 401) hideMonitor();
  }
}

function draw(told) {
  const box = byId("monitor");
  const selection = getSelection();
  // What somebody has marked, to copy it, is not taken away.
  if (!selection.isCollapsed && box.contains(selection.anchorNode)) return;
  const scroller = box.querySelector(".table-scroll");
  const left = scroller?.scrollLeft ?? 0;
  // What has the focus is drawn again too, so it gets the focus back.
  const focused = box.contains(document.activeElement) ? document.activeElement.id : null;
  box.replaceChildren(
    el("div", { class: "hero" }, speedCard(told), tiersCard(told)),
    section("Graphics card", told.gpu.name ?? "none is read", cardTiles(told)),
    section("Machine", told.machine.cpu_name ?? told.machine.system, machineTiles(told)),
    section("Model in memory", bytes(sumOf(told.engine.memory_bytes)), memoryCard(told.engine.memory_bytes)),
    section("Conversations", conversationsNote(told.conversations), conversationTiles(told)),
    section("Requests", totalsLine(told.totals), requestTable(told)));
  const again = box.querySelector(".table-scroll");
  if (again) again.scrollLeft = left;
  if (focused) byId(focused)?.focus();
}

function section(title, note, ...content) {
  return el("section", { class: "block" }, el("header", {}, el("h2", { text: title }), el("span", { class: "note", text: note })), ...content);
}

function speedCard(told) {
  const speeds = told.history.tokens_per_s ?? [];
  const last = told.requests.find((request) => request.tokens_per_s !== null);
  const read = told.requests.find((request) => request.prompt_s > 0 && request.prompt_tokens - (request.reused_tokens ?? 0) > 0);
  const isIdle = told.live.state === "idle";
  const speed = isIdle ? last?.tokens_per_s : told.live.tokens_per_s;
  return el("article", { class: "card speed" },
    el("header", {}, el("span", { class: "label", text: isIdle ? "Speed of the last answer" : "Speed now" }),
      el("span", { class: `badge is-${told.live.state}`, text: STATES[told.live.state] ?? told.live.state })),
    el("p", { class: "figure" }, el("b", { text: rate(speed) }), " tokens/s"),
    sparkline(speeds),
    el("dl", { class: "facts" },
      fact("Prompt", read ? `${rate((read.prompt_tokens - (read.reused_tokens ?? 0)) / read.prompt_s)} tok/s` : DASH),
      fact("First token", duration(told.requests.find((request) => request.first_token_s !== null)?.first_token_s)),
      fact("Waiting", count(told.live.waiting)),
      told.totals.drafts_proposed > 0
        ? fact("Drafts kept", share(told.totals.drafts_accepted / told.totals.drafts_proposed))
        : fact("Up", duration(told.engine.uptime_s))));
}

function fact(name, value) {
  return el("div", {}, el("dt", { text: name }), el("dd", { text: value }));
}

function tiersCard(told) {
  const tiers = told.tiers;
  const total = TIERS.reduce((sum, [name]) => sum + (tiers[name] ?? 0), 0);
  const rows = TIERS.map(([name, label, help]) => {
    const value = tiers[name];
    const part = value === null || total === 0 ? null : value / total;
    const band = el("span", { class: `band tier-${name}` });
    band.style.width = `${100 * (part ?? 0)}%`;
    return el("div", { class: "tier", title: help },
      el("span", { class: "tier-name", text: label }),
      el("span", { class: "band-track" }, band),
      el("span", { class: "tier-share", text: share(part, 1) }),
      el("span", { class: "tier-count", text: count(value) }));
  });
  const rates = (told.history.hit_rate ?? []).filter((value) => value !== null);
  return el("article", { class: "card tiers" },
    el("header", {}, el("span", { class: "label", text: "Where experts were found" }),
      el("span", { class: "note", text: rates.length > 0 ? `${share(rates.at(-1), 1)} hits now` : "" })),
    rows,
    el("p", { class: "help", text: total > 0 ? missesLine(told.experts) : "Counted where a card holds a part of the experts." }));
}

/** What was done about experts that were not in VRAM. */
function missesLine({ computed, copied }) {
  const misses = (computed ?? 0) + (copied ?? 0);
  if (misses === 0) return "Experts looked up while writing, since the server began.";
  return `Of the misses ${share(computed / misses)} were computed by the processor, ${share(copied / misses)} copied to the card.`;
}

function tile(label, value, detail, values, { highest = null, part, heat } = {}) {
  return el("article", { class: `tile${value === DASH ? " is-none" : ""}${heat ? ` heat-${heat}` : ""}` },
    el("span", { class: "label", text: label }),
    el("p", { class: "tile-value" }, el("b", { text: value }), detail && el("span", { text: ` ${detail}` })),
    part === undefined ? sparkline(values ?? [], highest) : [sparkline(values ?? [], highest), meter(part, `${label}: ${share(part)}`)]);
}

const ofTotal = (used, total) => (used === null || !total ? null : used / total);

function cardTiles(told) {
  const { gpu, gpus, history } = told;
  const tiles = [
    tile("Load", share(gpu.load), null, history.gpu_load, { highest: 1 }),
    tile("VRAM", bytes(gpu.mem_used), gpu.mem_total === null ? null : `of ${bytes(gpu.mem_total)}`, history.gpu_mem_used,
      { highest: gpu.mem_total, part: ofTotal(gpu.mem_used, gpu.mem_total) }),
    tile("Temperature", gpu.temperature_c === null ? DASH : `${Math.round(gpu.temperature_c)} °C`, null, history.gpu_temperature_c,
      { highest: 100, heat: gpu.temperature_c > 85 ? "high" : null }),
    tile("Power", gpu.power_w === null ? DASH : `${Math.round(gpu.power_w)} W`, gpu.power_limit_w === null ? null : `of ${Math.round(gpu.power_limit_w)} W`,
      history.gpu_power_w, { highest: gpu.power_limit_w }),
    tile("Link, received", bandwidth(gpu.received_bytes_per_s), linkOf(gpus), history.gpu_received_bytes_per_s),
  ];
  return [el("div", { class: "tiles" }, tiles), gpus.length > 1 ? cardTable(gpus) : null];
}

function linkOf(gpus) {
  const card = gpus[0];
  if (gpus.length !== 1 || !card.link_generation) return null;
  return `PCIe ${card.link_generation} ×${card.link_width}`;
}

function cardTable(gpus) {
  const rows = gpus.map((card) => [card.index, card.name ?? DASH, share(card.load), `${bytes(card.mem_used)} of ${bytes(card.mem_total)}`,
    card.temperature_c === null ? DASH : `${card.temperature_c} °C`, card.power_w === null ? DASH : `${Math.round(card.power_w)} W`]);
  return table(["Card", "Name", "Load", "VRAM", "Temperature", "Power"], rows, "Each card");
}

function machineTiles(told) {
  const { host, machine, history } = told;
  return el("div", { class: "tiles" },
    tile("Processor", share(host.cpu_load), machine.threads ? `of ${machine.threads} threads` : null, history.cpu_load, { highest: 1 }),
    tile("RAM", bytes(host.ram_used), host.ram_total === null ? null : `of ${bytes(host.ram_total)}`, history.ram_used,
      { highest: host.ram_total, part: ofTotal(host.ram_used, host.ram_total) }),
    tile("Engine", bytes(host.engine_bytes), "resident", history.engine_bytes),
    tile("Disk, read", bandwidth(host.disk_read_bytes_per_s), null, history.disk_read_bytes_per_s),
    tile("Disk, written", bandwidth(host.disk_written_bytes_per_s), null, history.disk_written_bytes_per_s));
}

const sumOf = (parts) => (parts ? Object.values(parts).reduce((sum, value) => sum + value, 0) : null);

function memoryCard(parts) {
  if (!parts) return el("p", { class: "nothing", text: "Told once the model is loaded." });
  const sorted = Object.entries(parts).filter(([, value]) => value > 0).sort((one, other) => other[1] - one[1]);
  const named = sorted.map(([name, value], index) => ({ name, value, text: bytes(value), class: `part-${index % 6}` }));
  return el("div", { class: "card memory" },
    stackedBar(named, named.map((part) => `${part.name} ${part.text}`).join(", ")),
    el("ul", { class: "legend" }, named.map((part) =>
      el("li", {}, el("span", { class: `swatch ${part.class}` }), el("span", { text: part.name }), el("b", { text: part.text })))));
}

function conversationsNote(kept) {
  const continued = ["live", "parked", "disk"].reduce((sum, place) => sum + (kept[`from_${place}`] ?? 0), 0);
  return continued > 0 ? `${count(continued)} continued without reading them again` : "kept so that they need not be read again";
}

function conversationTiles({ conversations: kept, engine, requests }) {
  const last = requests.find((request) => request.outcome !== "refused");
  const value = (name) => count(kept[name] ?? null);
  return el("div", { class: "tiles plain" },
    plainTile("Context in use", count(last ? last.prompt_tokens + last.output_tokens : null), engine.context_len ? `of ${count(engine.context_len)}` : null),
    plainTile("Continued, live", value("from_live")),
    plainTile("From memory", value("from_parked"), kept.parked === undefined ? null : `${count(kept.parked)} parked, ${bytes(kept.parked_bytes)}`),
    plainTile("From disk", value("from_disk"), kept.files_bytes === undefined ? null : `${bytes(kept.files_bytes)} kept`),
    plainTile("Let go", value("evicted")));
}

function plainTile(label, value, detail) {
  return el("article", { class: `tile${value === DASH ? " is-none" : ""}` },
    el("span", { class: "label", text: label }),
    el("p", { class: "tile-value" }, el("b", { text: value }), detail && el("span", { text: ` ${detail}` })));
}

function totalsLine(totals) {
  const answered = totals.requests.done + totals.requests.length;
  const reused = totals.prompt_tokens > 0 ? `, ${share(totals.reused_tokens / totals.prompt_tokens)} of prompts reused` : "";
  return `${count(answered)} answered, ${count(totals.output_tokens)} tokens written${reused}`;
}

function requestTable(told) {
  const rows = [...told.live.requests.toReversed(), ...told.requests];
  if (rows.length === 0) return el("p", { class: "nothing", text: "Nothing was asked yet. Requests of every client appear here." });
  const head = ["Time", "Status", "Prompt", "Reused", "Output", "Tok/s", "Hit rate", "Duration"];
  const cells = rows.map((row) => [clock(row.time), statusOf(row), count(row.prompt_tokens), count(row.reused_tokens), count(row.output_tokens),
    rate(row.tokens_per_s), share(row.hit_rate, 1), duration(row.duration_s)]);
  const more = el("button", {
    id: "show-all", type: "button", class: "button quiet", text: showsAll ? "Show the last ones" : "Show all that are kept",
    onclick: () => {
      showsAll = !showsAll;
      hideMonitor();
      tick();
    },
  });
  return [table(head, cells, "Requests"), el("div", { class: "row" }, more)];
}

function statusOf(row) {
  if (row.outcome !== null) return el("span", { class: `status is-${row.outcome}`, text: OUTCOMES[row.outcome] });
  const detail = row.phase === "reading" && row.prompt_tokens > 0 ? ` ${share(row.read_tokens / row.prompt_tokens)}` : "";
  return el("span", { class: `status is-${row.phase}`, text: PHASES[row.phase] + detail });
}

function table(head, rows, label) {
  return el("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": label },
    el("table", { class: "figures" },
      el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col", text })))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, index) =>
        el("td", { "data-label": head[index] }, typeof cell === "string" ? cell : cell instanceof Node ? cell : String(cell))))))));
}
