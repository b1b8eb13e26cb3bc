// How clients are told of this server. Each recipe takes its address, the model's name and whether
// there is a key, and gives text to copy.

const keyOr = (hasKey, text = "none") => (hasKey ? "YOUR-KEY" : text);

/** name, and what to copy. */
export const RECIPES = [
  ["curl", "bash", ({ base, model, hasKey }) => `curl ${base}/v1/chat/completions \\
  -H 'content-type: application/json' \\${hasKey ? `
  -H 'authorization: Bearer YOUR-KEY' \\` : ""}
  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello"}]}'`],
  ["OpenAI, Python", "python", ({ base, model, hasKey }) => `from openai import OpenAI

client = OpenAI(base_url="${base}/v1", api_key="${keyOr(hasKey)}")
answer = client.chat.completions.create(
    model="${model}",
    messages=[{"role": "user", "content": "Hello"}],
)
print(answer.choices[0].message.content)`],
  ["OpenAI, JavaScript", "javascript", ({ base, model, hasKey }) => `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${base}/v1", apiKey: "${keyOr(hasKey)}" });
const answer = await client.chat.completions.create({
  model: "${model}",
  messages: [{ role: "user", content: "Hello" }],
});
console.log(answer.choices[0].message.content);`],
  ["Anthropic, Python", "python", ({ base, model, hasKey }) => `from anthropic import Anthropic

client = Anthropic(base_url="${base}", api_key="${keyOr(hasKey)}")
answer = client.messages.create(
    model="${model}",
    max_tokens=1024,
    messages=[{"role": "user", "content": "Hello"}],
)
print(answer.content[0].text)`],
  ["Claude Code", "bash", ({ base, model, hasKey }) => `export ANTHROPIC_BASE_URL=${base}
export ANTHROPIC_AUTH_TOKEN=${keyOr(hasKey)}
export ANTHROPIC_MODEL=${model}
export ANTHROPIC_SMALL_FAST_MODEL=${model}
claude`],
  ["Codex", "toml", ({ base, model, hasKey }) => `# ~/.codex/config.toml
model = "${model}"
model_provider = "strata"

[model_providers.strata]
name = "Strata"
base_url = "${base}/v1"
wire_api = "responses"${hasKey ? `
env_key = "STRATA_API_KEY"` : ""}`],
  ["OpenCode", "json", ({ base, model, hasKey }) => `{
  "provider": {
    "strata": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "Strata",
      "options": { "baseURL": "${base}/v1"${hasKey ? `, "apiKey": "YOUR-KEY"` : ""} },
      "models": { "${model}": { "name": "${model}" } }
    }
  },
  "model": "strata/${model}"
}`],
  ["Qwen Code", "bash", ({ base, model, hasKey }) => `export OPENAI_BASE_URL=${base}/v1
export OPENAI_API_KEY=${keyOr(hasKey)}
export OPENAI_MODEL=${model}
qwen`],
  ["Aider", "bash", ({ base, model, hasKey }) => `export OPENAI_API_BASE=${base}/v1
export OPENAI_API_KEY=${keyOr(hasKey)}
aider --model openai/${model}`],
  ["llm", "yaml", ({ base, model }) => `# extra-openai-models.yaml, in the folder that \`llm logs path\` names
- model_id: strata
  model_name: ${model}
  api_base: "${base}/v1"`],
  ["Prometheus", "yaml", ({ base, hasKey }) => `scrape_configs:
  - job_name: strata
    static_configs:
      - targets: ["${base.replace(/^https?:\/\//, "")}"]${hasKey ? `
    authorization:
      credentials: YOUR-KEY` : ""}`],
];
