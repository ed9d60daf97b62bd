// The radix tree's largest branches, each under the one it belongs to.

import { getJson } from "./api.js";
import { bar } from "./bars.js";
import { h, visible } from "./dom.js";
import { count, plural, seconds } from "./format.js";

export function createTree(app) {
  const body = h("div", { class: "card", "aria-live": "off" });
  const note = h("p", { class: "muted" });
  const refresh = h("button", { type: "button", onclick: load }, "Refresh");
  const element = h("div", null, h("div", { class: "view-head" }, h("h1", null, "What the cache holds"), refresh), note, body);
  let loading = null;

  async function load() {
    loading?.abort();
    const mine = (loading = new AbortController());
    refresh.disabled = true;
    try {
      show(await getJson(app.path("cache/tree?max_branches=60"), { signal: mine.signal }));
    } catch (error) {
      if (!mine.signal.aborted && !app.refused(error)) body.replaceChildren(h("p", { class: "error" }, error.message));
    } finally {
      if (loading === mine) refresh.disabled = false;
    }
  }

  function show(answer) {
    const { branches } = answer;
    note.textContent = `${answer.is_complete ? "" : "At least "}${plural(answer.num_nodes, "node")} in the tree; the largest ${plural(branches.length, "branch", "branches")} by pages, each with the text it begins with. Pages count a branch and all below it.`;
    if (branches.length === 0) {
      body.replaceChildren(h("p", { class: "muted" }, "Nothing is cached yet."));
      return;
    }
    const below = new Map();
    for (const branch of branches) below.set(branch.parent_id, [...(below.get(branch.parent_id) ?? []), branch]);
    const known = new Set(branches.map((branch) => branch.branch_id));
    const roots = branches.filter((branch) => !known.has(branch.parent_id));
    const largest = Math.max(...branches.map(pages), 1);
    const list = (some) =>
      h(
        "ul",
        { class: "tree" },
        some.map((branch) => h("li", null, row(branch, largest), below.has(branch.branch_id) ? list(below.get(branch.branch_id)) : null)),
      );
    body.replaceChildren(list(roots));
  }

  return {
    element,
    title: "Tree",
    enter: load,
    leave() {
      loading?.abort();
    },
  };
}

function pages(branch) {
  return Math.max(branch.num_device_pages, branch.num_host_pages, branch.num_stored_pages);
}

function row(branch, largest) {
  const tiers = [
    ["device", branch.num_device_pages, "device"],
    ["host", branch.num_host_pages, "host"],
    ["storage", branch.num_stored_pages, "store"],
  ];
  return h(
    "div",
    { class: "branch" },
    h(
      "div",
      { class: "branch-text" },
      branch.head_text === null
        ? h("span", { class: "muted" }, "(text withheld)")
        : h("code", null, visible(branch.head_text).replace(/\s*\n\s*/g, " ⏎ ")),
      h(
        "span",
        { class: "muted" },
        `from token ${count(branch.start_token)} · ${plural(branch.num_own_tokens, "token")} of its own · ${plural(branch.num_hits, "hit")} · idle ${seconds(branch.idle_seconds)}`,
      ),
    ),
    h(
      "div",
      { class: "branch-bars" },
      tiers.map(([kind, num, word]) =>
        h("div", { class: num ? "" : "nothing" }, bar([[kind, num, null]], { label: `${plural(num, "page")} in ${word}`, small: true, total: largest }), h("span", { class: "muted" }, `${count(num)} ${word}`)),
      ),
    ),
  );
}
