// Any number of metrics.jsonl as a chart: chosen by name, smoothed, over steps or seconds, on a linear or a
// logarithmic axis. What is chosen stands in the address, so that a link shows the same. In a run of several
// environments a figure can be chosen of each of them at once.

import { Chart, smooth } from "./chart.js";
import { at, h, put } from "./dom.js";
import { count, metricName, number, partOf } from "./text.js";

const MOST = 6;
const EACH = "each environment: ";
const SMOOTHINGS = [1, 4, 8, 16, 32, 64];

export class Explorer {
  /** keys: a request for the names; series: one for points, by (names, over). */
  constructor(api) {
    this.api = api;
    this.names = [];
    // What can be typed → the numbers that it adds.
    this.offers = new Map();
    this.points = new Map();
    const kept = new URLSearchParams(location.hash.split("?")[1] ?? "");
    this.chosen = (kept.get("metrics") ?? "length_mean").split(",").filter(Boolean);
    this.over = kept.get("over") === "time_s" ? "time_s" : "step";
    this.wide = Number(kept.get("smooth")) || 8;
    this.log = kept.get("log") === "1";
    this.search = h("input", { type: "search", list: "metric-names", placeholder: "add a metric", "aria-label": "add a metric" });
    this.search.addEventListener("change", () => this.add(this.search.value.trim()));
    this.list = h("datalist", { id: "metric-names" });
    this.chips = h("span", { class: "chips" });
    const select = (label, choices, now, set) => {
      const field = h("select", { "aria-label": label }, choices.map(([value, text]) => h("option", { value, selected: value === now }, text)));
      field.addEventListener("change", () => set(field.value));
      return h("label", {}, h("span", {}, label), field);
    };
    const controls = h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      h("label", {}, h("span", {}, "metrics"), this.search), this.list,
      select("over", [["step", "steps"], ["time_s", "seconds"]], this.over, (value) => { this.over = value; this.load(); }),
      select("mean of", SMOOTHINGS.map((wide) => [String(wide), wide === 1 ? "1 step" : `${wide} steps`]), String(this.wide), (value) => { this.wide = Number(value); this.draw(); }),
      select("axis", [["0", "linear"], ["1", "logarithmic"]], this.log ? "1" : "0", (value) => { this.log = value === "1"; this.draw(); }),
      this.chips);
    this.chart = new Chart("Metrics", "Every number of metrics.jsonl. Drag to zoom, double-click to see all again.", controls);
    this.chart.element.classList.add("wide");
    put(at("explorer"), this.chart.element);
    this.draw();
  }

  async update() {
    const answer = await this.api("keys");
    if (!answer) return;
    if (this.names.length !== answer.keys.length) {
      this.names = answer.keys;
      this.offers = offers(this.names);
      put(this.list, [...this.offers.keys()].map((name) => h("option", { value: name })));
    }
    await this.load();
  }

  add(text) {
    this.search.value = "";
    const names = this.offers.get(text) ?? this.names.filter((name) => name === text);
    if (!names.some((name) => !this.chosen.includes(name))) return;
    this.chosen = [...new Set([...this.chosen.filter((name) => !names.includes(name)), ...names])].slice(-MOST);
    this.load();
  }

  async load() {
    const asked = new URLSearchParams(this.chosen.map((name) => ["key", name]));
    asked.set("over", this.over);
    const answer = this.chosen.length ? await this.api(`series?${asked}`) : { series: {} };
    if (!answer) return;
    this.points = new Map(Object.entries(answer.series));
    this.draw();
  }

  draw() {
    put(this.chips, this.chosen.map((name) => h("button", {
      type: "button", title: `remove ${metricName(name)}`, onclick: () => { this.chosen = this.chosen.filter((one) => one !== name); this.load(); },
    }, metricName(name), " ×")));
    const taken = (name) => (this.points.get(name) ?? []).filter(([, y]) => !this.log || y > 0);
    this.chart.update({
      series: this.chosen.flatMap((name, index) => [
        { name: this.wide > 1 ? `${metricName(name)}, mean of ${this.wide}` : metricName(name), points: smooth(taken(name), this.wide), colour: index },
        ...(this.wide > 1 ? [{ name: metricName(name), points: taken(name), colour: index, faint: true }] : []),
      ]),
      x: this.over === "step" ? "training step" : "second", format: this.over === "step" ? number : (value) => number(value),
      log: this.log && 10, absent: this.chosen.length ? "This run has no such numbers yet." : "Choose a metric.",
    });
    const kept = new URLSearchParams({ metrics: this.chosen.join(","), over: this.over, smooth: String(this.wide), log: this.log ? "1" : "0" });
    this.link = `#learning?${kept}`;
    this.shown = count(this.names.length);
  }
}

/** What can be chosen: first a figure of every environment at once, then each number by its name. */
function offers(names) {
  const each = new Map();
  for (const name of names) {
    const part = partOf(name);
    if (!part?.label) continue;
    const text = EACH + [part.seat, part.figure].filter(Boolean).join(", ");
    each.set(text, [...(each.get(text) ?? []), name]);
  }
  return new Map([...[...each].filter(([, keys]) => keys.length > 1), ...names.map((name) => [metricName(name), [name]])]);
}
