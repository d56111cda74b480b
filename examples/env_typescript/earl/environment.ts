/**
 * What an environment author implements. One object plays one episode; all randomness comes from the
 * seed, so that an episode can be repeated. An exception ends the episode as ENV_ERROR: it is
 * reported, and is never a reward.
 */

import type { ToolSchema } from "./tools.ts";

/** What the agent sees. legalActions: those that are legal now, where they can be listed. */
export interface Observation {
  text: string;
  legalActions?: string[];
  toolResults?: ToolResult[];
  /** The speaker, for chat models: "tool" for the answer of a tool that the agent called. */
  role?: "user" | "tool";
}

/** The agent's action. toolCalls: calls that the client had parsed already; empty for plain text. */
export interface Action {
  text: string;
  toolCalls: ToolCall[];
}

export interface ToolCall {
  id: string;
  name: string;
  argumentsJson: string;
}

export interface ToolResult {
  id: string;
  text: string;
  isError: boolean;
}

/** The result of a step. */
export interface StepResult {
  observation: Observation | string;
  /** The reward of this step alone, finite; 0 if absent. */
  reward?: number;
  /** The episode ended by its own rules. */
  done?: boolean;
  /** The episode was truncated, for example by a bound on moves. */
  truncated?: boolean;
  /** Finite numbers about the whole episode, sent with its last result, for example {win: 1}. */
  metrics?: Record<string, number>;
}

/** What the host provides to a reset or step. */
export interface Context {
  /** Aborted when the gateway cancels or closes the session: pass it to whatever can stop. */
  signal: AbortSignal;
  /** Longest that the gateway waits for an answer or for progress, in seconds. */
  deadlineS: number;
  /** The longest action in whose text calls of tools are looked for, in UTF-16 units. */
  maxActionCharacters: number;
  /** Tell the gateway that a slow reset or step is alive: it then waits deadlineS anew. */
  progress(message: string): void;
}

/**
 * An episode. Every method may return a promise; a method that takes more than a few milliseconds should, as
 * all the host's sessions share one thread (heavy computing belongs in node:worker_threads).
 */
export interface Environment {
  reset(seed: bigint, task: Record<string, unknown>, context: Context): Promising<Observation | string>;
  step(action: Action, context: Context): Promising<StepResult>;
  /** Release what the episode held. Called once, also after a failure. */
  close?(): Promising<void>;
}

/** An environment as a host offers it. */
export interface Offer {
  /** Unique in the fleet, "package/game". */
  name: string;
  description: string;
  /** Bounds of the sum of an episode's rewards. */
  rewardRange?: [number, number];
  tools?: ToolSchema[];
  create(): Environment;
}

export type Promising<T> = T | Promise<T>;
