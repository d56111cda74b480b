/**
 * A client of the gateway: plays sessions, many at once, over one stream.
 *
 *     const client = new GatewayClient(access);
 *     const session = await client.open("example/battleship", { seed: 7n });
 *     while (!session.done) await session.step(choose(session.observation));
 *     client.close();
 */

import { status } from "@grpc/grpc-js";
import type { Client } from "@grpc/grpc-js";

import { connect, Stream } from "./connection.ts";
import type { Access } from "./connection.ts";
import type { Observation } from "./environment.ts";
import { encode, PLAY } from "./wire.ts";
import type { ClientMessage, Ending, Result, SessionMessage, Uint64 } from "./wire.ts";

/** The gateway ends what takes too long; this side waits so much longer before it gives up on it. */
const MARGIN_S = 10;

export interface OpenOptions {
  task?: Record<string, unknown>;
  seed?: bigint;
  /** Longest waits in seconds: for a host with room, the reset, one step, the episode. */
  queueS?: number;
  resetS?: number;
  stepS?: number;
  episodeS?: number;
}

/** Thrown when a session has no result: with its ending, or ENDING_UNSPECIFIED for a refused request. */
export class SessionError extends Error {
  readonly ending: Ending;

  constructor(ending: Ending, message: string) {
    super(message);
    this.ending = ending;
  }
}

export class GatewayClient {
  readonly #client: Client;
  readonly #stream: Stream<ClientMessage, SessionMessage>;
  readonly #questions = new Map<Uint64, Question>();
  #opened = 0;

  constructor(access: Access) {
    this.#client = connect(access);
    this.#stream = new Stream<ClientMessage, SessionMessage>(this.#client, PLAY, access, (message) => {
      if (message.message === "result") this.#questions.get(message.result.session)?.answer(message.result);
      if (message.message === "progress") this.#questions.get(message.progress.session)?.extend();
    });
    void this.#stream.ended.then(({ code, details }) => {
      const text = `the stream to ${access.gateway} ended: ${status[code]} ${details}`;
      for (const question of this.#questions.values()) question.fail("ENDING_INFRA_ERROR", text);
    });
  }

  /** Start an episode; the session holds its first observation. Throws SessionError. */
  async open(environment: string, options: OpenOptions = {}): Promise<Session> {
    const { task = {}, seed = 0n, queueS = 60, resetS = 30, stepS = 30, episodeS = 600 } = options;
    this.#opened += 1;
    const number = `${this.#opened}`;
    const request = { environment, taskJson: JSON.stringify(task), seed: `${seed}` };
    const open = { session: number, ...request, queueS, resetS, stepS, episodeS };
    const result = await this.ask(number, { open }, queueS + resetS);
    return new Session(this, number, stepS, result.observation);
  }

  /** Send, and wait for the session's next result; bounded. For sessions. */
  async ask(number: Uint64, message: ClientMessage, withinS: number): Promise<Required<Result>> {
    const question = new Question(withinS + MARGIN_S);
    this.#questions.set(number, question);
    this.send(message);
    try {
      return await question.answered;
    } catch (error) {
      this.send({ close: { session: number } });
      throw error;
    } finally {
      this.#questions.delete(number);
    }
  }

  send(message: ClientMessage): void {
    this.#stream.send(encode(PLAY, message));
  }

  /** End the stream; sessions still open end with it. */
  close(): void {
    this.#stream.close();
    void this.#stream.ended.then(() => this.#client.close());
  }
}

/** One episode; used by one caller at a time. */
export class Session {
  observation: Observation;
  done = false;
  /** The sum of the rewards so far. */
  return = 0;
  /** Metrics of the whole episode; filled when it is done. */
  metrics: Record<string, number> = {};
  readonly #client: GatewayClient;
  readonly #number: Uint64;
  readonly #stepS: number;
  #seq = 0;

  constructor(client: GatewayClient, number: Uint64, stepS: number, first: Observation | null) {
    this.#client = client;
    this.#number = number;
    this.#stepS = stepS;
    this.observation = first ?? { text: "" };
  }

  /** Act; returns the step's reward. Throws SessionError; the session has then ended. */
  async step(text: string): Promise<number> {
    if (this.done) throw new SessionError("ENDING_UNSPECIFIED", `session ${this.#number} is over`);
    this.#seq += 1;
    const step = { session: this.#number, seq: `${this.#seq}`, action: { text } };
    this.done = true; // unless the answer says otherwise
    const result = await this.#client.ask(this.#number, { step }, this.#stepS);
    this.done = result.done;
    this.return += result.reward;
    this.observation = result.observation ?? { text: "" };
    this.metrics = result.metrics;
    return result.reward;
  }

  /** Leave the episode before its end. Idempotent; never waits. */
  close(): void {
    if (!this.done) this.#client.send({ close: { session: this.#number } });
    this.done = true;
  }
}

/** A session's wait for its next result, with the bound on it. */
class Question {
  readonly answered: Promise<Required<Result>>;
  readonly #resolve: (result: Required<Result>) => void;
  readonly #reject: (error: SessionError) => void;
  readonly #timer: NodeJS.Timeout;

  constructor(withinS: number) {
    const { promise, resolve, reject } = Promise.withResolvers<Required<Result>>();
    this.answered = promise;
    this.#resolve = resolve;
    this.#reject = reject;
    const late = () => this.fail("ENDING_TIMEOUT", `no answer from the gateway within ${withinS} s`);
    this.#timer = setTimeout(late, withinS * 1e3);
  }

  answer(result: Required<Result>): void {
    const refused = !result.done && result.message !== "";
    if (refused || (result.done && result.ending !== "ENDING_OK" && result.ending !== "ENDING_TRUNCATED")) {
      this.fail(result.ending, result.message);
      return;
    }
    clearTimeout(this.#timer);
    this.#resolve(result);
  }

  fail(ending: Ending, message: string): void {
    clearTimeout(this.#timer);
    this.#reject(new SessionError(ending, message));
  }

  /** A slow step reported that it is alive. */
  extend(): void {
    this.#timer.refresh();
  }
}
