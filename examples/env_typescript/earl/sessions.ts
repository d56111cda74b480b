/**
 * The sessions of one host, and the rules of the stream: the reset is seq 0, steps count from 1, a
 * repeated seq is answered with the same result, one call runs at a time, invalid results are not sent.
 */

import type { Context, Environment, Observation, Offer, StepResult } from "./environment.ts";
import { ATTACH, encode } from "./wire.ts";
import type { Ending, HostMessage, Reset, Result, Step, Uint64 } from "./wire.ts";

/** The longest line about a failure, below any gateway's bound on a result. */
const MAX_MESSAGE_BYTES = 512;

/** The bound on an action's text with calls where no gateway names another. */
export const MAX_ACTION_CHARACTERS = 16_384;

interface Session {
  readonly id: Uint64;
  readonly name: string;
  readonly abort: AbortController;
  environment: Environment | undefined;
  seq: bigint;
  running: boolean;
  done: boolean;
  /** Closed or cancelled while a call ran: its answer is dropped. */
  dropped: boolean;
  /** The result of the last reset or step. */
  answer: HostMessage | undefined;
}

/** send: queues an encoded message; a message that is lost with its stream is requested again. */
export class Sessions {
  /** The gateway's bound on a result, from its Welcome. */
  maxTextBytes = 1 << 20;
  /** The gateway's bound on an action's text with calls, from its Welcome. */
  maxActionCharacters = MAX_ACTION_CHARACTERS;
  readonly #offers: ReadonlyMap<string, Offer>;
  readonly #capacity: number;
  readonly #send: (message: Buffer) => void;
  readonly #sessions = new Map<Uint64, Session>();
  #open = 0;
  #stuck = 0;
  #whenEmpty: (() => void)[] = [];

  constructor(offers: ReadonlyMap<string, Offer>, capacity: number, send: (message: Buffer) => void) {
    this.#offers = offers;
    this.#capacity = capacity;
    this.#send = send;
  }

  /** Episodes in progress. */
  get open(): number {
    return this.#open;
  }

  /** Capacity less the calls that were cancelled and still run. */
  get offered(): number {
    return Math.max(0, this.#capacity - this.#stuck);
  }

  /** Resolves when no episode is in progress. */
  empty(): Promise<void> {
    return new Promise((resolve) => (this.#open === 0 ? resolve() : this.#whenEmpty.push(resolve)));
  }

  /** Drop the sessions that the gateway no longer holds. */
  keep(held: ReadonlySet<Uint64>): void {
    for (const id of [...this.#sessions.keys()]) if (!held.has(id)) this.drop(id);
  }

  reset(message: Reset): void {
    const known = this.#sessions.get(message.session);
    if (known) {
      if (known.seq === 0n) this.#repeat(known);
      return;
    }
    const session: Session = {
      id: message.session,
      name: message.environment,
      abort: new AbortController(),
      environment: undefined,
      seq: 0n,
      running: false,
      done: false,
      dropped: false,
      answer: undefined,
    };
    const full = this.#open >= this.#capacity;
    this.#sessions.set(session.id, session);
    this.#open += 1;
    const offer = this.#offers.get(message.environment);
    if (!offer || full) {
      const refusal = offer
        ? `EnvHostLost: this host holds ${this.#capacity} sessions already`
        : `UnknownEnvironment: this host does not serve ${message.environment}`;
      this.#answer(session, failure(session.id, 0n, "ENDING_INFRA_ERROR", refusal));
      return;
    }
    void this.#run(session, 0n, message.deadlineS, async (context) => {
      session.environment = offer.create();
      const task = JSON.parse(message.taskJson || "{}") as Record<string, unknown>;
      const observation = await session.environment.reset(BigInt(message.seed), task, context);
      return { session: session.id, seq: "0", observation: checkedObservation(observation) };
    });
  }

  step(message: Step): void {
    const session = this.#sessions.get(message.session);
    const seq = BigInt(message.seq);
    if (!session) {
      const text = `EnvHostLost: this host has no session ${message.session}`;
      this.#send(encode(ATTACH, failure(message.session, seq, "ENDING_INFRA_ERROR", text)));
    } else if (seq === session.seq) {
      this.#repeat(session);
    } else if (seq === session.seq + 1n && !session.running && !session.done) {
      const action = message.action ?? { text: "", toolCalls: [] };
      void this.#run(session, seq, message.deadlineS, async (context) => {
        const taken = await session.environment!.step(action, context);
        return { session: session.id, seq: message.seq, ...checkedStep(taken) };
      });
    } else {
      const text = `EnvProtocolError: step ${seq} of session ${session.id} follows step ${session.seq}`;
      this.#send(encode(ATTACH, failure(session.id, seq, "ENDING_INFRA_ERROR", text)));
    }
  }

  /** Close or cancel a session; its running call is told to stop. */
  drop(id: Uint64): void {
    const session = this.#sessions.get(id);
    if (!session) return;
    this.#sessions.delete(id);
    session.dropped = true;
    if (!session.done) this.#ended();
    if (session.running) {
      this.#stuck += 1;
      this.#credit();
      session.abort.abort(new Error(`session ${id} was closed`));
    } else {
      this.#release(session);
    }
  }

  async #run(
    session: Session,
    seq: bigint,
    deadlineS: number,
    call: (context: Context) => Promise<Result>,
  ): Promise<void> {
    session.seq = seq;
    session.running = true;
    const progress = (text: string) => {
      if (!session.running || session.seq !== seq || session.dropped) return;
      const message = oneLine(text);
      this.#send(encode(ATTACH, { progress: { session: session.id, seq: `${seq}`, message } }));
    };
    const { signal } = session.abort;
    const { maxActionCharacters } = this;
    let answer: { result: Result };
    try {
      answer = { result: await call({ signal, deadlineS, maxActionCharacters, progress }) };
    } catch (error) {
      const text = described(error, seq);
      if (!session.dropped) console.error(`${session.name}:`, error instanceof ProtocolError ? text : error);
      answer = failure(session.id, seq, "ENDING_ENV_ERROR", text);
    }
    session.running = false;
    if (session.dropped) {
      this.#stuck -= 1;
      this.#credit();
      this.#release(session);
    } else {
      this.#answer(session, answer);
    }
  }

  #answer(session: Session, answer: { result: Result }): void {
    const encoded = encode(ATTACH, answer);
    if (encoded.length > this.maxTextBytes) {
      const text = `EnvProtocolError: result of ${encoded.length} bytes is larger than ${this.maxTextBytes}`;
      return this.#answer(session, failure(session.id, session.seq, "ENDING_ENV_ERROR", text));
    }
    session.answer = answer;
    session.done = answer.result.done === true;
    this.#send(encoded);
    if (session.done) {
      this.#ended();
      this.#release(session);
    }
  }

  /** Answer a repeated request; while the call still runs, its answer will come. */
  #repeat(session: Session): void {
    if (session.answer && !session.running) this.#send(encode(ATTACH, session.answer));
  }

  #credit(): void {
    this.#send(encode(ATTACH, { credit: { capacity: this.offered } }));
  }

  #ended(): void {
    this.#open -= 1;
    if (this.#open === 0) for (const resolve of this.#whenEmpty.splice(0)) resolve();
  }

  /** Close the environment; the session stays known, with its last answer, until it is dropped. */
  #release(session: Session): void {
    const environment = session.environment;
    session.environment = undefined;
    Promise.resolve(environment)
      .then((closing) => closing?.close?.())
      .catch((error: unknown) => console.error(`${session.name}: close failed:`, error));
  }
}

/** Thrown for a result that must not be sent. */
class ProtocolError extends Error {}

function failure(session: Uint64, seq: bigint, ending: Ending, text: string): { result: Result } {
  return { result: { session, seq: `${seq}`, done: true, ending, message: oneLine(text) } };
}

function described(error: unknown, seq: bigint): string {
  if (error instanceof ProtocolError) return `EnvProtocolError: ${error.message}`;
  const thrown = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return `EnvironmentFailure: ${seq === 0n ? "reset" : `step ${seq}`} threw ${thrown}`;
}

/** One line of at most MAX_MESSAGE_BYTES of UTF-8. */
function oneLine(text: string): string {
  const line = String(text).toWellFormed().split(/\s+/).join(" ");
  const bytes = Buffer.from(line);
  if (bytes.length <= MAX_MESSAGE_BYTES) return line;
  const cut = bytes.subarray(0, MAX_MESSAGE_BYTES - 3).toString().replace(/\ufffd+$/, "");
  return `${cut}...`;
}

function checkedStep(taken: StepResult): Omit<Result, "session" | "seq"> {
  if (typeof taken !== "object" || taken === null) throw new ProtocolError(`a step gave ${taken}`);
  const over = Boolean(taken.done || taken.truncated);
  const metrics = over ? (taken.metrics ?? {}) : {};
  for (const [key, value] of Object.entries(metrics)) finite(value, `metric ${text(key, "its name")}`);
  return {
    observation: checkedObservation(taken.observation),
    reward: finite(taken.reward ?? 0, "reward"),
    done: over,
    ending: over ? (taken.done ? "ENDING_OK" : "ENDING_TRUNCATED") : "ENDING_UNSPECIFIED",
    metrics,
  };
}

function checkedObservation(given: Observation | string): Observation {
  const observation: Observation = typeof given === "string" ? { text: given } : given;
  if (typeof observation !== "object" || observation === null) throw new ProtocolError(`an observation is ${given}`);
  const role = observation.role ?? "user";
  if (role !== "user" && role !== "tool") throw new ProtocolError(`observation has role ${role}`);
  return {
    text: text(observation.text, "observation"),
    legalActions: (observation.legalActions ?? []).map((action) => text(action, "legal action")),
    toolResults: (observation.toolResults ?? []).map((result) => ({
      id: text(result.id, "tool result's id"),
      text: text(result.text, "tool result"),
      isError: result.isError,
    })),
    role,
  };
}

/** A string that UTF-8 can hold: a lone surrogate would break the whole stream. */
function text(given: unknown, what: string): string {
  if (typeof given !== "string") throw new ProtocolError(`${what} is no text: ${given}`);
  if (!given.isWellFormed()) throw new ProtocolError(`${what} is not valid Unicode`);
  return given;
}

function finite(given: unknown, what: string): number {
  if (typeof given !== "number" || !Number.isFinite(given)) {
    throw new ProtocolError(`${what} = ${given} is not a finite number`);
  }
  return given;
}
