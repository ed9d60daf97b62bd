// A router's workers, side by side.

import { bar } from "./bars.js";
import { h, keyed, setText } from "./dom.js";
import { compact, count, percent, plural, seconds } from "./format.js";
import { WORKER_STATE_WORDS } from "./words.js";

const COLUMNS = ["Worker", "State", "Running", "Queued", "Prompt tokens", "Hit rate", "First token", "Device memory"];

export function createWorkers(app) {
  const rows = h("tbody", null);
  const note = h("p", { class: "muted" });
  const table = h(
    "table",
    null,
    h("caption", { class: "hidden" }, "Workers"),
    h("thead", null, h("tr", null, COLUMNS.map((name) => h("th", { scope: "col" }, name)))),
    rows,
  );
  const element = h(
    "section",
    { class: "card list", "aria-label": "Workers" },
    h("h1", null, "Workers"),
    note,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of workers" }, table),
  );

  function createRow({ name }) {
    const look = (event) => {
      event.preventDefault();
      app.look(name);
    };
    return h(
      "tr",
      null,
      h("td", null, h("a", { href: "#/overview", title: `Show ${name} alone`, onclick: look }, name)),
      h("td", null, h("span", { class: "pill" })),
      ...Array.from({ length: 5 }, () => h("td", { class: "number" })),
      h("td", { class: "from" }),
    );
  }

  function updateRow(row, { name, state, stats, error }) {
    const [, pill, running, queued, tokens, hits, ttft, memory] = row.children;
    row.classList.toggle("selected", name === app.fleet.worker);
    const [words, mood] = error === null ? (WORKER_STATE_WORDS[state] ?? [state, ""]) : ["no answer", "bad"];
    setText(pill.firstChild, words);
    pill.firstChild.className = `pill ${mood}`;
    pill.firstChild.title = error ?? "";
    setText(running, stats === null ? "–" : count(stats.num_running));
    setText(queued, stats === null ? "–" : count(stats.num_queued));
    setText(tokens, stats === null ? "–" : compact(stats.num_prompt_tokens));
    setText(hits, percent(stats?.hit_rate.window.total));
    setText(ttft, seconds(typicalTtft(stats)));
    const pages = stats?.tiers.device.pages;
    const facts = pages === undefined ? "" : `${pages.cached} ${pages.total}`;
    if (memory.dataset.facts !== facts) {
      memory.dataset.facts = facts;
      memory.replaceChildren(...(pages === undefined ? [] : [bar([["device", pages.cached, null]], { label: `${plural(pages.cached, "page")} cached of ${count(pages.total)}`, small: true, total: pages.total })]));
    }
  }

  return {
    element,
    title: "Workers",
    fleet() {
      const { workers, states, num_running: running = 0, num_queued: queued = 0, hit_rate: hitRate } = app.fleet.latest;
      const all = Object.entries(states).map(([name, state]) => {
        const told = workers[name] ?? null;
        const isError = told === null || told.tiers === undefined;
        return { name, state, stats: isError ? null : told, error: told !== null && isError ? (told.error?.message ?? "It shows no statistics.") : null };
      });
      setText(note, `${plural(all.length, "worker")}, ${count(running)} requests running and ${count(queued)} queued at them; ${percent(hitRate)} of all prompt tokens came from a cache. The other views are about the one that is chosen above.`);
      keyed(rows, all, (worker) => worker.name, createRow, updateRow);
    },
  };
}

/** About the median: the mean of the medians by tier, each as often as it has requests. */
function typicalTtft(stats) {
  const tiers = Object.values(stats?.ttft ?? {}).filter((tier) => tier.num_requests > 0);
  if (tiers.length === 0) return null;
  const sum = (value) => tiers.reduce((total, tier) => total + value(tier), 0);
  return sum((tier) => tier.num_requests * tier.p50_seconds) / sum((tier) => tier.num_requests);
}
