// Requests to this server: the key, errors with the server's own words, and streams of events.

const KEY = "strata.key";

let askForKey = async () => null;

/** What the server answered when it did not do what was asked. */
export class ApiError extends Error {
  constructor(status, message, field = null) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

/** Who asks the person for the key when the server wants one; gives true when there is a new one. */
export function onKeyWanted(ask) {
  askForKey = ask;
}

export function storedKey() {
  return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
}

/** Keeps the key, for this tab or on this device. */
export function storeKey(key, isKept) {
  forgetKey();
  (isKept ? localStorage : sessionStorage).setItem(KEY, key);
}

export function forgetKey() {
  sessionStorage.removeItem(KEY);
  localStorage.removeItem(KEY);
}

/** A response that is fine. Asks for the key once if it is missing or wrong. */
export async function request(path, options = {}) {
  for (let round = 0; ; round += 1) {
    const headers = { ...(options.headers ?? {}) };
    const key = storedKey();
    if (key) headers.authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server does not answer. Is it still running?");
    }
    if (response.ok) return response;
    if (response.status === 401 && round < 3 && !options.isQuiet && (await askForKey(key !== null))) continue;
    throw await errorOf(response);
  }
}

export async function getJson(path, options = {}) {
  return (await request(path, options)).json();
}

async function errorOf(response) {
  let told = null;
  try {
    told = (await response.json()).error;
  } catch {
    // Not this server's words; the status has to do.
  }
  return new ApiError(response.status, told?.message ?? `The server answered ${response.status}.`, told?.param ?? null);
}

/** Events of a streamed chat completion, as objects. */
export async function* streamChat(body, signal) {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(brokenOff);
      if (done) break;
      held += decoder.decode(value, { stream: true });
      const frames = held.split("\n\n");
      held = frames.pop();
      for (const frame of frames) {
        const event = eventOf(frame);
        if (event === null) continue;
        if (event === "[DONE]") return;
        if (event.error) throw new ApiError(event.error.code === "engine_died" ? 503 : 500, event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
  brokenOff();
}

/** Browsers say it each in its own words, none of which says what happened. */
function brokenOff(error) {
  if (error?.name === "AbortError") throw error;
  throw new ApiError(0, "The answer broke off: the connection was lost.");
}

function eventOf(frame) {
  const lines = frame.split("\n").filter((line) => line.startsWith("data:"));
  if (lines.length === 0) return null;
  const text = lines.map((line) => line.slice(5).trimStart()).join("\n");
  return text === "[DONE]" ? text : JSON.parse(text);
}

/** Whether the server is ready, and how far it has loaded. Never throws. */
export async function health() {
  try {
    const response = await fetch("/health", { cache: "no-store" });
    const told = await response.json();
    return response.ok ? { state: "ready" } : { state: told.status ?? "loading", done: told.loaded_bytes, total: told.total_bytes };
  } catch {
    return { state: "offline" };
  }
}
