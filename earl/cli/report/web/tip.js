// One tooltip for the page: by pointer, by touch and by keyboard focus. Escape puts it away.

import { at, h, put } from "./dom.js";

const GAP = 12;

/** Shows lines of text near a point of the window; the first line stands out. */
export function show(lines, x, y) {
  const tip = at("tip");
  put(tip, lines.filter(Boolean).map((line, index) => h(index ? "span" : "b", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + GAP), window.innerWidth - width - 8);
  const above = y - height - GAP;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : Math.min(y + GAP, window.innerHeight - height - 8)}px`;
}

export function hide() {
  at("tip").hidden = true;
}

/** Gives an element a tooltip. lines: called when it is wanted. */
export function tipped(element, lines) {
  const near = () => {
    const box = element.getBoundingClientRect();
    show(lines(), box.left + box.width / 2, box.top);
  };
  element.addEventListener("pointerenter", near);
  element.addEventListener("pointerleave", hide);
  element.addEventListener("focus", near);
  element.addEventListener("blur", hide);
  element.addEventListener("click", near);
  return element;
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});
document.addEventListener("scroll", hide, { passive: true });
