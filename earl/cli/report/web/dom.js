// Elements made of text: whatever comes from a model or an environment becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. given: attributes (on…: listeners, class, data-…); what follows: nodes or texts. */
export function h(name, given = {}, ...inside) {
  return fill(document.createElement(name), given, inside);
}

/** An SVG element. */
export function s(name, given = {}, ...inside) {
  return fill(document.createElementNS(SVG, name), given, inside);
}

function fill(element, given, inside) {
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || (value === false && !key.startsWith("aria-"))) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : String(value));
  }
  element.append(...inside.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

/** Replaces what an element holds. */
export function put(element, ...inside) {
  element.replaceChildren(...inside.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
}

export const at = (id) => document.getElementById(id);

/** A card's head: its title and, in faint text, what it means. */
export function head(title, note = "") {
  return [h("h3", {}, title), note && h("p", { class: "note" }, note)];
}

/** What stands where there is nothing to show yet. */
export function empty(text) {
  return h("p", { class: "empty" }, text);
}

/** A table; heads: texts, those that begin with "#" are over numbers. rows: of texts or nodes. */
export function table(label, heads, rows) {
  const numeric = heads.map((text) => text.startsWith("#"));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", {},
      h("thead", {}, h("tr", {}, heads.map((text, at) =>
        h("th", { scope: "col", class: numeric[at] && "number" }, text.replace(/^#/, ""))))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) =>
        h("td", { class: numeric[at] && "number" }, cell)))))));
}
