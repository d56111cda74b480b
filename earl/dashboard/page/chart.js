// Line charts: a crosshair reads them, by pointer, by touch and with the arrow keys.

import { empty, h, put, s } from "./dom.js";
import { BOTTOM, LEFT, RIGHT, TOP, fitted, horizontal, linear, range, ticks, vertical, wholeTicks } from "./scale.js";
import { number } from "./text.js";
import { hide, show } from "./tip.js";

const HEIGHT = 210;

/**
 * A card with a chart. update({series, x, format, range, zero, absent}):
 * series: {name, points: [[x, y]], colour, faint, dots, bounds: [[x, low, high]]}; x: the axis' name;
 * absent: what stands in its place while there is nothing.
 */
export class Chart {
  constructor(title, note) {
    this.plot = h("div", { class: "plot" });
    this.legend = h("p", { class: "legend" });
    this.note = h("p", { class: "note" }, note);
    this.title = title;
    this.element = h("div", { class: "card" }, h("h3", {}, title), this.note, this.plot, this.legend);
    this.redraw = fitted(this.plot, (width) => this.draw(width));
    this.data = { series: [], absent: "" };
  }

  update(data) {
    this.data = { format: number, x: "training step", ...data };
    this.data.series = this.data.series.filter((one) => one.points.length);
    put(this.legend, this.data.series.length > 1 && this.data.series.map((one) =>
      h("span", {}, h("i", { class: `c${one.colour}${one.faint ? " faint" : ""}${one.dots ? " dot" : ""}` }), one.name)));
    this.redraw();
  }

  draw(width) {
    const { series, absent, x: name, format } = this.data;
    if (!series.length) {
      put(this.plot, empty(absent));
      return;
    }
    const [xLow, xHigh] = range(series.flatMap((one) => one.points.map((point) => point[0])));
    const every = series.flatMap((one) => [...one.points.map((point) => point[1]), ...(one.bounds ?? []).flatMap((b) => b.slice(1))]);
    const [low, high] = this.data.range ?? range(every, this.data.zero);
    const yTicks = ticks(low, high, 5);
    const yLow = Math.min(low, yTicks[0]);
    const yHigh = Math.max(high, yTicks.at(-1));
    const x = linear(xLow, xHigh, LEFT, width - RIGHT);
    const y = linear(yLow, yHigh, HEIGHT - BOTTOM, TOP);
    this.cross = s("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    const pick = name.startsWith("training") ? wholeTicks : ticks;
    const svg = s("svg", { width, height: HEIGHT, role: "img", tabindex: 0, "aria-label": this.summary() },
      vertical(yTicks, y, width, (value) => format(value)),
      horizontal(pick(xLow, xHigh, Math.max(4, Math.floor(width / 70))), x, width, HEIGHT, name, (value) => number(value, 4)),
      series.map((one) => this.line(one, x, y)),
      this.cross);
    this.listen(svg, x);
    const focused = this.plot.contains(document.activeElement);
    put(this.plot, svg);
    if (focused) svg.focus({ preventScroll: true });
  }

  line(one, x, y) {
    const path = (points) => points.map(([at, value], index) => `${index ? "L" : "M"}${x(at)} ${y(value)}`).join("");
    const drawn = [];
    const bounds = (one.bounds ?? []).filter((b) => b[1] !== null && b[2] !== null);
    if (bounds.length > 1) {
      const back = [...bounds].reverse().map(([at, low]) => `L${x(at)} ${y(low)}`).join("");
      drawn.push(s("path", { class: `area c${one.colour}`, d: `${path(bounds.map(([at, , high]) => [at, high]))}${back}Z` }));
    }
    bounds.forEach(([at, low, high]) =>
      drawn.push(s("path", { class: `line thin c${one.colour}`, d: `M${x(at)} ${y(low)}V${y(high)}M${x(at) - 3} ${y(low)}h6M${x(at) - 3} ${y(high)}h6` })));
    if (!one.dots || one.points.length > 1) {
      drawn.push(s("path", { class: `line c${one.colour}${one.faint ? " faint" : ""}${one.dots ? " thin" : ""}`, d: path(one.points) }));
    }
    if (one.dots || one.points.length === 1) {
      one.points.forEach(([at, value]) => drawn.push(s("circle", { class: `c${one.colour}`, cx: x(at), cy: y(value), r: 3.5 })));
    }
    return drawn;
  }

  summary() {
    const { series, format, x } = this.data;
    const last = series.map((one) => `${one.name} ${format(one.points.at(-1)[1])}`).join(", ");
    const main = series[0].points;
    return `${this.title}: ${last} at ${x} ${number(main.at(-1)[0], 4)}. Arrow keys read single points.`;
  }

  listen(svg, x) {
    const main = this.data.series.reduce((a, b) => (b.points.length > a.points.length ? b : a)).points;
    let index = main.length - 1;
    const read = (next, clientX, clientY) => {
      index = Math.max(0, Math.min(main.length - 1, next));
      const place = x(main[index][0]);
      this.cross.setAttribute("x1", place);
      this.cross.setAttribute("x2", place);
      this.cross.setAttribute("visibility", "visible");
      const box = svg.getBoundingClientRect();
      show(this.lines(main[index][0]), clientX ?? box.left + place, clientY ?? box.top + TOP + 30);
    };
    const leave = () => {
      this.cross.setAttribute("visibility", "hidden");
      hide();
    };
    svg.addEventListener("pointermove", (event) => {
      const wanted = event.clientX - svg.getBoundingClientRect().left;
      read(nearest(main, (point) => Math.abs(x(point[0]) - wanted)), event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: main.length - 1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      read(moves[event.key]);
    });
  }

  /** What every series says at x, or nearest to it. */
  lines(x) {
    const { series, format, x: name } = this.data;
    return [`${name} ${number(x, 4)}`, ...series.map((one) => {
      const at = nearest(one.points, (point) => Math.abs(point[0] - x));
      const bound = (one.bounds ?? []).find((b) => b[0] === one.points[at][0]);
      const where = one.points[at][0] === x ? "" : ` (at ${number(one.points[at][0], 4)})`;
      const within = bound && bound[1] !== null ? ` [${format(bound[1])}, ${format(bound[2])}]` : "";
      return `${one.name}: ${format(one.points[at][1])}${within}${where}`;
    })];
  }
}

export function nearest(points, distance) {
  let best = 0;
  for (let at = 1; at < points.length; at += 1) if (distance(points[at]) < distance(points[best])) best = at;
  return best;
}

/** Running mean over `wide` points that end at each. */
export function smooth(points, wide) {
  let sum = 0;
  return points.map(([x, y], at) => {
    sum += y - (at >= wide ? points[at - wide][1] : 0);
    return [x, sum / Math.min(wide, at + 1)];
  });
}
