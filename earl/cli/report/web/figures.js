// Curves of training and of the machine beside those of learning: every card is a few numbers of metrics.jsonl.
// A card without any, or with zeros alone, is not shown.

import { Chart, smooth } from "./chart.js";
import { at, put } from "./dom.js";
import { duration, number, percent } from "./text.js";

const share = (value) => (value === 0 ? "0 %" : percent(value, value < 0.1 ? 1 : 0));
const WIDE = 8;

// Element, title, note, lines as [key, name], format.
const CARDS = [
  ["training", "Loss", "Of the policy, a step.", [["loss", "loss"]], number],
  ["training", "Gradient norm", "Before it is clipped.", [["grad_norm", "gradient norm"]], number],
  ["training", "Mismatch of trainer and engine", "Of log-probs of the same tokens, in nats.", [["logprob_mismatch", "mean difference"], ["kl_behaviour", "KL from what sampled"]], number],
  ["training", "Clipped and capped", "Fractions of a batch’s tokens.", [["clip_fraction", "clipped"], ["truncated_fraction", "weight capped"]], share],
  ["training", "KL to the reference", "In nats a token.", [["kl_reference", "KL"]], number],
  ["training", "KL to the teacher", "In nats a token; 0 once it has no weight.", [["kl_teacher", "KL"]], number],
  ["training", "Score of the reward model", "Mean of a batch.", [["reward_model_mean", "score"]], number],
  ["training", "Weight of the teacher", "Of a batch, 0 to 1.", [["teacher_weight", "weight"]], number],
  ["training", "Reference log-probs", "Trajectories left for later batches, after each step. Where many wait, so do batches.", [["stages.reference.waiting", "waiting"], ["stages.reference.done", "done"]], number],
  ["training", "Recent episode lengths", "Tokens of whole recent episodes.", [["episode_tokens.p95", "95th percentile"], ["episode_tokens.mean", "mean"], ["episode_tokens.p50", "median"]], number],
  ["training", "Tail of lengths", "The longest trajectory of a batch, in means of it: a batch waits for its longest.", [["length_tail_ratio", "longest over mean"]], number],
  ["training", "Error of predicted lengths", "Typical ratio of a length and its prediction, the larger over the smaller: 1 without error.", [["length_prediction_factor", "ratio"]], number],
  ["training", "Truncated episodes", "Ended by a bound, of a batch.", [["truncated_episodes", "truncated"]], number],
  ["training", "Closed early", "Tickets whose groups did not wait for them, in the step in which they were closed.", [["closed_early", "closed early"]], number],
  ["training", "Length of closed episodes", "Tokens of those that ended all the same. Others were stopped, and are longer.", [["closed_length_mean", "mean"]], number],
  ["machine", "Memory in use", "Of what each stage may have.", [["load.rollout.memory_fraction", "rollout"], ["load.trainer.memory_fraction", "trainer"]], share],
  ["machine", "KV cache", "Tokens that are held, of those that fit.", [["load.rollout.kv.used_fraction", "in use"]], share],
  ["machine", "Sequences at once", "Of the episodes being played, one for each seat of the policy.", [["load.rollout.concurrency", "sequences"]], number],
  ["machine", "Idle engines", "Of the seconds of a step, all engines together: those in which one generated nothing.", [["engines_idle_fraction", "idle"]], share],
  ["machine", "Assigned episodes", "Episodes that began in a step at the engine that they were assigned to, and those that another engine took. Idle engines before and after show what that is worth.", [["planned_leases", "assigned"], ["taken_leases", "taken by another"]], number],
  ["machine", "Accepted drafts", "Of the tokens that engines drafted in a step, by where the draft stood.", [["draft_acceptance", "all"], ["drafts.task.acceptance", "task"], ["drafts.environment.acceptance", "environment"], ["drafts.context.acceptance", "context"]], share],
  ["machine", "Tokens a step of an engine", "Of a sequence, where engines draft; without drafts it is 1.", [["tokens_per_forward", "tokens"]], number],
  ["machine", "Seconds of a step", "Of the trainer’s own work.", [["train_s", "training"], ["publish_s", "publishing weights"], ["read_s", "reading samples"]], duration],
];

export class Figures {
  /** api: answers requests about the run. */
  constructor(api) {
    this.api = api;
    this.cards = CARDS.map(([where, title, note, lines, format]) => ({ where, lines, format, chart: new Chart(title, note) }));
    for (const where of new Set(CARDS.map(([name]) => name))) {
      put(at(where), this.cards.filter((card) => card.where === where).map((card) => card.chart.element));
    }
    for (const card of this.cards) card.chart.update({ series: [] });
  }

  async update() {
    const asked = new URLSearchParams(this.cards.flatMap((card) => card.lines.map(([key]) => ["key", key])));
    const answer = await this.api(`series?${asked}`);
    if (!answer) return;
    for (const { lines, format, chart } of this.cards) {
      const found = lines.map(([key, name], colour) => ({ name, colour, points: answer.series[key] ?? [] }))
        .filter((one) => one.points.some(([, value]) => value !== 0));
      const single = found.length === 1;
      chart.update({
        series: found.flatMap((one) => [
          { ...one, name: single ? `mean of ${WIDE} steps` : one.name, points: smooth(one.points, WIDE) },
          ...(single ? [{ ...one, faint: true }] : []),
        ]),
        format, zero: format !== number,
      });
    }
  }
}
