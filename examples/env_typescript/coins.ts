/** Find the one heavy coin with a pair of scales: an environment with a tool, which may be slow. */

import { setTimeout as sleep } from "node:timers/promises";

import type { Action, Context, Environment, Observation, Offer, StepResult } from "./earl/environment.ts";
import { Random } from "./earl/random.ts";
import { explain, render, runCalls, ToolError } from "./earl/tools.ts";
import type { Tool, ToolSchema } from "./earl/tools.ts";

const MAX_COINS = 27;
const MAX_SETTLE_S = 60;
const PROGRESS_S = 0.1;

const side = { type: "array", items: { type: "integer" }, description: "numbers of coins" };
const weigh: ToolSchema = {
  name: "weigh",
  description: "Put coins on the two sides of the scales; says which side is heavier.",
  parameters: { type: "object", properties: { left: side, right: side }, required: ["left", "right"] },
};

class Coins implements Environment {
  #coins = 0;
  #heavy = 0;
  #weighings = 0;
  #turns = 0;
  #settleS = 0;
  readonly #tools: Tool[] = [{ ...weigh, run: (given, context) => this.#weigh(given, context) }];

  /** task: {"coins": 9, "weighings": 3, "settle_s": 0}; settle_s is how long the scales take, in seconds. */
  reset(seed: bigint, task: Record<string, unknown>): Observation {
    const { coins = 9, weighings = 3, settle_s: settleS = 0, ...unknown } = task;
    const [strange] = Object.keys(unknown);
    if (strange !== undefined) {
      throw new RangeError(`task has no ${JSON.stringify(strange)}: it has coins, weighings, settle_s`);
    }
    this.#coins = bounded("coins", coins, 3, MAX_COINS, Number.isInteger);
    this.#weighings = bounded("weighings", weighings, 1, MAX_COINS, Number.isInteger);
    this.#settleS = bounded("settle_s", settleS, 0, MAX_SETTLE_S, Number.isFinite);
    this.#turns = this.#weighings + 2;
    this.#heavy = 1 + new Random(seed).below(this.#coins);
    const question =
      `Of the coins 1 to ${this.#coins} one is heavier than the others. ` +
      `You may weigh ${this.#weighings} times; then answer with the heavy coin's number alone.`;
    return { text: `${question}\n${explain([weigh])}`, legalActions: this.#legalActions() };
  }

  async step(action: Action, context: Context): Promise<StepResult> {
    this.#turns -= 1;
    const toolResults = await runCalls(action, this.#tools, context);
    if (toolResults.length === 0) return this.#answered(action.text.trim());
    const text = toolResults.map((result) => result.text).join("\n");
    return {
      observation: { text, toolResults, role: "tool", legalActions: this.#legalActions() },
      truncated: this.#turns === 0,
      metrics: { win: 0, illegal: 0 },
    };
  }

  #answered(answer: string): StepResult {
    const win = Number(answer === `${this.#heavy}`);
    const illegal = Number(!/^\d{1,2}$/.test(answer));
    const verdict = win ? "Right." : illegal ? "That is neither a number nor a call." : "Wrong.";
    const observation = `${verdict} The heavy coin was ${this.#heavy}.`;
    return { observation, reward: win, done: true, metrics: { win, illegal } };
  }

  async #weigh(given: Record<string, unknown>, context: Context): Promise<string> {
    const left = this.#side("left", given);
    const right = this.#side("right", given);
    const twice = left.find((coin) => right.includes(coin));
    if (twice !== undefined) throw new ToolError(`coin ${twice} is on both sides`);
    if (this.#weighings === 0) throw new ToolError("no weighings are left");
    this.#weighings -= 1;
    const ends = performance.now() + this.#settleS * 1e3;
    while (performance.now() < ends) {
      context.progress("the scales swing");
      await sleep(PROGRESS_S * 1e3, undefined, { signal: context.signal });
    }
    const tilt = this.#weight(left) - this.#weight(right);
    return tilt === 0 ? "both sides are equal" : `${tilt > 0 ? "left" : "right"} is heavier`;
  }

  /** A coin weighs 10, the heavy one 11. */
  #weight(coins: number[]): number {
    return 10 * coins.length + Number(coins.includes(this.#heavy));
  }

  #side(name: string, given: Record<string, unknown>): number[] {
    const coins = given[name];
    const all = Array.from({ length: this.#coins }, (_, index) => index + 1);
    if (!Array.isArray(coins) || coins.length === 0 || !coins.every((coin) => all.includes(coin))) {
      throw new ToolError(`${name} is no list of coins from 1 to ${this.#coins}`);
    }
    if (new Set(coins).size < coins.length) throw new ToolError(`${name} names a coin twice`);
    return coins as number[];
  }

  /** Every answer, and one sensible weighing while any is left. */
  #legalActions(): string[] {
    const coins = Array.from({ length: this.#coins }, (_, index) => index + 1);
    const third = Math.floor(this.#coins / 3);
    const weighing = render("weigh", { left: coins.slice(0, third), right: coins.slice(third, 2 * third) });
    return [...(this.#weighings > 0 ? [weighing] : []), ...coins.map(String)];
  }
}

type Kind = (given: unknown) => boolean;

function bounded(name: string, given: unknown, low: number, high: number, isKind: Kind): number {
  if (!isKind(given) || Number(given) < low || Number(given) > high) {
    throw new RangeError(`${name} = ${JSON.stringify(given)} is not from ${low} to ${high}`);
  }
  return Number(given);
}

export const coins: Offer = {
  name: "example/coins",
  description: "Find the heavy coin with a pair of scales: call weigh, then answer with its number.",
  rewardRange: [0, 1],
  tools: [weigh],
  create: () => new Coins(),
};
