// Small charts of the last minute, and bars of parts. Drawn as SVG; colours come from the styles.

import { el, svg } from "/page/dom.js";

const WIDTH = 240;
const HEIGHT = 44;

/** A line over the last minute; gaps where there is no value. `highest` fixes the scale. */
export function sparkline(values, highest = null) {
  const chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "spark", preserveAspectRatio: "none", "aria-hidden": "true" });
  const told = values.filter((value) => value !== null && value !== undefined);
  if (told.length < 2) return chart;
  const top = highest ?? (Math.max(...told) * 1.15 || 1);
  const x = (index) => (index * WIDTH) / (values.length - 1);
  const y = (value) => HEIGHT - 2 - (Math.min(value, top) / top) * (HEIGHT - 6);
  for (const run of runsOf(values)) {
    const points = run.map(([index, value]) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`);
    const line = `M${points.join("L")}`;
    if (run.length > 1) {
      chart.append(svg("path", { class: "spark-area", d: `${line}L${x(run.at(-1)[0]).toFixed(1)} ${HEIGHT}L${x(run[0][0]).toFixed(1)} ${HEIGHT}Z` }));
    }
    chart.append(svg("path", { class: "spark-line", d: line, "vector-effect": "non-scaling-stroke" }));
  }
  return chart;
}

/** Stretches of neighbours that have a value, as pairs of index and value. */
function runsOf(values) {
  const runs = [];
  values.forEach((value, index) => {
    if (value === null || value === undefined) return;
    const last = runs.at(-1);
    if (last && last.at(-1)[0] === index - 1) last.push([index, value]);
    else runs.push([[index, value]]);
  });
  return runs;
}

/** A bar of how full something is, from 0 to 1; empty for null. */
export function meter(share, label) {
  const fill = el("span");
  fill.style.width = `${100 * Math.min(1, Math.max(0, share ?? 0))}%`;
  return el("div", { class: "meter", role: "img", "aria-label": label }, fill);
}

/** Parts of a whole side by side, each with its class. */
export function stackedBar(parts, label) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  const spans = parts.map((part) => {
    const span = el("span", { class: part.class, title: `${part.name}: ${part.text}` });
    span.style.flexGrow = String(total > 0 ? part.value / total : 0);
    return span;
  });
  return el("div", { class: "stacked", role: "img", "aria-label": label }, spans);
}
