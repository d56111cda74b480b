// Warnings and errors of the run's processes, above everything else while there are any; before them what goes
// wrong now.

import { at, h, put } from "./dom.js";

export class Alerts {
  constructor(api) {
    this.api = api;
    this.concerns = [];
    this.rows = [];
  }

  async update() {
    const answer = await this.api("alerts");
    if (!answer) return;
    this.rows = answer.rows;
    this.show();
  }

  /** concerns: sentences, as the terminal has them. */
  now(concerns) {
    this.concerns = concerns;
    this.show();
  }

  show() {
    const box = at("alerts");
    box.hidden = !this.rows.length && !this.concerns.length;
    put(box, h("h2", { class: "hidden" }, "Warnings and errors"), h("ul", {},
      this.concerns.map((sentence) => h("li", { class: "bad" }, h("b", {}, "now"), sentence)),
      this.rows.map((row) => h("li", { class: row.error ? "bad" : "warn" },
        h("time", {}, new Date(row.time_ms).toLocaleTimeString("en-GB")), h("b", {}, row.process), row.text, row.count > 1 && h("small", {}, ` ${row.count} times`)))));
  }
}
