// The selector's last decision for each stage: the workload, every candidate, the verdict.

import { Chart } from "./chart.js";
import { at, h, head, put, table } from "./dom.js";
import { count, duration, number, percent } from "./text.js";

// The lines have colours 3, 2 and 0.
const LENGTHS = { longest: 3, "95th percentile": 2, mean: 0 };
// Changes that are listed under a chart; the last ones.
const LISTED = 12;

export class Decisions {
  constructor() {
    this.charts = new Map();
    this.decisions = [];
    this.stages = [];
    this.draw();
  }

  update(decisions) {
    this.decisions = decisions;
    for (const one of decisions) this.chart(one);
    this.draw();
  }

  /** stages: as the scheduler sees them now. */
  live(stages) {
    if (JSON.stringify(stages) === JSON.stringify(this.stages)) return;
    this.stages = stages;
    this.draw();
  }

  /** Lengths that the selector saw, what it chose for each step, what the step ran with, and where it changed its mind. */
  chart({ stage, history, changed }) {
    const known = this.charts.get(stage) ?? { chart: new Chart(`Parallelism of ${stage}`, ""), list: h("ol", { class: "events" }) };
    if (!this.charts.has(stage)) known.chart.element.append(known.list);
    this.charts.set(stage, known);
    known.chart.note.textContent = "Tokens of what each step worked on. Tint: what the selector chose for the step; strip: what it ran with. " +
      `The verdict changed ${changed} time${changed === 1 ? "" : "s"}; earl explain tells why at every step.`;
    const { lengths, chosen, ran, changes } = history;
    known.chart.update({
      series: Object.entries(LENGTHS).map(([name, colour]) => ({ name, colour, points: lengths[name] })),
      log: 2, format: count, bands: chosen, strips: [{ name: "ran", bands: ran }], layouts: ran.map((band) => band.layout),
      reach: chosen.length ? [ran[0].start, chosen.at(-1).end] : undefined,
      marks: changes.map(([step, reason]) => ({ x: step, lines: [`Step ${step}`, reason] })),
    });
    put(known.list, changes.slice(-LISTED).map(([step, reason]) => h("li", {}, h("b", {}, `step ${step}`), ` ${reason}`)),
      changed > LISTED && h("li", {}, `and ${changed - LISTED} before these: earl explain lists them all`));
  }

  draw() {
    const named = new Set(this.decisions.map((one) => one.stage));
    const others = this.stages.filter((one) => !named.has(one.name));
    put(at("decisions"),
      this.decisions.map((one) => this.charts.get(one.stage).chart.element),
      this.decisions.map((one) => this.card(one, this.stages.find((stage) => stage.name === one.stage))),
      others.length > 0 && h("div", { class: "card" }, head("Parallelism", "No decision of the selector for these stages yet."),
        h("ul", { class: "events" }, others.map((one) => h("li", {}, h("b", {}, one.name), ` ${one.running || "differs among workers"}`, now(one))))));
  }

  card(one, stage) {
    const { verdict, seen, expected } = one;
    return h("div", { class: "card" }, head(`Selector: ${one.stage}`),
      h("p", { class: "verdict" }, one.sentence, stage && now(stage)),
      h("dl", { class: "facts" },
        fact("for step", count(one.step)),
        fact("runs with", one.running),
        fact("mean length", `${count(seen.mean_tokens)}${expected ? ` → ${count(expected.mean_tokens)}` : ""}`),
        fact("longest", `${count(seen.max_tokens)}${expected ? ` → ${count(expected.max_tokens)}` : ""}`),
        fact("at once", number(seen.concurrency)),
        fact("saving", verdict.saving_s === null ? "urgent" : duration(verdict.saving_s)),
        fact("cost", duration(verdict.cost_s)),
        fact("changed", `${count(one.changed)}×`),
        one.held && fact("held back", one.held)),
      table(`Candidates for ${one.stage}`, ["parallelism", "#s a step", "#tokens/s a device", "#memory", "fits", "from"],
        one.candidates.map((candidate) => [
          h("span", { class: candidate.layout === verdict.after && "chosen" }, candidate.layout,
            candidate.layout === verdict.after && h("i", { class: "hidden" }, " (chosen)")),
          number(candidate.step_s), count(candidate.tokens_per_device_s), percent(candidate.memory_fraction),
          h("span", { class: candidate.fits ? "" : "wrap" }, candidate.fits ? "yes" : `no: ${candidate.why}`), candidate.source,
        ])));
  }
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

/** What the stage is doing beside what was decided. */
function now(stage) {
  const told = [stage.pinned && "pinned", stage.switching && `switching ${stage.switching.before} → ${stage.switching.after}`].filter(Boolean);
  return told.length > 0 && h("span", { class: "badge" }, told.join(", "));
}
