// The npm SDKs of OpenAI and Anthropic against a live server; every check throws where it fails.
//
//     node sdks.mjs ADDRESS KEY FOLDER_OF_NODE_MODULES
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const [address, apiKey, modules] = process.argv.slice(2);
const require = createRequire(join(modules, "x.js"));
const OpenAI = require("openai");
const Anthropic = require("@anthropic-ai/sdk");
const { zodResponseFormat, zodTextFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const model = "strata-demo";
const messages = [{ role: "user", content: "What is 2 + 3?" }];
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
    },
  },
};
const aboutParis = [{ role: "user", content: "What is the weather in Paris?" }];
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: address, apiKey, maxRetries: 0 });

async function open() {
  const headers = { authorization: `Bearer ${apiKey}` };
  return (await (await fetch(`${address}/v1/status`, { headers })).json()).open_requests;
}

async function untilIdle() {
  for (let i = 0; i < 200 && (await open()) > 0; i++) await new Promise((go) => setTimeout(go, 20));
  assert.equal(await open(), 0);
}

async function streaming() {
  const whole = await client.chat.completions.create({ model, messages, temperature: 0 });
  const stream = await client.chat.completions.create({
    model,
    messages,
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.ok(text.length > 0);
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  const response = await client.responses.create({ model, input: messages, temperature: 0 });
  assert.equal(response.output_text, text);
}

async function toolsLoop() {
  const fields = { model, temperature: 0, tools: [weather] };
  const first = await client.chat.completions.create({
    ...fields,
    messages: aboutParis,
    tool_choice: "required",
  });
  const turn = first.choices[0].message;
  assert.equal(first.choices[0].finish_reason, "tool_calls");
  const call = turn.tool_calls[0];
  assert.equal(call.function.name, "get_weather");
  assert.equal(typeof JSON.parse(call.function.arguments).city, "string");
  const result = { role: "tool", tool_call_id: call.id, content: '{"sky": "clear"}' };
  const after = [...aboutParis, turn, result];
  const second = await client.chat.completions.create({ ...fields, messages: after });
  assert.ok(second.choices[0].message.content || second.choices[0].message.tool_calls);
  assert.ok(second.usage.prompt_tokens > first.usage.prompt_tokens);
}

async function parsing() {
  const Person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) });
  const asked = [{ role: "user", content: "Anna is 31 years old. Give me that as JSON." }];
  const chat = await client.chat.completions.parse({
    model,
    messages: asked,
    temperature: 0,
    response_format: zodResponseFormat(Person, "person"),
  });
  assert.equal(typeof chat.choices[0].message.parsed.name, "string");
  assert.ok(Number.isInteger(chat.choices[0].message.parsed.age));
  const response = await client.responses.parse({
    model,
    input: asked,
    temperature: 0,
    text: { format: zodTextFormat(Person, "person") },
  });
  assert.deepEqual(response.output_parsed, chat.choices[0].message.parsed);
}

async function logprobs() {
  const answer = await client.chat.completions.create({
    model,
    messages,
    temperature: 0,
    logprobs: true,
    top_logprobs: 2,
  });
  const tokens = answer.choices[0].logprobs.content;
  assert.equal(tokens.map((item) => item.token).join(""), answer.choices[0].message.content);
  for (const item of tokens) {
    assert.equal(item.top_logprobs.length, 2);
    assert.ok(item.logprob <= 0);
  }
}

async function cancelling() {
  const fields = { model, prompt: "Count.", max_tokens: 7000, stream: true, ignore_eos: true };
  const stream = await client.completions.create(fields);
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break; // leaves the stream
  }
  await untilIdle();
  const control = new AbortController();
  const whole = client.completions.create({ ...fields, stream: false }, { signal: control.signal });
  setTimeout(() => control.abort(), 200);
  await assert.rejects(whole, OpenAI.APIUserAbortError);
  await untilIdle();
}

async function errors() {
  const ask = (fields) => client.chat.completions.create({ model, messages, ...fields });
  await assert.rejects(ask({ seeed: 1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "seeed");
    return true;
  });
  await assert.rejects(ask({ model: "other" }), OpenAI.NotFoundError);
  await assert.rejects(ask({ max_tokens: 90000 }), (error) => {
    return error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded";
  });
  const stranger = new OpenAI({ baseURL: `${address}/v1`, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  const fields = { model, messages, max_tokens: 10 };
  await assert.rejects(
    anthropic.messages.create({ ...fields, model: "other" }),
    Anthropic.NotFoundError,
  );
  await assert.rejects(
    anthropic.messages.create({ ...fields, max_tokens: 0 }),
    Anthropic.BadRequestError,
  );
}

async function messagesOfAnthropic() {
  const fields = { model, messages, max_tokens: 200 };
  const tool = { name: "get_weather", input_schema: weather.function.parameters };
  const final = await anthropic.messages.stream(fields).finalMessage();
  assert.equal(final.stop_reason, "end_turn");
  assert.ok(final.content[0].text.length > 0);
  const asked = { ...fields, messages: aboutParis, tools: [tool], tool_choice: { type: "any" } };
  const called = await anthropic.messages.create(asked);
  const use = called.content.find((block) => block.type === "tool_use");
  assert.equal(typeof use.input.city, "string");
  const result = { type: "tool_result", tool_use_id: use.id, content: "clear" };
  const after = [
    ...aboutParis,
    { role: "assistant", content: called.content },
    { role: "user", content: [result] },
  ];
  const second = await anthropic.messages.create({ ...fields, messages: after, tools: [tool] });
  assert.ok(second.content.length > 0);
}

for (const check of [
  streaming,
  toolsLoop,
  parsing,
  logprobs,
  cancelling,
  errors,
  messagesOfAnthropic,
]) {
  await check();
  console.log(`${check.name}: good`);
}
