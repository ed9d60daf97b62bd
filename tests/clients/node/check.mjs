// OpenAI's own client for Node over a running server: node check.mjs http://127.0.0.1:30000
// Needs `npm install openai` beside it. Exits with 1 at the first thing that is not as it should be.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0 });
const models = await client.models.list();
const model = models.data[0].id;
const messages = [
  { role: "developer", content: "Be brief." },
  { role: "user", content: [{ type: "text", text: "Name a river. 👋" }] },
];
const greedy = { model, temperature: 0, max_tokens: 16 };
let checks = 0;

async function check(name, work) {
  try {
    await work();
    checks += 1;
  } catch (error) {
    console.error(`${name}: ${error.stack}`);
    process.exit(1);
  }
}

async function refused(work, status, param) {
  await assert.rejects(work, (error) => {
    assert.equal(error.status, status);
    assert.equal(error.param, param);
    return true;
  });
}

await check("a chat, whole and streamed", async () => {
  const whole = await client.chat.completions.create({ ...greedy, messages });
  const stream = await client.chat.completions.create({
    ...greedy, messages, stream: true, stream_options: { include_usage: true },
  });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  assert.ok(whole.usage.prompt_tokens_details.cached_tokens >= 0);
});

await check("the helper for streams", async () => {
  const runner = client.chat.completions.stream({ ...greedy, messages });
  const final = await runner.finalChatCompletion();
  assert.equal(final.choices[0].message.role, "assistant");
});

await check("several choices with log-probabilities", async () => {
  const answer = await client.chat.completions.create({ ...greedy, messages, n: 3, logprobs: true, top_logprobs: 2 });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1, 2]);
  assert.equal(answer.choices[0].logprobs.content[0].top_logprobs.length, 2);
});

await check("completions, echoed and scored", async () => {
  const answer = await client.completions.create({ ...greedy, prompt: ["One", "Two"], echo: true, n: 2 });
  assert.equal(answer.choices.length, 4);
  assert.ok(answer.choices[0].text.startsWith("One") && answer.choices[2].text.startsWith("Two"));
  const alone = { ...greedy, prompt: "One", echo: true }; // in bfloat16, greedy answers may depend on their neighbours
  const whole = await client.completions.create(alone);
  let text = "";
  for await (const chunk of await client.completions.create({ ...alone, stream: true })) {
    text += chunk.choices[0].text;
  }
  assert.equal(text, whole.choices[0].text);
});

await check("an answer that is given up", async () => {
  const stream = await client.chat.completions.create({ ...greedy, messages, stream: true });
  for await (const _ of stream) break;
  stream.controller.abort();
});

await check("a response, whole and streamed", async () => {
  const whole = await client.responses.create({ model, input: "Name a river.", temperature: 0, max_output_tokens: 16 });
  let text = "";
  for await (const event of await client.responses.create({
    model, input: "Name a river.", temperature: 0, max_output_tokens: 16, stream: true,
  })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
});

await check("refusals", async () => {
  await refused(() => client.chat.completions.create({ ...greedy, messages, temperature: 9 }), 400, "temperature");
  await refused(() => client.chat.completions.create({ ...greedy, messages, model: "other" }), 404, "model");
  await refused(() => client.completions.create({ ...greedy, prompt: "a", suffix: "b" }), 400, "suffix");
  await refused(() => client.chat.completions.create({ ...greedy, messages: [] }), 400, "messages");
});

console.log(`${checks} checks passed`);
