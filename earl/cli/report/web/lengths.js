// The length distribution over training steps as a heat map, with the stages' layouts as strips under it.

import { Chart } from "./chart.js";
import { at, h, put } from "./dom.js";
import { clipped, faded } from "./layers.js";
import { bytes, count, duration } from "./text.js";

const LEVELS = 8;
const LEAST_BINS = 8;
// As in earl.cli.lib.switches: what requested a switch, where people are shown another name than the stored one.
const REQUESTED_BY = { mend: "realignment" };
const SHORT = { trainer: "train", reference: "ref." };

export class Lengths {
  constructor() {
    this.chart = new Chart("Episode length", "Tokens of the whole episodes that each step trained on; darker: more of them ended there. " +
      "Below it, the parallelism of each stage; marks: switches, each with its reason.");
    this.chart.height = 280;
    this.list = h("div", {});
    this.chart.element.append(this.list);
    put(at("map"), this.chart.element);
    this.chart.update({ series: [] });
  }

  update(data) {
    const { columns, stages, switches, per_octave: each } = data;
    this.list.hidden = !switches.length;
    put(this.list, switches.length > 0 && listed(switches));
    if (!columns.length) {
      this.chart.update({ series: [] });
      return;
    }
    const cells = columns.map(shares);
    const most = Math.max(...cells.flatMap((column) => column.map(([, share]) => share)));
    const middle = (column) => (column.first - 1 + column.last) / 2;
    const near = (x) => columns.reduce((best, column) => (Math.abs(middle(column) - x) < Math.abs(middle(best) - x) ? column : best));
    const bins = binRange(cells);
    this.chart.update({
      series: [{ name: "mean", colour: 2, points: columns.map((column) => [middle(column), column.mean]) }],
      reach: [columns[0].first - 1, columns.at(-1).last], range: bins.map((bin) => 2 ** (bin / each)), log: 2,
      under: (chart) => drawCells(chart, columns, cells, most, each),
      strips: stages.map((stage) => ({ name: SHORT[stage.name] ?? stage.name, bands: stage.ran })),
      marks: marksOf(switches),
      key: h("span", {}, "share of a step’s trajectories: up to ", `${((most / LEVELS ** 2) * 100).toFixed(1)} % `,
        [...Array(LEVELS).keys()].map((level) => h("i", { class: `h${level + 1} level` })), ` ${Math.round(most * 100)} %`),
      tell: (x) => told(near(x), each, stages),
    });
  }
}

/** [[bin, share of the column]] of a column. */
function shares(column) {
  const found = Object.entries(column.bins).map(([bin, many]) => [Number(bin), many]);
  const total = found.reduce((sum, [, many]) => sum + many, 0);
  return found.map(([bin, many]) => [bin, many / total]);
}

/** The ends of the vertical axis in bins; nearly equal lengths still span LEAST_BINS. */
function binRange(cells) {
  const every = cells.flatMap((column) => column.map(([bin]) => bin));
  const [low, high] = [Math.min(...every), Math.max(...every) + 1];
  const spare = Math.max(0, LEAST_BINS - (high - low));
  return [low - Math.floor(spare / 2), high + spare - Math.floor(spare / 2)];
}

function drawCells(chart, columns, cells, most, each) {
  const shades = [...Array(LEVELS).keys()].map((level) => faded("c0", (level + 1) / LEVELS));
  clipped(chart, (ctx) => columns.forEach((column, index) => {
    const [left, right] = [column.first - 1, column.last].map((step) => Math.round(chart.valToPos(step, "x", true)));
    for (const [bin, share] of cells[index]) {
      const [top, bottom] = [bin + 1, bin].map((edge) => Math.round(chart.valToPos(2 ** (edge / each), "y", true)));
      ctx.fillStyle = shades[Math.max(1, Math.ceil(LEVELS * Math.sqrt(share / most))) - 1];
      ctx.fillRect(left, top, Math.max(1, right - left), Math.max(1, bottom - top));
    }
  }));
}

/** One mark for all switches before a step. */
function marksOf(switches) {
  const places = new Map();
  for (const one of switches) places.set(one.at_step, [...(places.get(one.at_step) ?? []), one]);
  return [...places].map(([step, found]) => ({ x: step, lines: [`Step ${step}`, ...found.map(sentence)] }));
}

function told(column, each, stages) {
  const bins = Object.keys(column.bins).map(Number);
  const total = Object.values(column.bins).reduce((sum, many) => sum + many, 0);
  const [low, high] = [2 ** (Math.min(...bins) / each), 2 ** ((Math.max(...bins) + 1) / each)];
  const layouts = stages.map((stage) => [stage.name, stage.ran.find((band) => band.start < column.last && column.last <= band.end)?.layout]);
  return [
    column.first === column.last ? `Step ${column.first}` : `Steps ${column.first} to ${column.last}`,
    `${count(total)} trajectories of ${count(Math.ceil(low))} to ${count(Math.ceil(high) - 1)} tokens`,
    column.mean !== null && `mean ${count(column.mean)}`,
    ...layouts.filter(([, layout]) => layout).map(([name, layout]) => `${name} ${layout}`),
  ].filter(Boolean);
}

function listed(switches) {
  return h("details", { open: switches.length <= 6 },
    h("summary", {}, `Switches (${switches.length})`),
    h("ol", { class: "events" }, [...switches].reverse().map((one) =>
      h("li", { class: one.rolled_back && "bad" }, h("b", {}, `step ${one.at_step}`), ` at ${duration(one.time_s)}: `, sentence(one)))));
}

function sentence(one) {
  if (one.rolled_back) return `${one.stage} stays ${one.before}, not ${one.after}: ${one.message}`;
  const moved = one.moved_bytes ? `, ${bytes(one.moved_bytes)} moved` : "";
  return `${one.stage} ${one.before} → ${one.after}, requested by ${REQUESTED_BY[one.by] ?? one.by}: ${one.reason} (stalled ${duration(one.stall_s)} of ${duration(one.seconds)}${moved})`;
}
