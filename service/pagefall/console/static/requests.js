// Requests that live and the last ones that ended; one of them explained beside the list.

import { getJson, Refused } from "./api.js";
import { sourceBar } from "./bars.js";
import { h, keyed, setText } from "./dom.js";
import { showExplanation } from "./explanation.js";
import { clock, count, seconds } from "./format.js";
import { poll } from "./poll.js";
import { REASON_WORDS, STATE_WORDS } from "./words.js";

const POLL_MS = 2000;
const NUM_SHOWN = 50;

export function createRequests(app) {
  const rows = h("tbody", null);
  const none = h("p", { class: "muted" }, "Asking …");
  const table = h(
    "table",
    { class: "requests" },
    h("caption", { class: "hidden" }, "Requests, the newest first"),
    h("thead", null, h("tr", null, ["Time", "State", "Prompt", "From", "First token", "Missed because"].map((name) => h("th", { scope: "col" }, name)))),
    rows,
  );
  const list = h("section", { class: "card list", "aria-label": "Requests" }, h("h1", null, "Requests"), none, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of requests" }, table));
  const detail = h("section", { class: "card detail", "aria-label": "Explanation", "aria-live": "polite", hidden: true });
  const element = h("div", { class: "requests-view" }, list, detail);
  let polling = null;
  let selected = null;
  let asking = null;

  async function update(signal) {
    const { requests } = await getJson(app.path(`cache/requests?limit=${NUM_SHOWN}`), { signal });
    none.hidden = requests.length > 0;
    setText(none, "No requests yet.");
    keyed(rows, requests, (request) => request.request_id, createRow, updateRow);
    const current = requests.find((request) => request.request_id === selected);
    if (current !== undefined && detail.dataset.state !== undefined && detail.dataset.state !== current.state) explain(selected);
  }

  function createRow(request) {
    return h(
      "tr",
      null,
      h("td", null, h("a", { href: `#/requests/${encodeURIComponent(request.request_id)}` }, clock(request.time))),
      h("td", null, h("span", { class: "pill" })),
      h("td", { class: "number" }),
      h("td", { class: "from" }),
      h("td", { class: "number" }),
      h("td", null),
    );
  }

  function updateRow(row, request) {
    const [, state, prompt, from, ttft, why] = row.children;
    row.classList.toggle("selected", request.request_id === selected);
    const [words, mood] = STATE_WORDS[request.finish_reason ?? request.state];
    setText(state.firstChild, words);
    state.firstChild.className = `pill ${mood}`;
    setText(prompt, count(request.num_prompt_tokens));
    const facts = JSON.stringify(request.num_tokens_by_source);
    if (from.dataset.facts !== facts) {
      from.dataset.facts = facts;
      from.replaceChildren(sourceBar(request.num_tokens_by_source, { small: true }));
    }
    setText(ttft, seconds(request.ttft_seconds));
    const { first_miss: reason, divergence_token_index: token } = request;
    const at = reason === "diverged" && token !== null ? `, at token ${count(token)}` : "";
    setText(why, reason === null ? "–" : `${REASON_WORDS[reason] ?? reason}${at}`);
  }

  async function explain(id) {
    asking?.abort();
    const mine = (asking = new AbortController());
    detail.hidden = false;
    element.classList.add("split");
    try {
      const explanation = await getJson(`cache/explain/${encodeURIComponent(id)}`, { signal: mine.signal });
      detail.dataset.state = explanation.state;
      detail.replaceChildren(close(), ...showExplanation(explanation));
    } catch (error) {
      if (mine.signal.aborted || app.refused(error)) return;
      const hint = error instanceof Refused && error.status === 404 ? "It may have been forgotten: the server remembers only its latest requests." : null;
      detail.replaceChildren(close(), h("h2", null, "No explanation"), h("p", { class: "error" }, error.message), hint && h("p", { class: "muted" }, hint));
    }
  }

  function close() {
    return h("a", { class: "close", href: "#/requests", "aria-label": "Close the explanation" }, "×");
  }

  return {
    element,
    title: "Requests",
    enter([id]) {
      const next = id ?? null;
      polling ??= poll(update, POLL_MS, (error) => {
        setText(none, error.message);
        none.hidden = false;
        return !app.refused(error);
      });
      if (next !== selected) {
        delete detail.dataset.state;
        detail.replaceChildren(h("p", { class: "muted" }, "Asking …"));
      }
      selected = next;
      for (const row of rows.children) row.classList.toggle("selected", row.dataset.key === selected);
      if (selected !== null) explain(selected);
      else {
        asking?.abort();
        detail.hidden = true;
        element.classList.remove("split");
      }
    },
    leave() {
      polling?.stop();
      polling = null;
      asking?.abort();
    },
  };
}
