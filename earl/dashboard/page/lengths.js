// The length distribution over training steps as a heat map, with the stages' layouts as bands under it.

import { at, empty, h, head, put, s } from "./dom.js";
import { BOTTOM, LEFT, RIGHT, TOP, fitted, horizontal, linear, wholeTicks } from "./scale.js";
import { bytes, count, duration, tokens } from "./text.js";
import { hide, show } from "./tip.js";

const MAP = 220;
const STRIP = 24;
const LEVELS = 8;
const LEAST_BINS = 8;
const TINTS = [1, 4, 6, 5, 7];

export class Lengths {
  constructor() {
    this.plot = h("div", { class: "plot tall" });
    this.legend = h("p", { class: "legend" });
    this.list = h("div", {});
    put(at("map"), head("Episode length", "Tokens of the whole episodes that each step trained on; darker: more of them ended there. " +
      "Under it, how each stage was cut; lines: switches, each with its reason."), this.plot, this.legend, this.list);
    this.redraw = fitted(this.plot, (width) => this.draw(width));
    this.update({ columns: [], stages: [], switches: [], per_octave: 0 });
  }

  update(data) {
    this.data = data;
    const layouts = [...new Set(data.stages.flatMap((stage) => stage.ran.map((band) => band.layout)))].filter(Boolean);
    this.tints = Object.fromEntries(layouts.map((layout, index) => [layout, TINTS[index % TINTS.length]]));
    this.redraw();
    this.listed();
  }

  draw(width) {
    const { columns, stages, switches } = this.data;
    if (!columns.length) {
      put(this.plot, empty("The first training step is still to come: then each one is a column of episode lengths."));
      put(this.legend);
      return;
    }
    const first = columns[0].first - 1;
    const x = linear(first, columns.at(-1).last, LEFT, width - RIGHT);
    const bins = this.bins();
    const floor = MAP - BOTTOM + TOP;
    const y = linear(bins.low, bins.high, floor, TOP + 8);
    const most = Math.max(...columns.flatMap((one) => shares(one).map(([, share]) => share)));
    const height = floor + stages.length * STRIP + BOTTOM + 6;
    this.cross = s("rect", { class: "column", y: TOP, height: floor - TOP, visibility: "hidden" });
    const svg = s("svg", { width, height, role: "img", tabindex: 0, "aria-label": this.summary() },
      this.cells(x, y, most), this.ticks(bins, y, width),
      s("path", { class: "line mean", d: columns.map((one, index) =>
        `${index ? "L" : "M"}${x((one.first - 1 + one.last) / 2)} ${y(this.bin(one.mean))}`).join("") }),
      stages.map((stage, index) => this.strip(stage, x, floor + 4 + index * STRIP, width)),
      horizontal(wholeTicks(first, columns.at(-1).last, Math.max(3, Math.floor(width / 110))), x, width, height, "training step", count),
      this.cross, this.marks(switches, x, floor + stages.length * STRIP));
    this.listen(svg, x);
    const focused = this.plot.firstChild && this.plot.firstChild === document.activeElement;
    put(this.plot, svg);
    if (focused) svg.focus({ preventScroll: true });
    const scale = [...Array(LEVELS).keys()].map((level) => h("i", { class: `h${level + 1} level` }));
    put(this.legend, h("span", {}, "share of a step’s trajectories: up to ", `${((most / LEVELS ** 2) * 100).toFixed(1)} % `, scale, ` ${Math.round(most * 100)} %`),
      h("span", {}, h("i", { class: "stroke" }), "mean"));
  }

  bin(length) {
    return this.data.per_octave * Math.log2(Math.max(1, length));
  }

  bins() {
    const every = this.data.columns.flatMap((one) => Object.keys(one.bins).map(Number));
    let low = Math.min(...every);
    let high = Math.max(...every) + 1;
    const spare = Math.max(0, LEAST_BINS - (high - low));
    low -= Math.floor(spare / 2);
    high += spare - Math.floor(spare / 2);
    return { low, high };
  }

  cells(x, y, most) {
    const paths = {};
    for (const column of this.data.columns) {
      for (const [bin, share] of shares(column)) {
        const level = Math.max(1, Math.ceil(LEVELS * Math.sqrt(share / most)));
        (paths[level] ??= []).push(`M${x(column.first - 1)} ${y(bin + 1)}H${x(column.last)}V${y(bin)}H${x(column.first - 1)}z`);
      }
    }
    return Object.entries(paths).map(([level, boxes]) => s("path", { class: `h${level}`, d: boxes.join("") }));
  }

  ticks({ low, high }, y, width) {
    const found = [];
    const each = this.data.per_octave;
    for (let power = Math.ceil(low / each); power * each <= high; power += 1) found.push([2 ** power, power * each]);
    const shown = found.length > 2 ? found : [0.15, 0.5, 0.85].map((part) => low + (high - low) * part).map((bin) => [Math.round(2 ** (bin / each)), bin]);
    return shown.map(([length, bin]) => [
      s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(bin), y2: y(bin) }),
      s("text", { class: "tick", x: LEFT - 7, y: y(bin) + 4, "text-anchor": "end" }, tokens(length)),
    ]);
  }

  strip(stage, x, top, width) {
    const short = { trainer: "train", reference: "ref." }[stage.name] ?? stage.name;
    return [
      s("text", { class: "tick", x: LEFT - 7, y: top + 15, "text-anchor": "end" }, short),
      stage.ran.filter((band) => band.layout).map((band) => {
        const [left, right] = [x(band.start), x(band.end)];
        const text = right - left > band.layout.length * 7 + 10;
        return [
          s("rect", { class: `band c${this.tints[band.layout]}`, x: left, y: top, width: Math.max(1, right - left - 1), height: STRIP - 5, rx: 3 }),
          s("rect", { class: `c${this.tints[band.layout]}`, x: left, y: top, width: Math.min(3, Math.max(1, right - left - 1)), height: STRIP - 5, rx: 1.5 }),
          text && s("text", { class: "layout", x: left + 8, y: top + 14 }, band.layout),
        ];
      }),
      s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: top + STRIP - 3, y2: top + STRIP - 3 }),
    ];
  }

  marks(switches, x, bottom) {
    const places = new Map();
    for (const one of switches) places.set(one.at_step, [...(places.get(one.at_step) ?? []), one]);
    return [...places].map(([step, found]) => {
      const lines = [`Step ${step}`, ...found.map(sentence)];
      const place = x(step);
      const mark = s("g", { class: "mark", tabindex: 0, role: "button", "aria-label": lines.join(". ") },
        s("line", { x1: place, x2: place, y1: TOP, y2: bottom }),
        s("path", { d: `M${place - 6} ${TOP - 10}h12l-6 10z` }),
        s("rect", { class: "clear", x: place - 11, y: 0, width: 22, height: TOP + 12 }));
      const near = (event) => {
        event.stopPropagation();
        const box = mark.getBoundingClientRect();
        show(lines, box.left + box.width / 2, box.top + 8);
      };
      for (const name of ["pointerenter", "pointermove", "focus", "click"]) mark.addEventListener(name, near);
      for (const name of ["pointerleave", "blur"]) mark.addEventListener(name, hide);
      return mark;
    });
  }

  listen(svg, x) {
    const { columns, stages } = this.data;
    let index = columns.length - 1;
    const read = (next, clientX, clientY) => {
      index = Math.max(0, Math.min(columns.length - 1, next));
      const one = columns[index];
      this.cross.setAttribute("x", x(one.first - 1));
      this.cross.setAttribute("width", Math.max(2, x(one.last) - x(one.first - 1)));
      this.cross.setAttribute("visibility", "visible");
      const box = svg.getBoundingClientRect();
      const cut = stages.map((stage) => [stage.name, stage.ran.find((band) => band.start < one.last && one.last <= band.end)?.layout]);
      show([...this.told(one), ...cut.filter(([, layout]) => layout).map(([name, layout]) => `${name} ${layout}`)],
        clientX ?? box.left + x(one.last), clientY ?? box.top + 40);
    };
    const leave = () => {
      this.cross.setAttribute("visibility", "hidden");
      hide();
    };
    svg.addEventListener("pointermove", (event) => {
      const wanted = event.clientX - svg.getBoundingClientRect().left;
      const found = columns.findIndex((one) => wanted <= x(one.last));
      read(found < 0 ? columns.length - 1 : found, event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: columns.length - 1 };
      if (event.target !== svg || !(event.key in moves)) return;
      event.preventDefault();
      read(moves[event.key]);
    });
  }

  told(column) {
    const found = shares(column).map(([bin]) => bin);
    const each = this.data.per_octave;
    const total = Object.values(column.bins).reduce((sum, one) => sum + one, 0);
    const [low, high] = [2 ** (Math.min(...found) / each), 2 ** ((Math.max(...found) + 1) / each)];
    return [
      column.first === column.last ? `Step ${column.first}` : `Steps ${column.first} to ${column.last}`,
      `${count(total)} trajectories of ${count(Math.ceil(low))} to ${count(Math.ceil(high) - 1)} tokens`,
      `mean ${count(column.mean)}`,
    ];
  }

  summary() {
    return `Episode lengths over training. Last: ${this.told(this.data.columns.at(-1)).join(", ")}. Arrow keys read other steps.`;
  }

  listed() {
    const { switches } = this.data;
    put(this.list, switches.length > 0 && h("details", { open: switches.length <= 6 },
      h("summary", {}, `Switches (${switches.length})`),
      h("ol", { class: "events" }, [...switches].reverse().map((one) =>
        h("li", { class: one.rolled_back && "bad" }, h("b", {}, `step ${one.at_step}`), " ", sentence(one))))));
  }
}

/** [[bin, share of the column]] of a column. */
function shares(column) {
  const found = Object.entries(column.bins).map(([bin, many]) => [Number(bin), many]);
  const total = found.reduce((sum, [, many]) => sum + many, 0);
  return found.map(([bin, many]) => [bin, many / total]);
}

function sentence(one) {
  if (one.rolled_back) return `${one.stage} stays ${one.before}, not ${one.after}: ${one.message}`;
  const moved = one.moved_bytes ? `, ${bytes(one.moved_bytes)} moved` : "";
  return `${one.stage} ${one.before} → ${one.after}, asked for by ${one.by}: ${one.reason} (stalled ${duration(one.stall_s)} of ${duration(one.seconds)}${moved})`;
}
