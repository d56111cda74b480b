// Line charts, drawn by uPlot: drag to zoom, double-click to see all again; one crosshair for all charts of a
// page. Read by pointer, by touch and with the arrow keys.

import { empty, h, put } from "./dom.js";
import { STRIP, colour, drawBands, drawIntervals, drawStrips, faded, placeMarks, tintsOf } from "./layers.js";
import { number, tokens } from "./text.js";
import { hide, show } from "./tip.js";

const { uPlot } = window;
const HEIGHT = 210;
const SYNC = "page";

// Called by redrawAll when the colour scheme changes: a canvas does not follow the style sheet.
const drawn = new Set();
new MutationObserver(() => redrawAll()).observe(document.documentElement, { attributeFilter: ["data-scheme"] });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redrawAll());

function redrawAll() {
  for (const chart of drawn) chart.rebuild();
}

/**
 * A card with a chart. update({series, x, format, ticks, range, reach, within, zero, log, bands, strips, marks, under, key, tell, absent}):
 * series: {name, points: [[x, y]], colour, faint, dots, bounds: [[x, low, high]]}; x: the axis' name;
 * ticks: what may lie between two ticks of the vertical axis; range, reach: [low, high] of the vertical and the horizontal axis; within: values that are on the vertical one too; log: 2 or 10, a logarithmic vertical axis;
 * bands: [{layout, start, end}] behind the series; strips: [{name, bands}] below the plot; marks: [{x, lines}];
 * under: draws behind the series; key: more of the legend; tell: lines of the tooltip at x;
 * absent: what stands in its place while there is nothing.
 */
export class Chart {
  constructor(title, note, ...controls) {
    this.height = HEIGHT;
    this.plot = h("div", { class: "plot", tabindex: 0, role: "img", "aria-label": title });
    this.legend = h("p", { class: "legend" });
    this.note = h("p", { class: "note" }, note);
    this.heading = h("h3", {}, title);
    this.title = title;
    this.element = h("div", { class: "card" }, this.heading, this.note, controls, this.plot, this.legend);
    this.data = { series: [], absent: "" };
    this.width = 0;
    new ResizeObserver(() => this.resized()).observe(this.plot);
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.leave());
    drawn.add(this);
  }

  rename(title) {
    this.title = title;
    this.heading.textContent = title;
  }

  update(data) {
    this.data = { format: number, x: "training step", bands: [], strips: [], marks: [], ...data };
    this.data.series = this.data.series.filter((one) => one.points.length);
    const { series, bands, strips, marks, key } = this.data;
    this.tints = tintsOf([...bands, ...strips.flatMap((one) => one.bands)], this.data.layouts);
    put(this.legend, (series.length > 1 || key) && series.map((one) =>
      h("span", {}, h("i", { class: `c${one.colour}${one.faint ? " faint" : ""}${one.dots ? " dot" : ""}` }), one.name)),
    [...new Set(bands.map((one) => one.layout))].map((layout) => h("span", {}, h("i", { class: `c${this.tints[layout]} tint` }), layout)), key);
    this.plot.setAttribute("role", marks.length ? "group" : "img");
    this.plot.style.height = `${this.tall()}px`;
    this.element.classList.toggle("without", !series.length);
    if (!series.length) {
      this.destroy();
      put(this.plot, this.data.absent && empty(this.data.absent));
      return;
    }
    this.xs = [...new Set(series.flatMap((one) => [...one.points.map(([x]) => x), ...(one.bounds ?? []).map(([x]) => x)]))].sort((a, b) => a - b);
    this.columns = series.map((one) => {
      const values = new Map(one.points);
      return this.xs.map((x) => values.get(x) ?? null);
    });
    this.plot.setAttribute("aria-label", this.summary());
    const shape = JSON.stringify([series.map((one) => [one.name, one.colour, one.faint, one.dots]), this.data.x, this.data.log, this.data.range, this.data.reach, strips.length, marks.length > 0]);
    if (!this.chart || shape !== this.shape) {
      this.shape = shape;
      this.rebuild();
    } else {
      // A zoom stays while new steps come.
      const zoomed = this.zoomed;
      this.chart.setData([this.xs, ...this.columns], !zoomed);
      if (zoomed) this.chart.redraw();
    }
  }

  rebuild() {
    if (!this.data.series.length || !this.width) return;
    this.destroy();
    put(this.plot);
    this.chart = new uPlot(this.options(), [this.xs, ...this.columns], this.plot);
    this.zoomed = false;
  }

  destroy() {
    this.chart?.destroy();
    this.chart = null;
  }

  resized() {
    const width = Math.floor(this.plot.clientWidth);
    if (!width || width === this.width) return;
    this.width = width;
    if (this.chart) this.chart.setSize({ width, height: this.tall() });
    else this.rebuild();
  }

  /** Pixels of the whole chart. */
  tall() {
    return this.height + this.data.strips.length * STRIP;
  }

  options() {
    const { series, x, format, ticks, range, reach, within, zero, log, strips, marks } = this.data;
    const axis = (more) => ({
      stroke: colour("faint"), font: "11px system-ui, sans-serif", labelFont: "11px system-ui, sans-serif",
      grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, ...more,
    });
    const below = strips.length * STRIP;
    return {
      width: this.width, height: this.tall(), legend: { show: false }, padding: [marks.length ? 16 : 8, 12, 0, 0],
      cursor: {
        drag: { x: true, y: false }, sync: { key: `${SYNC}:${x}` }, points: { size: 7 },
        bind: { dblclick: (chart) => () => { this.zoomed = false; chart.setData(chart.data, true); return null; } },
      },
      scales: {
        // A zoom is taken as it is; the whole reaches as far as it was asked to.
        x: { time: false, ...(reach && { range: (chart, low, high) => this.span(low, high) }) },
        y: {
          distr: log ? 3 : 1, log: log || 10,
          range: (_, first, last) => {
            const [low, high] = [within ? Math.min(first, within[0]) : first, within ? Math.max(last, within[1]) : last];
            return range ?? (log === 2 ? octaves(low, high) : log ? [low, high] : bounds(low, high, zero));
          },
        },
      },
      axes: [
        axis({ label: x, labelSize: 18, size: 22 + below, gap: 4 + below, grid: { show: false }, space: 70,
          incrs: x === "training step" ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000] : undefined,
          values: (_, places) => places.map((tick) => number(tick, 4)) }),
        axis({ size: 50, gap: 6, ...(ticks && { incrs: ticks }), ...(log === 2 && { splits: (_, __, low, high) => doublings(low, high), filter: (_, places) => places }),
          values: (_, places) => places.map((tick) => (tick === null ? "" : log === 2 ? tokens(tick) : format(tick))) }),
      ],
      series: [{}, ...series.map((one) => ({
        label: one.name, spanGaps: true, stroke: one.faint ? faded(`c${one.colour}`, 0.35) : colour(`c${one.colour}`),
        width: one.faint || one.dots ? 1.2 : 1.8,
        points: { show: one.dots || one.points.length === 1, size: 7, fill: colour(`c${one.colour}`), stroke: colour("card") },
      }))],
      hooks: {
        drawAxes: [(chart) => {
          drawBands(chart, this.data.bands, this.tints);
          this.data.under?.(chart);
        }],
        draw: [(chart) => {
          series.forEach((one) => drawIntervals(chart, one));
          drawStrips(chart, this.data.strips, this.tints);
          placeMarks(chart, this.data.marks, this.data.strips);
        }],
        // For tests and for assistive programs: the stretch of the axis that is shown.
        setScale: [(chart, scale) => { if (scale === "x") this.plot.dataset.range = `${number(chart.scales.x.min, 4)} ${number(chart.scales.x.max, 4)}`; }],
        setSelect: [(chart) => { this.zoomed = chart.select.width > 0; }],
        setCursor: [(chart) => this.read(chart)],
        ready: [(chart) => chart.over.addEventListener("pointerleave", () => this.leave())],
      },
    };
  }

  /** The ends of the horizontal axis: those of a zoom, or all that is to be seen. */
  span(low, high) {
    const [first, last] = this.data.reach;
    return [low <= this.xs[0] ? Math.min(first, low) : low, high >= this.xs.at(-1) ? Math.max(last, high) : high];
  }

  summary() {
    const { series, format, x } = this.data;
    const last = series.map((one) => `${one.name} ${format(one.points.at(-1)[1])}`).join(", ");
    if (this.data.tell) return `${this.title}. Last: ${this.data.tell(this.xs.at(-1)).join(", ")}. Arrow keys read other steps.`;
    return `${this.title}: ${last} at ${x} ${number(series[0].points.at(-1)[0], 4)}. Arrow keys read single points.`;
  }

  /** Shows what is under the pointer of this chart; others of the page move their crosshair with it. */
  read(chart) {
    if (!chart.over.matches(":hover") || chart.cursor.idx === null || chart.cursor.left < 0) return;
    const box = chart.over.getBoundingClientRect();
    show(this.lines(this.xs[chart.cursor.idx]), box.left + chart.cursor.left, box.top + chart.cursor.top);
  }

  leave() {
    this.chart?.setCursor({ left: -10, top: -10 });
    hide();
  }

  key(event) {
    if (!this.chart) return;
    const last = this.xs.length - 1;
    const now = this.index ?? last;
    const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.index = Math.max(0, Math.min(last, moves[event.key]));
    const left = this.chart.valToPos(this.xs[this.index], "x");
    this.chart.setCursor({ left, top: 20 }, false);
    const box = this.chart.over.getBoundingClientRect();
    show(this.lines(this.xs[this.index]), box.left + left, box.top + 20);
  }

  /** The value of every series at x, or nearest to it. */
  lines(x) {
    const { series, format, x: name, tell } = this.data;
    return tell ? tell(x) : [`${name} ${number(x, 4)}`, ...series.map((one) => {
      const at = nearest(one.points, (point) => Math.abs(point[0] - x));
      const bound = (one.bounds ?? []).find((b) => b[0] === one.points[at][0]);
      const where = one.points[at][0] === x ? "" : ` (at ${number(one.points[at][0], 4)})`;
      const within = bound && bound[1] !== null ? ` [${format(bound[1])}, ${format(bound[2])}]` : "";
      return `${one.name}: ${format(one.points[at][1])}${within}${where}`;
    })];
  }
}

/** Powers of two around a range of positive values. */
function octaves(low, high) {
  if (!(low > 0)) return [1, 2];
  const [first, last] = [Math.floor(Math.log2(low)), Math.ceil(Math.log2(high))];
  return [2 ** first, 2 ** Math.max(last, first + 1)];
}

/** Ticks of a doubling axis: powers of two, or three lengths between where those would be too few. */
function doublings(low, high) {
  const [first, last] = [Math.ceil(Math.log2(low) - 1e-9), Math.floor(Math.log2(high) + 1e-9)];
  if (last - first < 1) return [0.15, 0.5, 0.85].map((part) => Math.round(low * (high / low) ** part));
  const each = Math.ceil((last - first + 1) / 8);
  return Array.from({ length: Math.floor((last - first) / each) + 1 }, (_, index) => 2 ** (first + index * each));
}

/** A range that holds all values, 0 too if asked, and is not flat. */
function bounds(low, high, zero) {
  if (low === null || high === null) return [0, 1];
  if (zero) [low, high] = [Math.min(0, low), Math.max(0, high)];
  if (low === high) return [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const room = (high - low) * 0.05;
  return [zero && low === 0 ? 0 : low - room, high + room];
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
