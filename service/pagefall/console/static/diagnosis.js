// What would raise the hit rate, most first: the server's own look at its latest requests.

import { getJson } from "./api.js";
import { h, visible } from "./dom.js";
import { compact, count, percent, plural, seconds } from "./format.js";

const CAUSES = {
  volatile_text: "Text that changes, before text that does not",
  whitespace: "White space or line ends that differ",
  json_order: "The same JSON in another order",
  rewritten_history: "Earlier messages were rewritten or dropped",
  salts: "One prompt under several salts",
  routing: "One prompt on several workers",
  capacity: "Evicted for want of room",
  too_short: "Prompts too short to cache",
  page_tail: "Tokens behind the last whole page",
  below_threshold: "Too few tokens to ask the store",
  store_down: "The store was down",
  store_slow: "The store was too slow",
  store_damaged: "Damaged in the store",
  gone_from_store: "Gone from the store",
  other_model: "Stored by another model",
  no_room: "No room to load it into",
  flushed: "The cache was flushed",
  cache_disabled: "The cache is disabled",
  does_not_repeat: "Prompts with nothing in common",
};

export function createDiagnosis(app) {
  const button = h("button", { type: "button", class: "primary", onclick: run }, "Diagnose");
  const result = h("div", { "aria-live": "polite" });
  const element = h(
    "div",
    null,
    h("div", { class: "view-head" }, h("h1", null, "What would raise the hit rate"), button),
    h("p", { class: "muted" }, "Looks at the latest requests: what a cache of unlimited size would have given, where the rest was lost, and what to do about it."),
    result,
  );

  async function run() {
    button.disabled = true;
    result.replaceChildren(h("p", { class: "muted" }, "Looking …"));
    try {
      result.replaceChildren(...show(await getJson(app.path("cache/diagnose"))));
    } catch (error) {
      if (!app.refused(error)) result.replaceChildren(h("p", { class: "error card" }, error.message));
    } finally {
      button.disabled = false;
    }
  }

  return { element, title: "Diagnosis" };
}

function show(diagnosis) {
  const { hit_rate: rate, ceiling, attainable, losses, tiers } = diagnosis;
  const most = Math.max(...losses.map((loss) => loss.num_tokens), 1);
  return [
    h(
      "section",
      { class: "card" },
      h("h2", null, "Verdict"),
      h("p", { class: "verdict" }, diagnosis.verdict),
      scale(rate, ceiling, attainable),
      h(
        "p",
        { class: "muted" },
        `${plural(diagnosis.num_requests, "request")} with ${compact(diagnosis.num_prompt_tokens)} prompt tokens`,
        diagnosis.seconds ? `, over ${seconds(diagnosis.seconds)}` : "",
        diagnosis.num_earlier_tokens ? `; ${compact(diagnosis.num_earlier_tokens)} earlier ones not looked at` : "",
        diagnosis.age_seconds ? `; as of ${seconds(diagnosis.age_seconds)} ago` : "",
        ".",
      ),
    ),
    losses.length ? h("h2", null, "Losses, the largest first") : null,
    losses.length ? h("ol", { class: "losses" }, losses.map((item) => loss(item, most, diagnosis))) : null,
    tiers.some((tier) => tier.num_extra_tokens || tier.num_nearer_tokens) ? gains(tiers) : null,
  ].filter((part) => part !== null);
}

function scale(rate, ceiling, attainable) {
  const row = (name, value, kind) =>
    value === null || value === undefined
      ? null
      : h(
          "li",
          null,
          h("div", { class: "row-head" }, h("span", null, name), h("b", null, percent(value))),
          h("div", { class: "span-bar", "aria-hidden": "true" }, h("span", { class: `p50 ${kind}`, "width%": 100 * value })),
        );
  return h("ul", { class: "rows" }, row("Hit rate", rate, "device"), row("An unlimited cache", ceiling, "host"), row("An unlimited cache, with the prompts mended", attainable, "storage"));
}

function loss({ cause, num_tokens: num, seconds: lost, is_measured: measured, evidence, advice }, most, diagnosis) {
  const { examples, text } = evidence;
  return h(
    "li",
    { class: "card" },
    h("div", { class: "row-head" }, h("h3", null, CAUSES[cause] ?? cause), h("b", null, `${compact(num)} tokens`)),
    h("div", { class: "span-bar", "aria-hidden": "true" }, h("span", { class: "p50 computed", "width%": (100 * num) / most })),
    h(
      "p",
      { class: "muted" },
      `${percent(num / Math.max(diagnosis.num_prompt_tokens, 1))} of all prompt tokens`,
      lost === null ? "" : `, about ${seconds(lost)} of computing`,
      measured ? "; counted" : "; by replay of the traffic",
      evidence.num_prompts ? ` · in ${plural(evidence.num_prompts, "prompt")}` : "",
    ),
    h("p", null, text.charAt(0).toUpperCase(), text.slice(1)),
    examples.length ? h("ul", { class: "examples" }, examples.map((example) => h("li", null, h("code", null, visible(example, { edges: true }))))) : null,
    h("p", { class: "advice" }, advice),
  );
}

function gains(tiers) {
  const names = { device: "device memory", host: "host memory", storage: "the store" };
  return h(
    "section",
    { class: "card" },
    h("h2", null, "What more room would bring"),
    h(
      "dl",
      { class: "facts" },
      tiers.map(({ tier, num_pages: pages, num_extra_tokens: extra, num_nearer_tokens: nearer }) => [
        h("dt", null, `Twice ${names[tier]} (${count(pages)} pages now)`),
        h("dd", null, `${compact(extra)} more tokens cached${nearer ? `, ${compact(nearer)} found nearer` : ""}`),
      ]),
    ),
  );
}
