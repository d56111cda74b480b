// What is drawn on a chart beside its series: intervals, tints of layouts, strips below the plot, and marks.

import { h } from "./dom.js";
import { hide, show } from "./tip.js";

/** Height of a strip with its gap. */
export const STRIP = 24;
const TINTS = [1, 4, 6, 5, 7];

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A colour with an opacity, as a canvas takes it. */
export function faded(name, opacity) {
  return `color-mix(in srgb, ${colour(name)} ${Math.round(opacity * 100)}%, transparent)`;
}

/** Layout → number of its colour, in order of appearance; known: layouts that come first. */
export function tintsOf(bands, known = []) {
  const layouts = [...new Set([...known, ...bands.map((one) => one.layout)])].filter(Boolean);
  return Object.fromEntries(layouts.map((layout, index) => [layout, TINTS[index % TINTS.length]]));
}

/** Runs `draw` with the canvas clipped to the plot, or with `below` to what lies under it. */
export function clipped(chart, draw, below = 0) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height + below);
  ctx.clip();
  draw(ctx, bbox);
  ctx.restore();
}

const across = (chart, band) => {
  const left = chart.valToPos(band.start, "x", true);
  return [left, chart.valToPos(band.end, "x", true) - left];
};

/** Tints over the height of the plot. */
export function drawBands(chart, bands, tints) {
  clipped(chart, (ctx, bbox) => {
    for (const band of bands) {
      if (!band.layout) continue;
      const [left, width] = across(chart, band);
      ctx.fillStyle = faded(`c${tints[band.layout]}`, 0.16);
      ctx.fillRect(left, bbox.top, width, bbox.height);
    }
  });
}

/** Rows between the plot and its axis, each with a name and the layouts that it had. */
export function drawStrips(chart, strips, tints) {
  const { ctx, bbox } = chart;
  const dot = devicePixelRatio;
  const top = (index) => bbox.top + bbox.height + (4 + index * STRIP) * dot;
  ctx.save();
  ctx.font = `${11 * dot}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  ctx.fillStyle = colour("faint");
  strips.forEach((strip, index) => ctx.fillText(strip.name, bbox.left - 6 * dot, top(index) + 10 * dot));
  ctx.restore();
  clipped(chart, () => {
    ctx.textAlign = "left";
    ctx.font = `${11 * dot}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    strips.forEach((strip, index) => strip.bands.filter((band) => band.layout).forEach((band) => {
      const [left, width] = across(chart, band);
      ctx.fillStyle = faded(`c${tints[band.layout]}`, 0.2);
      ctx.fillRect(left, top(index), Math.max(dot, width - dot), (STRIP - 5) * dot);
      ctx.fillStyle = colour(`c${tints[band.layout]}`);
      ctx.fillRect(left, top(index), Math.min(3 * dot, width), (STRIP - 5) * dot);
      const start = Math.max(left, bbox.left) + 8 * dot;
      if (start + ctx.measureText(band.layout).width > left + width) return;
      ctx.fillStyle = colour("ink");
      ctx.fillText(band.layout, start, top(index) + 10 * dot);
    }));
  }, strips.length * STRIP * dot + 4 * dot);
}

/** 95 % intervals: a band behind the line, and a bar at each point. */
export function drawIntervals(chart, one) {
  const known = (one.bounds ?? []).filter(([, low, high]) => low !== null && high !== null);
  if (!known.length) return;
  const place = ([x, y]) => [chart.valToPos(x, "x", true), chart.valToPos(y, "y", true)];
  clipped(chart, (ctx) => {
    if (known.length > 1) {
      ctx.beginPath();
      known.forEach(([x, , high], index) => ctx[index ? "lineTo" : "moveTo"](...place([x, high])));
      [...known].reverse().forEach(([x, low]) => ctx.lineTo(...place([x, low])));
      ctx.closePath();
      ctx.fillStyle = faded(`c${one.colour}`, 0.16);
      ctx.fill();
    }
    ctx.strokeStyle = colour(`c${one.colour}`);
    ctx.lineWidth = devicePixelRatio;
    for (const [x, low, high] of known) {
      const [middle, from] = place([x, low]);
      const [, to] = place([x, high]);
      const wing = 3 * devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(middle, from);
      ctx.lineTo(middle, to);
      for (const end of [from, to]) {
        ctx.moveTo(middle - wing, end);
        ctx.lineTo(middle + wing, end);
      }
      ctx.stroke();
    }
  });
}

/** A dashed line at each mark in view, with a button above it; what a mark says is its tooltip. */
export function placeMarks(chart, marks, strips) {
  const below = strips.length * STRIP * devicePixelRatio;
  clipped(chart, (ctx, bbox) => {
    ctx.strokeStyle = colour("ink");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const mark of marks) {
      const x = Math.round(chart.valToPos(mark.x, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height + below);
      ctx.stroke();
    }
  }, below);
  const known = chart.root.marks ?? (chart.root.marks = new Map());
  const text = (mark) => JSON.stringify([mark.x, mark.lines]);
  const wanted = new Set(marks.map(text));
  for (const [key, button] of known) {
    if (wanted.has(key)) continue;
    button.remove();
    known.delete(key);
  }
  for (const mark of marks) {
    const key = text(mark);
    if (!known.has(key)) {
      known.set(key, markButton(mark.lines));
      chart.over.append(known.get(key));
    }
    const left = chart.valToPos(mark.x, "x");
    const button = known.get(key);
    button.hidden = left < -1 || left > chart.over.clientWidth + 1;
    button.style.left = `${left}px`;
  }
}

function markButton(lines) {
  const button = h("button", { type: "button", class: "mark", "aria-label": lines.join(". ") });
  const near = (event) => {
    event.stopPropagation();
    const box = button.getBoundingClientRect();
    show(lines, box.left + box.width / 2, box.top + 8);
  };
  for (const name of ["pointerenter", "pointermove", "mousemove", "focus", "click"]) button.addEventListener(name, near);
  for (const name of ["pointerleave", "blur"]) button.addEventListener(name, hide);
  return button;
}
