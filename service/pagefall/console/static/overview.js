// Where the server stands: hit rate, tiers and what flows between them, first tokens, misses, load.

import { bar } from "./bars.js";
import { timeChart } from "./chart.js";
import { h, keyed, setText, svg } from "./dom.js";
import { bytes, compact, count, percent, plural, seconds } from "./format.js";
import { BREAKER_WORDS, REASON_WORDS, SOURCE_WORDS, TIERS } from "./words.js";

const LONGEST_SPAN = 900;
const SHORTEST_SPAN = 120;

export function createOverview() {
  const figures = h("dl", { class: "figures" });
  const tiers = h("div", { class: "tiers" });
  const hitRate = timeChart({
    title: "Hit rate by tier",
    areas: [
      { kind: "device", label: "device" },
      { kind: "host", label: "host" },
      { kind: "storage", label: "store" },
    ],
    lines: [{ kind: "ceiling", label: "ceiling" }],
    max: 1,
    format: percent,
  });
  const speed = timeChart({
    title: "Generated tokens per second",
    areas: [{ kind: "generated", label: "tokens/s" }],
    format: (value) => (value === null ? "–" : value < 10 ? String(Math.round(value * 10) / 10) : compact(value)),
    height: 120,
  });
  const load = timeChart({
    title: "Requests running and queued",
    areas: [
      { kind: "running", label: "running" },
      { kind: "queued", label: "queued" },
    ],
    atLeast: 2,
    format: (value) => (value === null ? "–" : String(Math.round(value * 10) / 10)),
    height: 120,
  });
  const ttft = h("ul", { class: "rows" });
  const misses = h("ul", { class: "rows" });
  const missesNote = h("p", { class: "muted" });
  const store = h("div", null);

  const element = h(
    "div",
    { class: "overview" },
    h("h1", { class: "hidden" }, "Overview"),
    figures,
    h("section", { class: "card", "aria-labelledby": "tiers-title" }, h("h2", { id: "tiers-title" }, "Tiers"), tiers),
    h(
      "div",
      { class: "columns wide" },
      card(
        "Hit rate by tier",
        h(
          "ul",
          { class: "legend inline" },
          ["device", "host", "storage"].map((tier) => h("li", null, h("span", { class: `swatch ${tier}` }), SOURCE_WORDS[tier])),
          h("li", null, h("span", { class: "swatch ceiling" }), "ceiling: a cache of unlimited size"),
        ),
        hitRate.element,
      ),
      card("Time to first token, by where the prompt's head came from", ttft),
    ),
    h(
      "div",
      { class: "columns thirds" },
      card("Why tokens were computed", missesNote, misses),
      card("Load", h("h3", null, "Generated tokens per second"), speed.element, h("h3", null, "Requests"), load.element),
      card("Store", store),
    ),
  );

  return {
    element,
    title: "Overview",
    stats(stats, history) {
      showFigures(figures, stats, history);
      showTiers(tiers, stats, history);
      showTtft(ttft, stats);
      showMisses(misses, missesNote, stats);
      showStore(store, stats);
      const { columns } = history;
      const end = stats.time;
      const span = Math.min(Math.max(stats.uptime_seconds, SHORTEST_SPAN), LONGEST_SPAN);
      hitRate.update(columns.times, { ...columns.hit_rate, ceiling: columns.ceiling }, end, span);
      speed.update(columns.times, { generated: columns.generated_tokens_per_second }, end, span);
      load.update(columns.times, { running: columns.num_running, queued: columns.num_queued }, end, span);
    },
  };
}

function card(title, ...children) {
  return h("section", { class: "card", "aria-label": title }, h("h2", null, title), children);
}

function showFigures(list, stats, history) {
  const { window, since_start: always } = stats.hit_rate;
  const shown = window.total === null ? always : window;
  const cached = stats.num_tokens_by_source.device + stats.num_tokens_by_source.host + stats.num_tokens_by_source.storage;
  const of = shown === window ? `of the last ${seconds(window.seconds)}` : "since the start";
  const ceiling = shown.ceiling === null ? "" : ` · ceiling ${percent(shown.ceiling)}`;
  const items = [
    ["Hit rate", percent(shown.total), shown.total === null ? "no prompts yet" : `${of}${ceiling}`],
    ["Tokens from the cache", compact(cached), `of ${compact(stats.num_prompt_tokens)} prompt tokens`],
    ["Computing saved", seconds(stats.saved_seconds), "of prefill, as estimated"],
    [
      "Generating",
      `${compact(history.recent(history.columns.generated_tokens_per_second))}/s`,
      `${compact(stats.num_generated_tokens)} tokens so far`,
    ],
    ["Requests", count(stats.num_running), `running · ${count(stats.num_queued)} queued`],
  ];
  keyed(
    list,
    items,
    ([name]) => name,
    ([name]) => h("div", null, h("dt", null, name), h("dd", null), h("dd", { class: "muted" })),
    (element, [, value, note]) => {
      setText(element.children[1], value);
      setText(element.children[2], note);
    },
  );
}

function showTiers(container, stats, history) {
  const { device, host, storage } = stats.tiers;
  const rate = (direction) => history.recent(history.columns.transfer_bytes_per_second[direction]);
  container.replaceChildren(
    poolCard("device", "Device memory", device, stats),
    flow(rate("device_to_host"), rate("host_to_device"), stats, "device_to_host", "host_to_device", host !== null),
    host === null ? absent("host", "Host memory", "--enable-hierarchical-cache adds it") : poolCard("host", "Host memory", host, stats),
    flow(rate("host_to_storage"), rate("storage_to_host"), stats, "host_to_storage", "storage_to_host", storage !== null),
    storage === null
      ? absent("storage", "Store", host === null ? "needs host memory above it" : "--hicache-storage-backend adds it")
      : storeCard(storage, stats),
  );
}

function tierHead(kind, name, note) {
  return h("div", { class: "tier-head" }, h("span", { class: `swatch ${kind}` }), h("h3", null, name), h("span", { class: "muted" }, note));
}

function shareOfPrompts(stats, tier) {
  const always = stats.hit_rate.since_start.by_tier[tier];
  return h("p", { class: "muted" }, always === null ? "No prompts yet." : `${percent(always)} of all prompt tokens came from here`);
}

function poolCard(kind, name, pool, stats) {
  const { pages } = pool;
  const used = pages.total - pages.free;
  const words = `${count(pages.cached)} of ${count(pages.total)} pages cached (${count(pages.pinned)} in use), ${count(pages.leased)} leased, ${count(pages.free)} free`;
  return h(
    "div",
    { class: "tier" },
    tierHead(kind, name, pool.num_bytes === null ? null : bytes(pool.num_bytes)),
    bar(
      [
        [`${kind} pinned`, pages.pinned, `${count(pages.pinned)} pages cached and in use`],
        [kind, pages.cached - pages.pinned, `${count(pages.cached - pages.pinned)} pages cached`],
        ["leased", pages.leased, `${count(pages.leased)} pages of running requests`],
      ],
      { label: words, total: pages.total },
    ),
    h("p", null, h("b", null, percent(pages.total ? used / pages.total : 0)), ` full · ${compact(pool.num_cached_tokens)} of ${compact(pool.num_tokens)} tokens`),
    h("p", { class: "muted" }, `${plural(pages.leased, "page")} leased · ${plural(pool.num_evicted_pages, "page")} evicted so far`),
    shareOfPrompts(stats, kind),
  );
}

function storeCard(storage, stats) {
  const { storage_used_bytes: used, storage_limit_bytes: limit } = storage;
  const [words, mood] = BREAKER_WORDS[storage.breaker];
  return h(
    "div",
    { class: "tier" },
    tierHead("storage", "Store", storage.storage_backend),
    used !== null && limit
      ? bar([["storage", used, bytes(used)]], { label: `${bytes(used)} of ${bytes(limit)} used`, total: limit })
      : bar([["storage", 1, ""]], { label: "no quota", total: used ? 1 : Infinity }),
    h(
      "p",
      null,
      used === null ? "" : h("b", null, limit ? percent(used / limit) : bytes(used)),
      used === null ? "Not measured yet" : limit ? ` full · ${bytes(used)} of ${bytes(limit)}` : " used · no quota",
    ),
    h("p", null, h("span", { class: `pill ${mood}` }, words)),
    shareOfPrompts(stats, "storage"),
  );
}

function absent(kind, name, note) {
  return h("div", { class: "tier absent" }, tierHead(kind, name, null), h("p", { class: "muted" }, `Not there: ${note}.`));
}

function arrow(back) {
  return svg(
    "svg",
    { class: back ? "arrow back" : "arrow", viewBox: "0 0 48 12", width: 48, height: 12, "aria-hidden": "true" },
    svg("path", { d: "M2 6H42" }),
    svg("path", { class: "tip", d: "M38 2l5 4-5 4" }),
  );
}

function flow(down, up, stats, downName, upName, isThere) {
  const total = (name) => bytes(stats.transfers[name]?.num_bytes ?? 0);
  const one = (rate, name, back) =>
    h(
      "div",
      { class: rate > 0 ? "stream flowing" : "stream" },
      arrow(back),
      h("span", { class: "rate" }, `${bytes(rate)}/s`),
      h("span", { class: "muted" }, `${total(name)} so far`),
    );
  if (!isThere) return h("div", { class: "flow absent", "aria-hidden": "true" });
  return h("div", { class: "flow" }, one(down, downName, false), one(up, upName, true));
}

function showTtft(list, stats) {
  const order = ["none", ...TIERS];
  const words = { none: "nowhere: all computed", device: "device memory", host: "host memory", storage: "the store" };
  const longest = Math.max(...order.map((source) => stats.ttft[source].p90_seconds ?? 0), 1e-9);
  keyed(
    list,
    order,
    (source) => source,
    (source) =>
      h(
        "li",
        null,
        h("div", { class: "row-head" }, h("span", { class: `swatch ${source === "none" ? "computed" : source}` }), h("span", null, words[source]), h("b", null)),
        h("div", { class: "span-bar", "aria-hidden": "true" }, h("span", { class: `p90 ${source === "none" ? "computed" : source}` }), h("span", { class: `p50 ${source === "none" ? "computed" : source}` })),
        h("p", { class: "muted" }),
      ),
    (element, source) => {
      const { num_requests: num, p50_seconds: p50, p90_seconds: p90 } = stats.ttft[source];
      setText(element.querySelector("b"), seconds(p50));
      element.querySelector(".p90").style.width = `${(100 * (p90 ?? 0)) / longest}%`;
      element.querySelector(".p50").style.width = `${(100 * (p50 ?? 0)) / longest}%`;
      setText(element.querySelector("p"), num ? `median of ${plural(num, "request")} · 90% within ${seconds(p90)}` : "no requests lately");
    },
  );
}

function showMisses(list, note, stats) {
  const reasons = Object.entries(stats.num_missed_tokens)
    .filter(([, num]) => num > 0)
    .sort(([, a], [, b]) => b - a);
  const total = reasons.reduce((sum, [, num]) => sum + num, 0);
  setText(note, total ? `${compact(total)} prompt tokens so far, each for one reason` : "Nothing has been missed yet.");
  keyed(
    list,
    reasons,
    ([reason]) => reason,
    ([reason]) =>
      h(
        "li",
        null,
        h("div", { class: "row-head" }, h("span", null, REASON_WORDS[reason] ?? reason), h("b", null)),
        h("div", { class: "span-bar", "aria-hidden": "true" }, h("span", { class: "p50 computed" })),
      ),
    (element, [, num]) => {
      setText(element.querySelector("b"), `${compact(num)} · ${percent(num / total)}`);
      element.querySelector(".p50").style.width = `${(100 * num) / total}%`;
    },
  );
}

function showStore(container, stats) {
  const { storage } = stats.tiers;
  if (storage === null) {
    container.replaceChildren(h("p", { class: "muted" }, "No store is attached."));
    return;
  }
  const [words, mood] = BREAKER_WORDS[storage.breaker];
  const facts = [
    ["Backend", storage.storage_backend ?? "–"],
    ["Where", storage.storage_description ?? "–"],
    ["Used", storage.storage_used_bytes === null ? "not measured yet" : `${bytes(storage.storage_used_bytes)}${storage.storage_limit_bytes ? ` of ${bytes(storage.storage_limit_bytes)}` : ""}`],
    ["Pages", storage.storage_num_pages === null ? "–" : count(storage.storage_num_pages)],
    ["Read", counts(storage.num_storage_outcomes) || "nothing yet"],
    ["Failures", counts(storage.num_storage_failures) || "none"],
  ];
  container.replaceChildren(
    h("p", null, h("span", { class: `pill ${mood}` }, words)),
    h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
  );
}

function counts(byName) {
  return Object.entries(byName)
    .filter(([, num]) => num > 0)
    .map(([name, num]) => `${count(num)} ${name.replaceAll("_", " ")}`)
    .join(", ");
}
