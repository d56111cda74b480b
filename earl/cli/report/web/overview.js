// The run, its state, and the headline figures.

import { at, h, put } from "./dom.js";
import { PHASES, clock, count, duration, number, percent, signed } from "./text.js";

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
    at("about").textContent = [run.paced, run.environment, run.model, `seed ${run.seed}`]
      .filter(Boolean)
      .join(" · ");
    at("why").textContent = run.why || run.doing || "";
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
    const { state, phase, evaluating, step, steps, failure, why } = this.run;
    if (state === "running") return ["live", "still running"];
    if (state === "silent") return ["silent", "no answer from the scheduler"];
    if (state === "ended") return failure?.error ? ["failed", "failed"] : ["ended", why?.split(/[: ]/)[0] || "ended"];
    if (evaluating) return ["live", `${PHASES[phase] ?? phase} · ${count(evaluating.done)} of ${count(evaluating.episodes)}`];
    return ["live", `${PHASES[phase] ?? phase}${phase === "done" ? "" : ` · step ${count(step)} of ${count(steps)}`}`];
  }

  problem() {
    if (this.connection === "closed") return "This page’s link is not valid any more. `earl dashboard RUN` prints a new one.";
    if (this.connection === "lost") return "The connection to the dashboard is lost; it is tried again. What is shown is from before.";
    if (!this.run) return "";
    const { state, failure, error, since } = this.run;
    if (state === "silent") return `The scheduler has not answered since ${clock(since)}: ${error}. What is shown is from then.`;
    return failure?.error ? this.run.why || `failed: ${failure.error}: ${failure.message}` : "";
  }

  /** A tile for each figure that is known. */
  tiles() {
    const { metrics, version, best_version: best, elapsed_s: elapsed, state, step, steps, phase } = this.run;
    const curves = this.learning?.curves ?? {};
    const last = (name) => metrics[name] ?? curves[name]?.at(-1)?.[1];
    const judged = this.learning?.evaluations.at(-1);
    const bound = (figure, text) => {
      const [, low, high] = judged?.[figure] ?? [];
      return low === null || low === undefined ? "" : `[${text(low)}, ${text(high)}]`;
    };
    const start = this.learning?.evaluations.find((one) => one.name === "start");
    const before = (figure, text) => (start && start !== judged && start[figure][0] !== null ? `, before: ${text(start[figure][0])}` : "");
    const speed = metrics.tokens_per_s ?? this.learning?.throughput.at(-1)?.[1];
    const winners = this.learning?.winners;
    const score = judged ? bound("mean_reward", number) : "";
    const rewards = winners ? [
      ["evaluated win rate", judged ? percent(judged.win_rate[0]) : "–", judged ? `${judged.name} ${bound("win_rate", (value) => percent(value, 0))}${before("win_rate", percent)}` : "after the first evaluation"],
      ["training win rate", percent(last("win_rate")), "of the last batch"],
      ["reward", number(last("reward_mean")), judged ? `evaluated ${number(judged.mean_reward[0])} ${score}` : "of the last batch"],
    ] : [
      ["evaluated score", judged ? number(judged.mean_reward[0]) : "–", judged ? `${judged.name} ${score}${before("mean_reward", number)}` : "after the first evaluation"],
      ["training score", number(last("reward_mean")), "of the last batch"],
    ];
    put(at("tiles"), [
      ...rewards,
      ["gain", judged?.gain[0] == null ? "–" : signed(judged.gain[0]), bound("gain", signed) || "against the first evaluation"],
      ["tokens/s", count(speed), "of finished episodes"],
      ["staleness", number(last("staleness_mean"), 2), "versions, mean of the batch"],
      ["version", count(version), best ? `best: ${count(best)}` : "one a step"],
      ["time", duration(elapsed), state === "ended" ? `${count(step)} of ${count(steps)} steps` : `${PHASES[phase] ?? phase} ${count(step)} / ${count(steps)}${metrics.phase_left_s ? `, about ${duration(metrics.phase_left_s)} left` : ""}`],
    ].filter(([, value]) => value !== "–").map(([name, value, note]) => h("div", { class: "tile" }, h("span", {}, name), h("b", {}, value), h("small", {}, note))));
  }
}
