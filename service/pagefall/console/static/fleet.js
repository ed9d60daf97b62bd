// Behind a router: which of its workers the views are about. A server that stands alone has none.

import { setText } from "./dom.js";

const KEY = "pagefall.worker";

export class Fleet {
  /** `select` offers the workers, in `label`, which is hidden where there are none; `onChange()` hears of a choice. */
  constructor(select, label, onChange) {
    this._select = select;
    this._label = label;
    this.forget();
    select.addEventListener("change", () => {
      this.choose(select.value);
      onChange();
    });
  }

  forget() {
    this.latest = null;
    this.worker = null;
    this._label.hidden = true;
  }

  get isThere() {
    return this.latest !== null;
  }

  choose(name) {
    this.worker = name;
    this._select.value = name;
    try {
      sessionStorage.setItem(KEY, name);
    } catch {
      // A browser that keeps nothing: until the page is loaded again.
    }
  }

  /** Takes an answer of /cache/stats; returns whether it is a router's. */
  take(stats) {
    if (stats.workers === undefined) {
      this.forget();
      return false;
    }
    this.latest = stats;
    const names = Object.keys(stats.states);
    if ([...this._select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
      this._select.replaceChildren(...names.map((name) => new Option(name, name)));
    }
    for (const option of this._select.options) {
      const state = stats.states[option.value];
      setText(option, state === "healthy" ? option.value : `${option.value} (${state})`);
    }
    if (!names.includes(this.worker)) this.worker = names.includes(remembered()) ? remembered() : (Object.keys(stats.workers)[0] ?? names[0] ?? null);
    this._select.value = this.worker ?? "";
    this._label.hidden = names.length === 0;
    return true;
  }

  /** `path` as it is asked of the chosen worker. */
  path(path) {
    if (this.worker === null) return path;
    return `${path}${path.includes("?") ? "&" : "?"}worker=${encodeURIComponent(this.worker)}`;
  }
}

function remembered() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}
