// Numbers as people read them. Every function takes null and gives a dash.

export const DASH = "–";

const isNone = (value) => value === null || value === undefined || Number.isNaN(value);

/** 12345 as 12,345. */
export function count(value) {
  return isNone(value) ? DASH : Math.round(value).toLocaleString("en-US");
}

/** A rate with as many digits as matter. */
export function rate(value) {
  if (isNone(value)) return DASH;
  if (value >= 100) return count(value);
  return value.toFixed(value >= 10 ? 1 : value === 0 ? 0 : 2);
}

/** A share from 0 to 1 as per cent. */
export function share(value, digits = 0) {
  return isNone(value) ? DASH : `${(100 * value).toFixed(digits)} %`;
}

/** Bytes of memory, in units of 1,024. */
export function bytes(value) {
  if (isNone(value)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(unit === 0 || value >= 100 ? 0 : 1)} ${units[unit]}`;
}

/** Bytes a second, in units of 1,000. */
export function bandwidth(value) {
  if (isNone(value)) return DASH;
  const units = ["B/s", "kB/s", "MB/s", "GB/s"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(unit === 0 || value >= 100 ? 0 : 1)} ${units[unit]}`;
}

/** Seconds as 840 ms, 2.31 s, 12.3 s, 3 min 05 s, 2 h 10 min. */
export function duration(value) {
  if (isNone(value)) return DASH;
  if (value < 0.9995) return `${Math.round(1000 * value)} ms`;
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** A moment as the clock shows it. */
export function clock(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** Which part of a list of conversations a moment belongs to. */
export function dayOf(milliseconds) {
  const start = new Date();
  start.setHours(0, 0, 0, 0);
  const days = Math.ceil((start - milliseconds) / 86400000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days <= 7 ? "Last seven days" : "Earlier";
}
