// What the run is, how it stands, and the figures that are looked for first.

import { at, h, put } from "./dom.js";
import { clock, count, duration, number, percent, signed } from "./text.js";

const PHASES = {
  warmup: "warm-up",
  train: "training",
  "evaluate:start": "evaluation before training",
  "evaluate:final": "final evaluation",
  done: "done",
};

export class Overview {
  constructor() {
    this.run = null;
    this.learning = null;
    this.connection = "open";
  }

  update(run) {
    this.run = run;
    document.title = `${run.name} · EARL`;
    at("name").textContent = run.name;
    at("about").textContent = [run.environment, run.model, `seed ${run.seed}`].join(" · ");
    this.progress();
    this.stand();
    this.tiles();
  }

  learned(learning) {
    this.learning = learning;
    if (this.run) this.tiles();
  }

  connected(state) {
    this.connection = state;
    this.stand();
  }

  progress() {
    const { evaluating, step, steps, state } = this.run;
    const [done, all] = evaluating ? [evaluating.done, evaluating.episodes] : [step, steps];
    const part = state === "ended" && !this.run.failure?.error ? 1 : all ? Math.min(1, done / all) : 0;
    const bar = at("progress");
    bar.firstElementChild.style.transform = `scaleX(${part})`;
    bar.setAttribute("aria-valuenow", Math.round(part * 100));
  }

  /** The state in two words, and what is wrong in a sentence. */
  stand() {
    const [kind, text] = this.state();
    const state = at("state");
    if (state.dataset.state !== kind) state.dataset.state = kind;
    if (state.lastElementChild.textContent !== text) state.lastElementChild.textContent = text;
    const said = this.problem();
    const notice = at("notice");
    notice.hidden = !said;
    if (notice.textContent !== said) notice.textContent = said;
  }

  state() {
    if (this.connection === "closed") return ["silent", "link used up"];
    if (this.connection === "lost") return ["silent", "page not connected"];
    if (!this.run) return ["connecting", "connecting"];
    const { state, phase, evaluating, step, steps, failure, result } = this.run;
    if (state === "silent") return ["silent", "scheduler silent"];
    if (state === "ended") return failure?.error ? ["failed", "failed"] : ["ended", result?.complete === false ? "stopped" : "ended"];
    if (evaluating) return ["live", `${PHASES[phase] ?? phase} · ${count(evaluating.done)} of ${count(evaluating.episodes)}`];
    return ["live", `${PHASES[phase] ?? phase}${phase === "done" ? "" : ` · step ${count(step)} of ${count(steps)}`}`];
  }

  problem() {
    if (this.connection === "closed") return "This page’s link is not valid any more. `earl dashboard RUN_DIR` prints a new one.";
    if (this.connection === "lost") return "The connection to the dashboard is lost; it is tried again. What is shown is from before.";
    if (!this.run) return "";
    const { state, failure, error, since } = this.run;
    if (state === "silent") return `The scheduler has not answered since ${clock(since)}: ${error}. What is shown is from then.`;
    return failure?.error ? `The last launch failed: ${failure.error}: ${failure.message}` : "";
  }

  tiles() {
    const { metrics, version, best_version: best, elapsed_s: elapsed, state, step, steps, phase } = this.run;
    const curves = this.learning?.curves ?? {};
    const last = (name) => metrics[name] ?? curves[name]?.at(-1)?.[1];
    const judged = this.learning?.evaluations.at(-1);
    const bound = (figure, text) => {
      const [, low, high] = judged?.[figure] ?? [];
      return low === null || low === undefined ? "" : `[${text(low)}, ${text(high)}]`;
    };
    const speed = metrics.tokens_per_s ?? this.learning?.throughput.at(-1)?.[1];
    put(at("tiles"), [
      ["evaluated win rate", judged ? percent(judged.win_rate[0]) : "–", judged ? `${judged.name} ${bound("win_rate", (value) => percent(value, 0))}` : "after the first evaluation"],
      ["training win rate", percent(last("win_rate")), "of the last batch"],
      ["reward", number(last("reward_mean")), judged ? `evaluated ${number(judged.mean_reward[0])} ${bound("mean_reward", number)}` : "of the last batch"],
      ["gain", judged?.gain[0] == null ? "–" : signed(judged.gain[0]), bound("gain", signed) || "against the first evaluation"],
      ["tokens/s", count(speed), "of finished episodes"],
      ["staleness", number(last("staleness_mean"), 2), "versions, mean of the batch"],
      ["version", count(version), best ? `best: ${count(best)}` : "one a step"],
      ["time", duration(elapsed), state === "ended" ? `${count(steps)} steps asked for` : `${PHASES[phase] ?? phase} ${count(step)} / ${count(steps)}`],
    ].map(([name, value, note]) => h("div", { class: "tile" }, h("span", {}, name), h("b", {}, value), h("small", {}, note))));
  }
}
