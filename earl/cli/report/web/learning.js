// Curves of what is learned and what it costs, with evaluations and their 95 % intervals.

import { Chart, smooth } from "./chart.js";
import { at, put } from "./dom.js";
import { count, number, percent } from "./text.js";

const WAITS = "The first training step is still to come.";
const short = (value) => (value === 0 ? "0 %" : percent(value, 0));

export class Learning {
  constructor() {
    this.charts = {
      wins: new Chart("Win rate", "Evaluations play seeds that are never trained on; band: 95 %, Wilson."),
      reward: new Chart("Reward", "Mean of each batch; band of the evaluations: 95 %, Student’s t."),
      gain: new Chart("Gain over the first evaluation", "Mean difference of rewards on the same tasks, 95 % paired."),
      speed: new Chart("Tokens a second", "Of finished episodes, over the whole run."),
      stale: new Chart("Staleness", "Versions between a trajectory’s oldest token and the one trained."),
      health: new Chart("Entropy", "Of the policy’s choices, in nats a token."),
    };
    put(at("curves"), Object.values(this.charts).map((chart) => chart.element));
    for (const chart of Object.values(this.charts)) chart.update({ series: [], absent: WAITS });
  }

  update({ curves, throughput, smoothing, evaluations, winners, staleness_most: most }) {
    // Where nothing is won or lost a reward is a score.
    this.charts.wins.element.hidden = !winners;
    this.charts.reward.rename(winners ? "Reward" : "Score");
    const mean = (points) => smooth(points, smoothing);
    const judged = (figure) => {
      const found = evaluations.filter((one) => one[figure][0] !== null);
      return {
        name: "evaluation", colour: 2, dots: true,
        points: found.map((one) => [one.step, one[figure][0]]),
        bounds: found.map((one) => [one.step, one[figure][1], one[figure][2]]),
      };
    };
    this.charts.wins.update({
      series: [
        { name: `mean of ${smoothing} steps`, points: mean(curves.win_rate), colour: 0 },
        { name: "training episodes", points: curves.win_rate, colour: 0, faint: true },
        judged("win_rate"),
      ],
      format: short, range: [0, 1], absent: WAITS,
    });
    this.charts.reward.update({
      series: [
        { name: `mean of ${smoothing} steps`, points: mean(curves.reward_mean), colour: 0 },
        { name: "batch", points: curves.reward_mean, colour: 0, faint: true },
        judged("mean_reward"),
      ],
      absent: WAITS,
    });
    this.charts.gain.update({
      series: [{ ...judged("gain"), name: "gain" }], zero: true,
      absent: evaluations.length < 2 ? "Comes with the second evaluation." : "Evaluations were not paired.",
    });
    this.charts.speed.update({
      series: [{ name: "tokens/s", points: smooth(throughput, 3), colour: 0 }],
      x: "second", format: count, zero: true, absent: "Comes with the second step.",
    });
    this.charts.stale.update({
      series: [
        { name: "mean", points: curves.staleness_mean, colour: 0 },
        { name: `most (at most ${most})`, points: curves.staleness_max, colour: 0, faint: true },
      ],
      zero: true, absent: WAITS,
    });
    this.charts.health.update({ series: [{ name: "entropy", points: curves.entropy, colour: 0 }], zero: true, format: number, absent: WAITS });
  }
}
