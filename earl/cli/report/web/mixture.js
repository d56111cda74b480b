// Each environment of a mixture in a row, and each seat of self-play; on a phone in a block. A run of one
// environment has no table of environments, and one without self-play none of seats.

import { at, h, head, put } from "./dom.js";
import { ENDINGS, count, number, percent, signed } from "./text.js";

export class Mixture {
  constructor() {
    this.update({ rows: [], seats: [] });
  }

  update({ rows, seats, steps, winners, evaluation }) {
    const columns = rows.length ? columnsOf(rows, winners, evaluation) : [];
    put(at("mixture"),
      rows.length > 0 && h("div", { class: "card" },
        head("Environments", note(steps, evaluation)),
        stacked("Environments of the mixture", columns, rows)),
      seats.length > 0 && h("div", { class: "card seats" },
        head("Seats", `${recent(steps)} Each seat has a reward of its own.`),
        stacked("Seats of self-play", seatColumns(seats, winners), seats)));
  }
}

function recent(steps) {
  return steps ? `Mean of the last ${steps === 1 ? "training step" : `${steps} training steps`}.` : "No training step has ended yet.";
}

/** [title, whether it is a number, the text of a row] of each column. */
function seatColumns(seats, winners) {
  return [
    seats.some((row) => row.label) && ["environment", false, (row) => row.label],
    ["seat", true, (row) => count(row.seat)],
    winners && ["win rate", true, (row) => percent(row.win_rate)],
    ["mean reward", true, (row) => signed(row.reward_mean)],
    ["turns", true, (row) => number(row.turns_mean)],
  ].filter(Boolean);
}

function note(steps, evaluation) {
  return `${recent(steps)} ${evaluation ? "Brackets: 95 % intervals. " : ""}Weight: the part of the groups that the run file gives it. Staleness in versions.`;
}

/** [title, whether it is a number, the text of a row] of each column. */
function columnsOf(rows, winners, evaluation) {
  const interval = (figure, text) => (row) => bounded(row.evaluated[figure], text);
  const any = (figure) => rows.some((row) => row.evaluated[figure]);
  const known = (value, text) => (value === null || value === undefined ? "–" : text(value));
  const reward = winners ? ["win rate", (row) => known(row.win_rate, percent), interval("win_rate", percent)]
    : ["score", (row) => known(row.reward_mean, number), interval("mean_reward", number)];
  return [
    ["environment", false, (row) => row.label],
    ["weight", true, (row) => percent(row.weight, 0)],
    ["trained on", true, (row) => percent(row.trained_share, 0)],
    [reward[0], true, reward[1]],
    evaluation && [`evaluated (${evaluation})`, true, reward[2]],
    any("gain") && ["gain", true, interval("gain", signed)],
    any("kept") && ["kept", true, interval("kept", percent)],
    ["length", true, (row) => known(row.length_mean, (mean) => `${count(mean)} (most ${count(row.length_max)})`)],
    ["staleness", true, (row) => known(row.staleness_mean, (mean) => `${number(mean, 2)} (most ${count(row.staleness_max)})`)],
    ["ended", false, (row) => h("span", { class: "wrap" }, ended(row))],
  ].filter(Boolean);
}

/** How its episodes ended in the whole run; without such a record, how many trajectories of the last steps were truncated. */
function ended({ endings, truncated_share: truncated }) {
  const texts = Object.entries(ENDINGS).filter(([kind]) => endings[kind]).map(([kind, word]) => `${word} ${count(endings[kind])}`);
  if (texts.length) return texts.join(", ");
  return truncated === null || truncated === undefined ? "–" : `truncated ${percent(truncated)}`;
}

function bounded(interval, text) {
  if (!interval) return "–";
  const [value, low, high] = interval;
  return low === null || high === null ? text(value) : `${text(value)} [${text(low)}, ${text(high)}]`;
}

/** A table whose rows become blocks on a narrow screen. Roles are written out: a browser forgets them with the layout. */
function stacked(label, columns, rows) {
  const kind = (isNumber) => isNumber && "number";
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", { class: "stacked", role: "table" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([title, isNumber]) => h("th", { scope: "col", role: "columnheader", class: kind(isNumber) }, title)))),
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, columns.map(([title, isNumber, cell]) =>
        h("td", { role: "cell", class: kind(isNumber), "data-title": title }, h("span", {}, cell(row)))))))));
}
