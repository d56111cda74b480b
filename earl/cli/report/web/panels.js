// The run's logs and its run file, read when they are opened.

import { at, empty, h, put, table } from "./dom.js";

const LEVELS = [["", "all"], ["info", "info"], ["warning", "warnings"], ["error", "errors"]];
const PERIOD_MS = 3000;

export class Panels {
  /** api: answers requests about the run; with logs: whether it has them. */
  constructor(api, withLogs) {
    this.api = api;
    this.names = [];
    this.process = h("select", { "aria-label": "process" }, h("option", { value: "" }, "all"));
    this.level = h("select", { "aria-label": "level" }, LEVELS.map(([value, text]) => h("option", { value }, text)));
    this.text = h("input", { type: "search", placeholder: "part of a line", "aria-label": "text" });
    for (const field of [this.process, this.level, this.text]) field.addEventListener("change", () => this.logs());
    this.lines = h("div", { class: "log", tabindex: 0, role: "log", "aria-label": "Log lines" });
    const logs = h("details", { class: "card wide" }, h("summary", {}, "Logs"),
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
        labelled("process", this.process), labelled("level", this.level), labelled("text", this.text)), this.lines);
    logs.addEventListener("toggle", () => this.logs());
    this.rows = h("div", {});
    const config = h("details", { class: "card wide" }, h("summary", {}, "Run file"), this.rows);
    config.addEventListener("toggle", () => config.open && this.config());
    this.opened = logs;
    put(at("panels"), withLogs && logs, config);
    if (withLogs) setInterval(() => this.opened.open && !document.hidden && this.logs(), PERIOD_MS);
  }

  processes(names) {
    if (names.join() !== this.names.join()) this.names = names;
  }

  async logs() {
    if (!this.opened.open) return;
    const asked = new URLSearchParams([["process", this.process.value], ["level", this.level.value], ["text", this.text.value]].filter(([, value]) => value));
    const answer = await this.api(`logs?${asked}`);
    if (!answer) return;
    const { value } = this.process;
    if (this.process.options.length !== answer.processes.length + 1) {
      put(this.process, h("option", { value: "" }, "all"), answer.processes.map((name) => h("option", { value: name, selected: name === value }, name)));
    }
    const bottom = this.lines.scrollTop + this.lines.clientHeight >= this.lines.scrollHeight - 4;
    put(this.lines, answer.rows.length ? answer.rows.map((row) => h("p", { class: row.level >= 40 ? "bad" : row.level >= 30 ? "warn" : "" },
      h("time", {}, new Date(row.time_ms).toLocaleTimeString("en-GB")), h("b", {}, row.process), row.words.join("\n"))) : empty("No line of this kind."));
    if (bottom) this.lines.scrollTop = this.lines.scrollHeight;
  }

  async config() {
    const answer = await this.api("config");
    if (!answer) return;
    const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
    put(this.rows, table("Run file", ["key", "value", "default"], answer.rows.map((row) => [
      row.changed ? h("b", {}, row.key) : row.key, shown(row.value), row.changed ? shown(row.default ?? null) : "the same"])));
  }
}

const labelled = (text, field) => h("label", {}, h("span", {}, text), field);
