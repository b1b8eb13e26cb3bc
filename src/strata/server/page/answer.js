// One answer: the body of the request it takes, and the message that grows while it streams.

import { streamChat } from "/page/api.js";
import { samplingFields } from "/page/sampling.js";

/** A message of the assistant before its first token. */
export function newAnswer() {
  return { role: "assistant", content: "", thinking: "", calls: [], status: "waiting", begun: Date.now() };
}

// What one version of an answer consists of.
const PARTS = ["content", "thinking", "thinkingMs", "calls", "status", "timings", "usage", "error", "begun"];

/** A message that answers again what `before` answered, and keeps that as a version. */
export function anotherAnswer(before) {
  const answer = newAnswer();
  if (!before || (before.status === "error" && before.content === "")) return answer;
  answer.versions = before.versions ?? [];
  answer.versions[before.version ?? 0] = partsOf(before);
  answer.version = answer.versions.length;
  answer.versions.push(null); // this one, whose parts are in the message while it is shown
  return answer;
}

/** Shows another version of an answer. */
export function switchVersion(message, version) {
  message.versions[message.version] = partsOf(message);
  for (const name of PARTS) delete message[name];
  Object.assign(message, message.versions[version]);
  message.version = version;
}

const partsOf = (message) => Object.fromEntries(PARTS.filter((name) => message[name] !== undefined).map((name) => [name, message[name]]));

/**
 * Asks for the next message of a conversation. Changes `answer` and calls `onChange` as it grows.
 * `findModel` gives the model's name, which a page that was just opened does not know yet.
 */
export async function fetchAnswer(conversation, answer, findModel, signal, onChange) {
  const body = {
    messages: messagesOf(conversation, answer),
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    ...samplingFields(),
  };
  try {
    body.model = await findModel();
    for await (const event of streamChat(body, signal)) {
      take(answer, event);
      onChange();
    }
    if (answer.status === "writing" || answer.status === "waiting") answer.status = "done";
  } catch (error) {
    const isStopped = error.name === "AbortError";
    answer.status = isStopped ? "stopped" : "error";
    if (!isStopped) answer.error = { message: error.message, status: error.status ?? 0 };
  }
  if (answer.thinking && answer.thinkingMs === undefined) answer.thinkingMs = Date.now() - answer.thinkingBegun;
  delete answer.progress;
  onChange();
}

/** The conversation as the server takes it, up to `end`. */
export function messagesOf(conversation, end = null) {
  const told = [];
  if (conversation.system?.trim()) told.push({ role: "system", content: conversation.system });
  for (const message of conversation.messages) {
    if (message === end) break;
    if (message.role === "user") told.push({ role: "user", content: contentOf(message) });
    if (message.role === "tool") told.push({ role: "tool", tool_call_id: message.callId, content: message.content });
    if (message.role === "assistant" && (message.content || message.calls.length > 0)) told.push(assistantOf(message));
  }
  return told;
}

function contentOf(message) {
  if (!message.pictures?.length) return message.content;
  const pictures = message.pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return message.content ? [{ type: "text", text: message.content }, ...pictures] : pictures;
}

function assistantOf(message) {
  const told = { role: "assistant", content: message.content };
  if (message.thinking) told.reasoning_content = message.thinking;
  if (message.calls.length > 0) {
    told.tool_calls = message.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments || "{}" },
    }));
  }
  return told;
}

function take(answer, event) {
  if (event.prompt_progress) {
    answer.progress = event.prompt_progress;
    return;
  }
  if (event.usage) answer.usage = event.usage;
  if (event.timings) answer.timings = event.timings;
  const choice = event.choices?.[0];
  if (!choice) return;
  takeDelta(answer, choice.delta ?? {});
  if (choice.finish_reason) answer.status = choice.finish_reason === "length" ? "length" : "done";
}

function takeDelta(answer, delta) {
  if (delta.reasoning_content) {
    answer.thinkingBegun ??= Date.now();
    answer.thinking += delta.reasoning_content;
    answer.status = "writing";
  }
  if ((delta.content || delta.tool_calls) && answer.thinking && answer.thinkingMs === undefined) {
    answer.thinkingMs = Date.now() - answer.thinkingBegun;
  }
  if (delta.content) {
    // What parts reasoning from the answer is no part of it.
    answer.content += answer.content === "" ? delta.content.trimStart() : delta.content;
    answer.status = "writing";
  }
  for (const piece of delta.tool_calls ?? []) {
    answer.status = "writing";
    const call = (answer.calls[piece.index] ??= { id: "", name: "", arguments: "" });
    if (piece.id) call.id = piece.id;
    if (piece.function?.name) call.name = piece.function.name;
    call.arguments += piece.function?.arguments ?? "";
  }
}
