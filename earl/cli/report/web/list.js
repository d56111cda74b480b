// The runs of a folder: state, progress, reward or score; each leads to its page, chosen ones to their comparison.

import { at, empty, h, put, table } from "./dom.js";
import { listed } from "./route.js";
import { scheme } from "./scheme.js";
import { duration, number, percent } from "./text.js";

const PERIOD_MS = 3000;
const chosen = new Set();

scheme(at("scheme"));

/** What is known of a run's results, by the names of the columns: a reward is a score where nothing is won or lost. */
function results(run) {
  return { [run.has_winners ? "reward" : "score"]: run.reward === null ? null : number(run.reward), "win rate": run.win_rate === null ? null : percent(run.win_rate) };
}

function cells(run, columns) {
  const known = results(run);
  const box = h("input", { type: "checkbox", "aria-label": `compare ${run.name}`, checked: chosen.has(run.folder) });
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(run.folder);
    else chosen.delete(run.folder);
    compare();
  });
  return [
    box,
    h("a", { href: `/?run=${encodeURIComponent(run.folder)}` }, run.name),
    h("span", { class: `badge ${run.state}` }, run.fault || run.state),
    run.total_steps ? `${run.phase} ${run.steps} / ${run.total_steps}` : "–",
    ...columns.map((name) => known[name] ?? "–"),
    run.elapsed_s ? duration(run.elapsed_s) : "–",
    run.age_s === null ? "–" : `${duration(run.age_s)} ago`,
  ];
}

function compare() {
  const link = at("compare");
  if (!link) return;
  link.hidden = chosen.size < 2;
  link.href = `/compare?${new URLSearchParams([...chosen].map((name) => ["run", name]))}`;
  link.textContent = `Compare ${chosen.size} runs`;
}

async function refresh() {
  const answer = await listed();
  const notice = at("notice");
  notice.hidden = Boolean(answer);
  notice.textContent = answer ? "" : "The server does not answer; it is asked again.";
  if (answer) {
    at("about").textContent = `Folder ${answer.folder}; those first that were started last.`;
    const columns = ["reward", "score", "win rate"].filter((name) => answer.runs.some((run) => results(run)[name]));
    const heads = ["", "run", "state", "progress", ...columns.map((name) => `#${name}`), "#took", "#started"];
    const rows = answer.runs.map((run) => cells(run, columns));
    put(at("runs"), rows.length ? table("Runs", heads, rows) : empty("There is no run yet. Start one with: earl demo"),
      h("p", {}, h("a", { id: "compare", class: "button", hidden: true })));
    compare();
  }
  setTimeout(refresh, PERIOD_MS);
}

refresh();
