// Every evaluation as a row, with 95 % intervals; and what the run did not measure, and why.

import { at, h, head, put, table } from "./dom.js";
import { count, number, percent, signed } from "./text.js";

export class Evaluations {
  constructor() {
    this.best = 0;
    this.learning = null;
    this.missing = [];
    this.ended = false;
    this.retention = [];
    this.draw();
  }

  /** run: its version that is kept, what was lost of protected environments, whether anything is still to come. */
  outline({ best_version: best, state, retention = [] }) {
    this.best = best;
    this.retention = retention;
    this.ended = state === "ended";
    this.draw();
  }

  update(learning) {
    this.learning = learning;
    this.draw();
  }

  unmeasured(missing) {
    this.missing = missing;
    this.draw();
  }

  draw() {
    const { evaluations = [], winners } = this.learning ?? {};
    const shown = JSON.stringify([evaluations, winners, this.best, this.ended, this.retention, this.missing]);
    if (shown === this.shown) return;
    this.shown = shown;
    const illegal = evaluations.some((one) => one.illegal !== null);
    put(at("evaluations"), evaluations.length > 0 && h("div", { class: "card" },
      head("Evaluations", "Brackets: 95 % intervals. Gains are paired: the same tasks as in the first evaluation."),
      table("Evaluations", ["evaluation", "version", "#episodes", winners && "#win rate", winners ? "#reward" : "#score", "#gain", illegal && "#illegal"].filter(Boolean),
        evaluations.map((one) => [
          one.name, `${count(one.version)}${this.best && one.version === this.best ? " (best)" : ""}`, `${count(one.done)} of ${count(one.episodes)}`,
          ...(winners ? [bounded(one.win_rate, percent)] : []), bounded(one.mean_reward, number), bounded(one.gain, signed),
          ...(illegal ? [percent(one.illegal, 2)] : []),
        ])),
      this.retention.length > 0 && h("p", { class: "note" }, `${this.retention.join("; ")}.`)),
    this.ended && this.missing.length > 0 && h("div", { class: "card" }, head("Not measured"),
      h("ul", { class: "events" }, this.missing.map((one) => h("li", {}, h("b", {}, one.title), `: ${one.reason}`)))));
  }
}

function bounded([value, low, high], text) {
  return low === null || high === null ? text(value) : `${text(value)} [${text(low)}, ${text(high)}]`;
}
