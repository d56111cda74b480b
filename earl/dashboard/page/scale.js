// Axes: round numbers, places on the screen, and the frame that charts share.

import { s } from "./dom.js";

export const LEFT = 48;
export const RIGHT = 12;
export const TOP = 14;
export const BOTTOM = 34;

/** About `wanted` round numbers within [low, high]. */
export function ticks(low, high, wanted = 5) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, wanted - 1);
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * size).find((one) => one >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) + 0; at * step <= high + step * 1e-9; at += 1) found.push(at * step + 0);
  return found;
}

/** Steps are whole numbers. */
export const wholeTicks = (low, high, wanted) => ticks(low, high, wanted).filter((one) => Number.isInteger(one));

/** [low, high] → pixels. */
export function linear(low, high, from, to) {
  const span = high - low || 1;
  return (value) => Math.round((from + ((value - low) / span) * (to - from)) * 10) / 10;
}

/** A range that holds all values, 0 too if asked, and is not flat. */
export function range(values, zero) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  if (zero) [low, high] = [Math.min(0, low), Math.max(0, high)];
  if (low === high) return [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  return [low, high];
}

/** Lines and numbers of the vertical axis. */
export function vertical(values, place, width, text) {
  return values.map((value) => [
    s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: place(value), y2: place(value) }),
    s("text", { class: "tick", x: LEFT - 7, y: place(value) + 4, "text-anchor": "end" }, text(value)),
  ]);
}

/** Numbers and the name of the horizontal axis. */
export function horizontal(values, place, width, height, name, text) {
  return [
    values.map((value) =>
      s("text", { class: "tick", x: place(value), y: height - BOTTOM + 15, "text-anchor": "middle" }, text(value))),
    s("text", { class: "tick", x: (LEFT + width - RIGHT) / 2, y: height - 3, "text-anchor": "middle" }, name),
  ];
}

/** Draws into `element` now and whenever its width changes; draw(width) must not change it. */
export function fitted(element, draw) {
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width && width !== drawn) draw((drawn = width));
  }).observe(element);
  return () => drawn && draw(drawn);
}
