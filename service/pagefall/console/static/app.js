// The page: which view is shown, who is signed in, whether the server answers, which colours.

import { getJson, hasKey, Refused, setKey } from "./api.js";
import { createChat } from "./chat.js";
import { createDiagnosis } from "./diagnosis.js";
import { byId, h, setText, svg } from "./dom.js";
import { Fleet } from "./fleet.js";
import { seconds } from "./format.js";
import { History } from "./history.js";
import { createOverview } from "./overview.js";
import { poll } from "./poll.js";
import { createRequests } from "./requests.js";
import { createTree } from "./tree.js";
import { createWorkers } from "./workers.js";

const POLL_MS = 2000;

const makers = {
  workers: createWorkers,
  overview: createOverview,
  requests: createRequests,
  tree: createTree,
  diagnosis: createDiagnosis,
  chat: createChat,
};
const views = {};
const history = new History();
const fleet = new Fleet(byId("worker"), byId("worker-choice"), startOver);
/** What views know: `path` makes a path of the server's one of the chosen worker's, `look` chooses another. */
const app = { model: null, latest: null, fleet, refused, path: (path) => fleet.path(path), look };
let shown = null;
let polling = null;
/** The last question: another one makes its answer worthless. `trouble` is what came in the way of it. */
let question = { trouble: null };

/** Takes a failure that concerns the whole page: a key that is missing or wrong. Returns whether it was one. */
function refused(error) {
  if (!(error instanceof Refused && error.needsKey)) return false;
  polling?.stop();
  polling = null;
  askForKey(error.message);
  return true;
}

function askForKey(message) {
  leaveView();
  byId("view").replaceChildren();
  setState("signed out", "warn");
  setText(byId("sign-in-error"), hasKey() ? message : "");
  byId("sign-out").hidden = true;
  byId("banner").hidden = true;
  byId("sign-in").hidden = false;
  byId("key").value = "";
  byId("key").focus();
}

function leaveView() {
  shown?.leave?.();
  shown = null;
}

function showView() {
  if (polling === null) return;
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const known = name in makers && (name !== "workers" || fleet.isThere) ? name : "overview";
  const params = rest.map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  for (const link of byId("views").children) {
    if (link.getAttribute("href") === `#/${known}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  views[known] ??= makers[known](app);
  if (shown !== views[known]) {
    leaveView();
    shown = views[known];
    byId("view").replaceChildren(shown.element);
  }
  document.title = `${shown.title} · Pagefall`;
  shown.enter?.(params);
  if (fleet.isThere) shown.fleet?.();
  if (app.latest !== null) shown.stats?.(app.latest, history);
}

function setState(words, mood) {
  const state = byId("state");
  setText(state, words);
  state.className = `state ${mood}`;
}

/** Asks a router about its workers, and a server whether it is one; returns what a server that is none has answered. */
async function askFleet(signal) {
  const query = fleet.isThere ? `?since=${Date.now() / 1000}` : history.query;
  const stats = await getJson(`cache/stats${query}`, { signal });
  const isRouter = fleet.take(stats);
  byId("workers-link").hidden = !isRouter;
  if (isRouter) return null;
  return query === history.query ? stats : getJson("cache/stats", { signal });
}

/** What the views are about: the server's own statistics, or those of the worker that is chosen; null where it has none. */
async function ask(mine, signal) {
  const stats = await askFleet(signal);
  if (stats !== null) return stats;
  shown?.fleet?.();
  try {
    return await getJson(fleet.path(`cache/stats${history.query}`), { signal });
  } catch (error) {
    if (!(error instanceof Refused) || error.needsKey) throw error;
    mine.trouble = error.message;
    return null;
  }
}

async function update(signal) {
  const mine = (question = { trouble: null });
  let stats = await ask(mine, signal);
  if (mine !== question) return; // another worker was chosen meanwhile
  if (stats !== null && !history.take(stats)) {
    stats = await getJson(fleet.path("cache/stats"), { signal });
    if (mine !== question) return;
    history.take(stats);
  }
  if (stats === null) showTrouble(mine.trouble);
  else showLive(stats);
  byId("sign-in").hidden = true;
  byId("sign-out").hidden = !hasKey();
  if (shown === null) showView();
  else if (stats !== null) shown.stats?.(stats, history);
}

function showLive(stats) {
  app.latest = stats;
  app.model = stats.model;
  setText(byId("model"), stats.model);
  setState("live", "good");
  setText(byId("foot"), `Pagefall ${stats.version} · up ${seconds(stats.uptime_seconds)} · pages of ${stats.page_size} tokens · context ${stats.context_length.toLocaleString("en")} tokens`);
  byId("banner").hidden = true;
}

/** The router answers, and the worker that is chosen does not. */
function showTrouble(message) {
  setState("no statistics", "warn");
  setText(byId("banner"), `${fleet.worker} shows no statistics: ${message}`);
  byId("banner").hidden = false;
}

function onFailure(error, wait) {
  if (refused(error)) return false;
  setState("unreachable", "bad");
  const banner = byId("banner");
  banner.hidden = false;
  const why = error instanceof Refused ? error.message : "The server cannot be reached.";
  setText(banner, `${why} Trying again ${wait > 1500 ? `every ${Math.round(wait / 1000)} seconds` : "now"}; what is shown is from before.`);
  return true;
}

function start() {
  polling?.stop();
  polling = poll(update, POLL_MS, onFailure);
}

/** The views are about something else now: what they have is of no use. */
function startOver() {
  question = { trouble: null };
  leaveView();
  history.forget();
  app.latest = null;
  for (const name of Object.keys(views)) delete views[name];
  polling?.now();
}

function look(worker) {
  fleet.choose(worker);
  location.hash = "#/overview";
  startOver();
}

byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key").value.trim());
  setText(byId("sign-in-error"), "");
  start();
});

byId("sign-out").addEventListener("click", () => {
  setKey("");
  polling?.stop();
  polling = null;
  startOver();
  fleet.forget();
  byId("workers-link").hidden = true;
  setText(byId("model"), "");
  setText(byId("foot"), "");
  askForKey("");
});

window.addEventListener("hashchange", () => {
  byId("main").focus({ preventScroll: true });  // unless the view has a better place for it
  showView();
});

const SCHEMES = { "": ["as the system", "M12 3a9 9 0 100 18 9 9 0 000-18zm0 2v14a7 7 0 010-14z"], light: ["light", "M12 7a5 5 0 100 10 5 5 0 000-10zm-1-5h2v3h-2zm0 17h2v3h-2zM2 11h3v2H2zm17 0h3v2h-3zM4.2 5.6l1.4-1.4 2.1 2.1-1.4 1.4zm12.1 12.1l1.4-1.4 2.1 2.1-1.4 1.4zM4.2 18.4l2.1-2.1 1.4 1.4-2.1 2.1zM16.3 6.3l2.1-2.1 1.4 1.4-2.1 2.1z"], dark: ["dark", "M20 14.5A8.5 8.5 0 019.500 4 8.500 8.500 0 1020 14.500z"] };

function showScheme() {
  const [words, path] = SCHEMES[document.documentElement.dataset.scheme ?? ""];
  byId("theme").setAttribute("aria-label", `Colours: ${words}. Change`);
  byId("theme").title = `Colours: ${words}`;
  byId("theme").replaceChildren(svg("svg", { viewBox: "0 0 24 24", width: 18, height: 18, "aria-hidden": "true" }, svg("path", { d: path, fill: "currentColor" })));
}

byId("theme").addEventListener("click", () => {
  const names = Object.keys(SCHEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.scheme ?? "") + 1) % names.length];
  if (next === "") delete document.documentElement.dataset.scheme;
  else document.documentElement.dataset.scheme = next;
  try {
    if (next === "") localStorage.removeItem("pagefall.scheme");
    else localStorage.setItem("pagefall.scheme", next);
  } catch {
    // A browser that keeps nothing: until the page is loaded again.
  }
  showScheme();
});

showScheme();
byId("view").replaceChildren(h("p", { class: "muted narrow" }, "Asking the server …"));
start();
