// Bars of tokens and pages by where they are, and their legends.

import { h } from "./dom.js";
import { count, percent } from "./format.js";
import { SOURCES, SOURCE_WORDS } from "./words.js";

/** `parts`: [kind, value, words]; the kind is a class and so the colour. A bar of nothing is an empty track. */
export function bar(parts, { label, small = false, total = parts.reduce((sum, [, value]) => sum + value, 0) }) {
  return h(
    "div",
    { class: small ? "bar small" : "bar", role: "img", "aria-label": label },
    parts
      .filter(([, value]) => value > 0)
      .map(([kind, value, words]) =>
        h("span", { class: `part ${kind}`, title: words ?? null, "width%": (100 * value) / Math.max(total, 1) }),
      ),
  );
}

/** "420 device memory, 12 computed"; nothing of what is zero. */
export function sourcesInWords(bySource) {
  const words = SOURCES.filter((source) => bySource[source] > 0).map(
    (source) => `${count(bySource[source])} ${SOURCE_WORDS[source]}`,
  );
  return words.length ? words.join(", ") : "no tokens yet";
}

export function sourceBar(bySource, { small = false } = {}) {
  return bar(
    SOURCES.map((source) => [source, bySource[source] ?? 0, `${count(bySource[source] ?? 0)} ${SOURCE_WORDS[source]}`]),
    { label: `Prompt tokens: ${sourcesInWords(bySource)}`, small },
  );
}

/** One entry a source that has tokens: a swatch, the word, the tokens, the share. */
export function sourceLegend(bySource) {
  const total = SOURCES.reduce((sum, source) => sum + (bySource[source] ?? 0), 0);
  return h(
    "ul",
    { class: "legend" },
    SOURCES.filter((source) => bySource[source] > 0).map((source) =>
      h(
        "li",
        null,
        h("span", { class: `swatch ${source}` }),
        h("span", null, SOURCE_WORDS[source]),
        h("b", null, count(bySource[source])),
        h("span", { class: "muted" }, percent(bySource[source] / total)),
      ),
    ),
  );
}
