// One request's account: where its prompt came from, where it left the known path, and why the rest was computed.

import { sourceBar, sourceLegend } from "./bars.js";
import { h, visible } from "./dom.js";
import { clock, count, percent, plural, seconds } from "./format.js";
import { REASON_WORDS, STATE_WORDS } from "./words.js";

const ALIGNED = 10;

export function showExplanation(explanation) {
  const e = explanation;
  const parts = [
    h("h2", null, "Where this prompt came from"),
    h("p", { class: "muted id" }, e.request_id, ` · ${clock(e.time)} · ${STATE_WORDS[e.finish_reason ?? e.state][0]}`),
  ];
  if (e.routing) parts.push(...showRouting(e.worker, e.routing));
  if (!e.is_settled) {
    parts.push(h("p", null, `${plural(e.num_prompt_tokens, "prompt token")}. Where they come from is known once the first token of the answer is.`));
    return parts;
  }
  parts.push(
    sourceBar(e.num_tokens_by_source),
    sourceLegend(e.num_tokens_by_source),
    h(
      "dl",
      { class: "facts" },
      fact("From the cache", `${count(e.num_cached_tokens)} of ${plural(e.num_prompt_tokens, "token")} (${percent(e.num_cached_tokens / e.num_prompt_tokens)})`),
      fact("An unlimited cache", `${count(e.num_known_tokens)} (${percent(e.num_known_tokens / e.num_prompt_tokens)})`),
      fact("First token after", `${seconds(e.ttft_seconds)}${e.queue_seconds ? `, of which ${seconds(e.queue_seconds)} in the queue` : ""}`),
      e.total_seconds === null ? null : fact("Whole answer", `${seconds(e.total_seconds)} for ${plural(e.num_generated_tokens, "token")}`),
      e.saved_seconds > 0 ? fact("Computing saved", `about ${seconds(e.saved_seconds)}`) : null,
    ),
  );
  if (e.divergence !== null) parts.push(...showDivergence(e.divergence));
  parts.push(h("h3", null, "Why the rest was computed"));
  if (e.misses.length === 0) parts.push(h("p", { class: "muted" }, "Everything came from the cache."));
  else parts.push(h("ol", { class: "misses" }, e.misses.map(miss)));
  return parts;
}

/** Behind a router: who answered, and why it was sent there. */
function showRouting(worker, { attempts }) {
  return [
    h("h3", null, `Sent to ${worker}`),
    h(
      "ol",
      { class: "misses" },
      attempts.map((attempt) => h("li", null, h("p", null, h("b", null, attempt.worker), `: ${attempt.reason}.`), attempt.detail === null ? null : h("p", { class: "advice" }, sentence(attempt.detail)))),
    ),
    h("h3", null, "There"),
  ];
}

function fact(name, value) {
  return [h("dt", null, name), h("dd", null, value)];
}

function miss({ reason, first_token: first, num_tokens: num, explanation, advice }) {
  return h(
    "li",
    null,
    h(
      "p",
      null,
      h("span", { class: `pill reason ${reason}` }, REASON_WORDS[reason] ?? reason),
      h("span", { class: "muted" }, ` tokens ${count(first)} to ${count(first + num - 1)} (${count(num)})`),
    ),
    h("p", null, sentence(explanation)),
    advice === null ? null : h("p", { class: "advice" }, advice),
  );
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;
}

function place(divergence) {
  const { message_index: index, message_role: role, message_part: part, message_character: character } = divergence;
  if (index === null || index === undefined) return `character ${count(divergence.character)} of the prompt`;
  const message = `messages[${index}] (${role})`;
  if (part === "generation_prompt") return "after the last message";
  if (part === "template") return `in the template's text before ${message}`;
  return `in ${message}${character === null ? "" : `, character ${count(character)}`}`;
}

function showDivergence(divergence) {
  const { token_index: token, has_other: hasOther, is_same_text: same, is_cached: cached, snippet } = divergence;
  const title = !hasOther ? "Where the known text ends" : same ? "Where the same text is cut into other tokens" : "Where it left the known path";
  const parts = [
    h("h3", null, title),
    h(
      "p",
      null,
      `At token ${count(token)}, `,
      h("b", null, place(divergence)),
      cached ? "." : "; the path is only remembered, not cached any more.",
      divergence.other_request_id
        ? [" The last to take that path was ", h("a", { href: `#/requests/${encodeURIComponent(divergence.other_request_id)}` }, "this request"), "."]
        : null,
    ),
  ];
  if (snippet === null || snippet === undefined) {
    parts.push(h("p", { class: "muted" }, "The server withholds the text of prompts (--redact-prompts)."));
    return parts;
  }
  const { before, prompt, other } = snippet;
  const [ours, theirs] = differing(prompt, other);
  parts.push(
    h(
      "div",
      { class: "sides" },
      side("This prompt", before, prompt, ours),
      hasOther || other !== null ? side("The known path", before, other ?? "", theirs) : side("The known path", before, null, 0),
    ),
  );
  return parts;
}

function side(name, before, after, numDiffering) {
  return h(
    "figure",
    { class: "side" },
    h("figcaption", null, name),
    h(
      "pre",
      null,
      h("span", { class: "same" }, visible(before)),
      after === null || after === ""
        ? h("span", { class: "ends" }, "ends here")
        : [h("mark", null, visible(after.slice(0, numDiffering), { edges: true })), h("span", { class: "rest" }, visible(after.slice(numDiffering)))],
    ),
  );
}

/** How many characters of each differ before they run alike again; all, where they do not. */
export function differing(ours, theirs) {
  if (ours === "" || theirs === null || theirs === "") return [ours.length, theirs?.length ?? 0];
  for (let sum = 1; sum <= ours.length + theirs.length; sum += 1) {
    for (let i = Math.max(0, sum - theirs.length); i <= Math.min(sum, ours.length); i += 1) {
      const a = ours.slice(i, i + ALIGNED);
      if (a.length === ALIGNED && a === theirs.slice(sum - i, sum - i + ALIGNED)) return [i, sum - i];
    }
  }
  return [ours.length, theirs.length];
}
