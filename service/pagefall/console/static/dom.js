// Elements from code. Text is always text: nothing here, or anywhere in the console, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "width%") element.style.width = `${value}%`;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** `h("p", {class: "note"}, "text", other)`; `onclick` and the like are listeners, "width%" a width in percent. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

/** Sets the text only where it has changed, so that a selection in it survives. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes the children of `container` those of `items`, keeping the element of each key, its focus and its place. */
export function keyed(container, items, keyOf, create, update) {
  const old = new Map([...container.children].map((child) => [child.dataset.key, child]));
  let at = container.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = old.get(key);
    if (element === undefined) {
      element = create(item);
      element.dataset.key = key;
    }
    old.delete(key);
    update(element, item);
    if (element === at) at = at.nextElementSibling;
    else container.insertBefore(element, at);
  }
  for (const gone of old.values()) gone.remove();
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const NAMES = { "\r": "␍", "\u00a0": "⍽" };

/** Characters that cannot be seen, or that reorder others, by name; `edges`: spaces at the start too, and line ends. */
export function visible(text, { edges = false } = {}) {
  let shown = text.replace(HIDDEN, (c) => NAMES[c] ?? `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  if (edges) {
    shown = shown.replace(/^[ \t]+/, (run) => run.replaceAll(" ", "·").replaceAll("\t", "⇥")).replaceAll("\n", "⏎\n");
  }
  return shown;
}
