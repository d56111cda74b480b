// Who was busy when: of each process the share of the time in which it worked, by activity.

import { Chart } from "./chart.js";
import { at, put } from "./dom.js";
import { PHASES, percent } from "./text.js";

export class Busy {
  constructor(api) {
    this.api = api;
    this.charts = new Map();
    this.starts = [];
  }

  /** starts: [phase, Unix milliseconds at which it began]. */
  phases(starts) {
    this.starts = starts;
  }

  async update() {
    const answer = await this.api("busy");
    if (!answer) return;
    const names = [...new Set(answer.rows.map((row) => row.who))];
    for (const name of names) {
      const chart = this.charts.get(name) ?? new Chart(`Busy: ${name}`, `Share of every ${answer.stretch_s} s that each activity took.`);
      this.charts.set(name, chart);
      chart.update({
        series: answer.rows.filter((row) => row.who === name).map((row, colour) => ({
          name: row.what.replaceAll("_", " "), colour, points: row.shares.map((share, index) => [index * answer.stretch_s, share]),
        })),
        x: "second", format: (value) => percent(value, 0), range: [0, 1],
        // The first phase begins with the run.
        marks: this.starts.slice(1).map(([phase, start_ms]) => ({ x: (start_ms - answer.start_ms) / 1000, lines: [`${PHASES[phase] ?? phase} begins`] })),
      });
    }
    if (names.join() !== this.names) put(at("busy"), names.map((name) => this.charts.get(name).element));
    this.names = names.join();
  }
}
