// Warnings and errors of the run's processes, above everything else while there are any.

import { at, h, put } from "./dom.js";

export class Alerts {
  constructor(api) {
    this.api = api;
  }

  async update() {
    const answer = await this.api("alerts");
    if (!answer) return;
    const box = at("alerts");
    box.hidden = !answer.rows.length;
    put(box, h("h2", { class: "hidden" }, "Warnings and errors"), h("ul", {}, answer.rows.map((row) => h("li", { class: row.error ? "bad" : "warn" },
      h("time", {}, new Date(row.time_ms).toLocaleTimeString("en-GB")), h("b", {}, row.process), row.text, row.count > 1 && h("small", {}, ` ${row.count} times`)))));
  }
}
