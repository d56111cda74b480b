// The page of `earl compare --html`: the figures, all runs in one chart, and each run's own on the same axes.

import { Chart } from "./chart.js";
import { at, h, head, put, table } from "./dom.js";
import { embedded } from "./embedded.js";
import { scheme } from "./scheme.js";
import { number, percent } from "./text.js";

const data = embedded();
scheme(at("scheme"));

put(at("figures"), head("Figures", "÷: how many times the first run’s. First and last steps: the mean of up to 8, of fewer than half."),
  table("Figures", data.heads, data.figures));
put(at("together"), data.together.map(({ title, note, x, reach, series }) => {
  const chart = new Chart(title, note);
  chart.update({ series, x, reach, absent: "None of these runs has it." });
  return chart.element;
}));
put(at("rows"), data.rows.map((row) => h("section", { class: "row" }, h("h2", {}, row.title), h("p", { class: "note" }, row.note),
  h("div", { class: "grid" }, row.cells.map(({ name, ...cell }) => {
    const chart = new Chart(name, "");
    chart.update({
      ...cell, x: row.x, log: row.log, zero: row.zero, layouts: row.layouts, reach: row.reach, within: row.within,
      format: row.percent ? (value) => percent(value, 0) : number,
    });
    return chart.element;
  })))));
