// A conversation with the model that shows, under each answer, where its prompt came from.

import { sourceBar } from "./bars.js";
import { Refused, stream } from "./api.js";
import { h, setText } from "./dom.js";
import { count, percent, plural, seconds } from "./format.js";
import { SOURCE_WORDS, TIERS } from "./words.js";

export function createChat(app) {
  const log = h("ol", { class: "log", "aria-label": "Conversation" });
  const empty = h("p", { class: "muted empty" }, "Ask something, then ask again: the second prompt begins with the first, and comes out of the cache.");
  const system = h("textarea", { id: "chat-system", rows: "2" });
  const maxTokens = h("input", { id: "chat-max-tokens", type: "number", min: "1", value: "256", inputmode: "numeric" });
  const temperature = h("input", { id: "chat-temperature", type: "number", min: "0", max: "2", step: "0.1", value: "0.7", inputmode: "decimal" });
  const input = h("textarea", { id: "chat-input", rows: "2", placeholder: "Your message", onkeydown: onKey });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Stop");
  const again = h("button", { type: "button", class: "quiet", onclick: restart }, "New conversation");
  const status = h("p", { class: "hidden", role: "status" });
  let messages = [];
  let running = null;

  const element = h(
    "div",
    { class: "chat" },
    h("div", { class: "view-head" }, h("h1", null, "Chat"), again),
    h(
      "details",
      { class: "card" },
      h("summary", null, "Settings"),
      h("label", { for: "chat-system" }, "System prompt"),
      system,
      h(
        "div",
        { class: "row" },
        h("div", null, h("label", { for: "chat-max-tokens" }, "Longest answer, in tokens"), maxTokens),
        h("div", null, h("label", { for: "chat-temperature" }, "Temperature"), temperature),
      ),
    ),
    empty,
    log,
    h(
      "form",
      { class: "composer card", onsubmit: onSubmit },
      h("label", { for: "chat-input", class: "hidden" }, "Your message"),
      input,
      h("div", { class: "row end" }, h("span", { class: "muted grow" }, "Enter sends, Shift+Enter begins a new line"), stop, send),
    ),
    status,
  );

  function onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  }

  function onSubmit(event) {
    event.preventDefault();
    const text = input.value;
    if (text.trim() === "" || running !== null) return;
    input.value = "";
    say(text);
  }

  function restart() {
    running?.abort();
    messages = [];
    log.replaceChildren();
    empty.hidden = false;
    input.focus();
  }

  function turn(role, words) {
    const text = h("div", { class: "text" });
    const note = h("div", { class: "note" });
    empty.hidden = true;
    const item = h("li", { class: `turn ${role}` }, h("span", { class: "who" }, words), text, note);
    log.append(item);
    item.scrollIntoView({ block: "nearest" });
    return { text, note };
  }

  async function say(text) {
    const asked = turn("user", "You");
    asked.text.textContent = text;
    const conversation = messages;
    conversation.push({ role: "user", content: text });
    const answer = turn("assistant", app.model ?? "Model");
    answer.text.classList.add("writing");
    running = new AbortController();
    send.disabled = true;
    stop.hidden = false;
    setText(status, "The model is writing.");
    try {
      await write(answer, conversation, running.signal);
      setText(status, "The answer is complete.");
    } catch (error) {
      const words = error.name === "AbortError" ? "Stopped." : error.message;
      answer.note.append(h("p", { class: error.name === "AbortError" ? "muted" : "error" }, words));
      setText(status, words);
      keep(conversation, answer.text.textContent);
      if (error instanceof Refused) app.refused(error);
    } finally {
      answer.text.classList.remove("writing");
      running = null;
      send.disabled = false;
      stop.hidden = true;
    }
  }

  async function write({ text, note }, conversation, signal) {
    const head = system.value.trim() === "" ? [] : [{ role: "system", content: system.value }];
    const body = { model: app.model, messages: [...head, ...conversation], stream: true, stream_options: { include_usage: true } };
    if (maxTokens.value !== "") body.max_tokens = Number(maxTokens.value);
    if (temperature.value !== "") body.temperature = Number(temperature.value);
    const began = performance.now();
    let first = null;
    let id = null;
    let usage = null;
    let finish = null;
    const node = document.createTextNode("");
    text.append(node);
    const thoughts = document.createTextNode("");
    for await (const event of stream("v1/chat/completions", body, { signal })) {
      id = event.id ?? id;
      usage = event.usage ?? usage;
      const choice = event.choices?.[0];
      finish = choice?.finish_reason ?? finish;
      const thought = choice?.delta?.reasoning_content ?? "";
      const piece = choice?.delta?.content ?? "";
      if (thought === "" && piece === "") continue;
      first ??= (performance.now() - began) / 1000;
      const atEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 80;
      if (thought !== "" && !thoughts.isConnected) text.before(aside(thoughts));
      thoughts.appendData(thought);
      node.appendData(piece);
      if (atEnd) window.scrollTo(0, document.body.scrollHeight);
    }
    keep(conversation, node.data);
    if (node.data === "") note.append(h("p", { class: "muted" }, "No answer came, so the model will not be reminded of the question."));
    note.append(...account(id, usage, first, finish));
    note.scrollIntoView({ block: "nearest" });
  }

  return {
    element,
    title: "Chat",
    enter() {
      input.focus({ preventScroll: true });
    },
  };
}

/** What the model thought before it answered. It is no part of the conversation. */
function aside(thoughts) {
  return h("details", { class: "thoughts muted" }, h("summary", null, "Thoughts"), h("div", null, thoughts));
}

/** The last question's answer. What was not answered is not asked again with the next message. */
function keep(conversation, answer) {
  if (answer === "") conversation.pop();
  else conversation.push({ role: "assistant", content: answer });
}

/** Where the prompt's tokens came from, in a bar and in words, and the way to why. */
function account(id, usage, ttft, finish) {
  const parts = [];
  if (usage !== null) {
    const tiers = usage.prompt_tokens_details.cached_tokens_by_tier;
    const cached = usage.prompt_tokens_details.cached_tokens;
    const from = TIERS.filter((tier) => tiers[tier] > 0).map((tier) => `${count(tiers[tier])} ${SOURCE_WORDS[tier]}`);
    parts.push(
      sourceBar({ ...tiers, computed: usage.prompt_tokens - cached }, { small: true }),
      h(
        "p",
        { class: "muted" },
        cached
          ? `${count(cached)} of ${plural(usage.prompt_tokens, "prompt token")} (${percent(cached / usage.prompt_tokens)}) from the cache: ${from.join(", ")}`
          : `All ${plural(usage.prompt_tokens, "prompt token")} computed`,
        ttft === null ? "" : ` · first text after ${seconds(ttft)}`,
        ` · ${plural(usage.completion_tokens, "token")} written${finish === "length" ? ", cut at the limit" : ""}`,
        " · ",
        h("a", { href: `#/requests/${encodeURIComponent(id)}` }, "Why?"),
      ),
    );
  }
  return parts;
}
