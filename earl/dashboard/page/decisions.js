// The selector's last decision for each stage: the workload, every candidate, the verdict.

import { at, h, head, put, table } from "./dom.js";
import { count, duration, number, percent } from "./text.js";

export class Decisions {
  constructor() {
    this.decisions = [];
    this.stages = [];
    this.draw();
  }

  update(decisions) {
    this.decisions = decisions;
    this.draw();
  }

  /** stages: as the scheduler sees them now. */
  live(stages) {
    if (JSON.stringify(stages) === JSON.stringify(this.stages)) return;
    this.stages = stages;
    this.draw();
  }

  draw() {
    const named = new Set(this.decisions.map((one) => one.stage));
    const others = this.stages.filter((one) => !named.has(one.name));
    put(at("decisions"),
      this.decisions.map((one) => this.card(one, this.stages.find((stage) => stage.name === one.stage))),
      others.length > 0 && h("div", { class: "card" }, head("Layouts", "No decision of the selector for these stages yet."),
        h("ul", { class: "events" }, others.map((one) => h("li", {}, h("b", {}, one.name), ` ${one.running || "cut unevenly"}`, now(one))))),
      !this.decisions.length && !others.length && h("div", { class: "card" },
        head("Selector", "After each training step the selector decides how each stage should be cut; it needs a profile (earl profile)."),
        h("p", { class: "empty" }, "Nothing was decided in this run so far.")));
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
      table(`Candidates for ${one.stage}`, ["layout", "#s a step", "#tokens/s a device", "#memory", "fits", "from"],
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
