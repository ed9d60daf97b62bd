// One small chart over time: areas on top of each other, and lines. Drawn anew at each update; a cursor reads values off.

import { h, setText, svg } from "./dom.js";
import { clock } from "./format.js";

const LEFT = 44;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 22;

/** Runs of neighbours that have a value: [[first, end), ...]. */
function runs(values) {
  const found = [];
  let first = null;
  values.forEach((value, i) => {
    if (value === null || value === undefined) {
      if (first !== null) found.push([first, i]);
      first = null;
    } else if (first === null) first = i;
  });
  if (first !== null) found.push([first, values.length]);
  return found;
}

function niceMax(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/**
 * `areas` and `lines`: [{kind, label}], the kind being a class. `max`: the top of the scale, or null for the data's own,
 * which is not below `atLeast`.
 * Returns `{element, update(times, values, end, span)}`: `values[kind]` has one value or null for each of `times` (Unix
 * seconds), the chart shows the `span` seconds before `end`.
 */
export function timeChart({ title, areas = [], lines = [], max = null, atLeast = 0, format, height = 190 }) {
  const plot = svg("svg", { class: "plot", "aria-hidden": "true" });
  const readout = h("p", { class: "readout", "aria-live": "off" });
  const frame = h("div", { class: "plot-frame", tabindex: "0", role: "img", "aria-label": title }, plot);
  const element = h("div", { class: "chart" }, frame, readout);
  let data = null;
  let cursor = null;

  function draw() {
    if (data === null) return;
    const { times, values, end, span } = data;
    const width = Math.max(frame.clientWidth, 120);
    const x = (time) => LEFT + ((time - (end - span)) / span) * (width - LEFT - RIGHT);
    const stacked = times.map((_, i) => areas.reduce((sum, { kind }) => sum + (values[kind][i] ?? 0), 0));
    const highest = Math.max(atLeast, ...stacked, ...lines.flatMap(({ kind }) => values[kind].map((value) => value ?? 0)));
    const top = max ?? niceMax(highest);
    const y = (value) => TOP + (1 - Math.min(value / top, 1)) * (height - TOP - BOTTOM);
    const shapes = [];
    for (const share of [0, 0.5, 1]) {
      shapes.push(
        svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(share * top), y2: y(share * top) }),
        svg("text", { class: "tick", x: LEFT - 8, y: y(share * top) + 4, "text-anchor": "end" }, format(share * top)),
      );
    }
    const step = [15, 30, 60, 120, 300].find((candidate) => span / candidate <= Math.max(2, width / 110)) ?? 300;
    for (let ago = 0; ago < span; ago += step) {
      const words = ago === 0 ? "now" : ago % 60 === 0 ? `−${ago / 60} min` : `−${ago} s`;
      const anchor = ago === 0 ? "end" : "middle";
      if (x(end - ago) > LEFT + 18) {
        shapes.push(svg("text", { class: "tick", x: x(end - ago), y: height - 5, "text-anchor": anchor }, words));
      }
    }
    let floor = times.map(() => 0);
    for (const [index, { kind }] of areas.entries()) {
      const ceiling = floor.map((below, i) => below + (values[kind][i] ?? 0));
      for (const [first, last] of runs(values[kind])) {
        const indices = [...Array(last - first).keys()].map((i) => i + first);
        const over = indices.map((i) => `${x(times[i]).toFixed(1)},${y(ceiling[i]).toFixed(1)}`);
        const under = indices.reverse().map((i) => `${x(times[i]).toFixed(1)},${y(floor[i]).toFixed(1)}`);
        shapes.push(svg("path", { class: `area ${kind}`, d: `M${over.concat(under).join("L")}Z` }));
      }
      // No edge where there is nothing: it would hide the one below.
      for (const [first, last] of runs(values[kind].map((value) => (index === 0 ? value : value || null)))) {
        const over = times.slice(first, last).map((time, i) => `${x(time).toFixed(1)},${y(ceiling[first + i]).toFixed(1)}`);
        shapes.push(svg("path", { class: `line ${kind}`, d: `M${over.join("L")}` }));
      }
      floor = ceiling;
    }
    for (const { kind } of lines) {
      for (const [first, last] of runs(values[kind])) {
        const points = times.slice(first, last).map((time, i) => `${x(time).toFixed(1)},${y(values[kind][first + i]).toFixed(1)}`);
        shapes.push(svg("path", { class: `line ${kind}`, d: `M${points.join("L")}` }));
      }
    }
    if (cursor !== null && times[cursor] !== undefined) {
      shapes.push(svg("line", { class: "cursor", x1: x(times[cursor]), x2: x(times[cursor]), y1: TOP, y2: height - BOTTOM }));
    }
    plot.setAttribute("width", width);
    plot.setAttribute("height", height);
    plot.replaceChildren(...shapes);
    say();
  }

  function say() {
    const { times, values } = data;
    const at = cursor ?? times.length - 1;
    const shown = [...areas, ...lines].map(({ kind, label }) => `${label} ${format(values[kind][at] ?? null)}`).join("  ·  ");
    const isKnown = [...areas, ...lines].some(({ kind }) => (values[kind][at] ?? null) !== null);
    if (times[at] === undefined) setText(readout, "No samples yet.");
    else if (cursor === null && !isKnown) setText(readout, "now:  no prompts lately");
    else setText(readout, `${cursor === null ? "now" : clock(times[at])}:  ${shown}`);
    frame.setAttribute("aria-label", `${title}. ${readout.textContent}`);
  }

  function point(index) {
    cursor = index;
    readout.setAttribute("aria-live", index === null ? "off" : "polite");
    draw();
  }

  frame.addEventListener("pointermove", (event) => {
    if (data === null || data.times.length === 0) return;
    const { times, end, span } = data;
    const box = frame.getBoundingClientRect();
    const time = end - span + ((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * span;
    let nearest = 0;
    times.forEach((candidate, i) => {
      if (Math.abs(candidate - time) < Math.abs(times[nearest] - time)) nearest = i;
    });
    point(nearest);
  });
  frame.addEventListener("pointerleave", () => data && point(null));
  frame.addEventListener("blur", () => data && point(null));
  frame.addEventListener("keydown", (event) => {
    if (data === null || data.times.length === 0) return;
    const last = data.times.length - 1;
    const moves = { ArrowLeft: (cursor ?? last + 1) - 1, ArrowRight: (cursor ?? last) + 1, Home: 0, End: last };
    if (event.key === "Escape") point(null);
    else if (event.key in moves) {
      event.preventDefault();
      point(Math.min(Math.max(moves[event.key], 0), last));
    }
  });
  new ResizeObserver(draw).observe(frame);

  return {
    element,
    update(times, values, end, span) {
      // The cursor stays on its moment while older samples leave.
      if (cursor !== null) {
        const time = data.times[cursor];
        const at = times.indexOf(time);
        cursor = at < 0 ? null : at;
      }
      data = { times, values, end, span };
      draw();
    },
  };
}
