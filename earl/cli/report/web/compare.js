// Several runs over each other: any of their metrics, and the keys in which their run files differ.

import { Chart, smooth } from "./chart.js";
import { at, empty, h, put, table } from "./dom.js";
import { listed } from "./route.js";
import { scheme } from "./scheme.js";
import { metricName, number } from "./text.js";

const FIRST = ["reward_mean", "win_rate", "loss", "tokens_per_s"];
const MOST = 8;
const SMOOTHINGS = [1, 4, 8, 16, 32, 64];

scheme(at("scheme"));

const given = new URLSearchParams(location.search);
const state = {
  runs: given.getAll("run").slice(0, MOST),
  metrics: given.getAll("metric"),
  over: given.get("over") === "time_s" ? "time_s" : "step",
  wide: Number(given.get("smooth")) || 8,
};
if (!state.metrics.length) state.metrics = FIRST;
const charts = new Map();

/** The address shows what is chosen, so that it can be sent to somebody. */
function remember() {
  const pairs = [...state.runs.map((name) => ["run", name]), ...state.metrics.map((name) => ["metric", name]),
    ["over", state.over], ["smooth", String(state.wide)]];
  history.replaceState(null, "", `/compare?${new URLSearchParams(pairs)}`);
}

async function ask(path) {
  const answer = await fetch(path).catch(() => null);
  return answer?.ok ? answer.json() : null;
}

async function choice() {
  const every = (await listed())?.runs ?? [];
  const names = every.map((run) => run.folder);
  const keys = new Set();
  for (const name of state.runs) for (const key of (await ask(`/api/runs/${encodeURIComponent(name)}/keys`))?.keys ?? []) keys.add(key);
  const add = h("input", { type: "search", list: "metrics", placeholder: "add a metric", "aria-label": "add a metric" });
  add.addEventListener("change", () => {
    const key = [...keys].find((name) => name === add.value || metricName(name) === add.value);
    if (key && !state.metrics.includes(key)) state.metrics = [...state.metrics, key];
    draw();
  });
  const over = h("select", { "aria-label": "over" }, h("option", { value: "step", selected: state.over === "step" }, "steps"),
    h("option", { value: "time_s", selected: state.over === "time_s" }, "seconds"));
  over.addEventListener("change", () => { state.over = over.value; draw(); });
  const wide = h("select", { "aria-label": "mean of" }, SMOOTHINGS.map((steps) => h("option", { value: steps, selected: steps === state.wide }, steps === 1 ? "1 step" : `${steps} steps`)));
  wide.addEventListener("change", () => { state.wide = Number(wide.value); draw(); });
  put(at("choice"),
    h("div", { class: "chips", role: "group", "aria-label": "Runs" }, names.map((name) => h("button", {
      type: "button", "aria-pressed": state.runs.includes(name), onclick: () => {
        state.runs = state.runs.includes(name) ? state.runs.filter((one) => one !== name) : [...state.runs, name].slice(-MOST);
        choice();
      },
    }, name))),
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      h("label", {}, h("span", {}, "metrics"), add), h("datalist", { id: "metrics" }, [...keys].sort().map((key) => h("option", { value: metricName(key) }))),
      h("label", {}, h("span", {}, "over"), over), h("label", {}, h("span", {}, "mean of"), wide)));
  await draw();
}

async function draw() {
  remember();
  const asked = new URLSearchParams(state.metrics.map((name) => ["key", name]));
  asked.set("over", state.over);
  const answers = await Promise.all(state.runs.map((name) => ask(`/api/runs/${encodeURIComponent(name)}/series?${asked}`)));
  put(at("curves"), state.metrics.map((metric) => {
    const remove = h("button", { type: "button", class: "remove", "aria-label": `remove ${metricName(metric)}`, onclick: () => {
      state.metrics = state.metrics.filter((one) => one !== metric);
      draw();
    } }, "×");
    const chart = charts.get(metric) ?? new Chart(metricName(metric), "", remove);
    charts.set(metric, chart);
    chart.update({
      series: state.runs.map((name, index) => ({ name, colour: index, points: smooth(answers[index]?.series?.[metric] ?? [], state.wide) })),
      x: state.over === "step" ? "training step" : "second", format: number, absent: "None of these runs has it.",
    });
    return chart.element;
  }));
  const differing = state.runs.length > 1 ? await ask(`/api/compare?${new URLSearchParams(state.runs.map((name) => ["run", name]))}`) : null;
  const rows = (differing?.keys ?? []).map(({ key, values }) => [key, ...state.runs.map((name) => JSON.stringify(values[name] ?? null))]);
  put(at("differences"), h("h3", {}, "Keys that differ"),
    rows.length ? table("Keys that differ", ["key", ...state.runs], rows) : empty(state.runs.length > 1 ? "The run files are the same." : "Choose two runs or more."));
}

choice();
