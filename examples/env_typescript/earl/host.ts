/**
 * An env host: dials the gateway and serves environments over one stream.
 *
 *     await serve({ access, offers: [battleship], capacity: 64 }, stop.signal);
 *
 *     connect ─► Hello(instance, epoch) ─► Welcome ─► Reset/Step/Close… ─► Result…   (sessions.ts)
 *        ▲                                                │ stream lost: same instance, epoch + 1
 *        └────────────────────────────────────────────────┘
 *     stop ─► Drain ─► episodes end, within drainS ─► stream closed ─► return
 *
 * Sessions outlive the stream: after a reconnect the gateway lists those that it still holds, and repeats
 * requests that were in flight.
 */

import { createHash, randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { status } from "@grpc/grpc-js";
import type { Client } from "@grpc/grpc-js";

import { connect, Stream } from "./connection.ts";
import type { Access, Ended } from "./connection.ts";
import type { Offer } from "./environment.ts";
import { MAX_ACTION_CHARACTERS, Sessions } from "./sessions.ts";
import { toolsJson } from "./tools.ts";
import { ATTACH, encode, PROTOCOL } from "./wire.ts";
import type { EnvironmentInfo, GatewayMessage, HostMessage, Welcome } from "./wire.ts";

const WELCOME_S = 10;
const LAST_WORDS_S = 2;
const FIRST_BACKOFF_S = 0.1;
const MAX_BACKOFF_S = 3;

/** Status codes that dialling again cannot change. */
const REFUSALS: ReadonlySet<status> = new Set([
  status.INVALID_ARGUMENT,
  status.ALREADY_EXISTS,
  status.PERMISSION_DENIED,
  status.UNAUTHENTICATED,
  status.UNIMPLEMENTED,
]);

type HostStream = Stream<HostMessage, GatewayMessage>;

export interface HostOptions {
  access: Access;
  offers: Offer[];
  /** Sessions open at once. */
  capacity?: number;
  /** Hosts that run at the same time need names of their own; one that is started again keeps its name. */
  name?: string;
  /** The longest time that running episodes may take to end after `stop`, in seconds. */
  drainS?: number;
  /** Give up after this long without a gateway, in seconds. */
  giveUpS?: number;
}

/** The reason why a host ended without `stop`. */
export class HostError extends Error {}

/**
 * Serve until `stop` is aborted and the episodes have ended; `ready` is called once attached.
 * Throws HostError if the gateway refuses this host, or if there is none for giveUpS.
 */
export async function serve(options: HostOptions, stop: AbortSignal, ready = () => {}): Promise<void> {
  await new Host(options, stop, ready).run();
}

class Host {
  readonly #options: Required<HostOptions>;
  readonly #stop: AbortSignal;
  #ready: () => void;
  readonly #sessions: Sessions;
  // Drawn at the start, never 0: a host that dials again is known by it.
  readonly #instance = (randomBytes(8).readBigUInt64BE() | 1n).toString();
  #epoch = 0;
  #attached = false;
  #heardAt = performance.now();
  #stream: HostStream | undefined;

  constructor(options: HostOptions, stop: AbortSignal, ready: () => void) {
    this.#options = { capacity: 64, name: "env-host", drainS: 10, giveUpS: 60, ...options };
    this.#stop = stop;
    this.#ready = ready;
    const offers = new Map(options.offers.map((offer) => [offer.name, offer]));
    if (offers.size < options.offers.length) throw new HostError("two environments have the same name");
    const { capacity } = this.#options;
    if (!Number.isInteger(capacity) || capacity < 1) throw new HostError(`capacity ${capacity} is no count`);
    this.#sessions = new Sessions(offers, capacity, (message) => this.#stream?.send(message));
  }

  async run(): Promise<void> {
    const { access, giveUpS } = this.#options;
    const client = connect(access);
    let backoffS = FIRST_BACKOFF_S;
    try {
      while (!this.#stop.aborted) {
        const ended = await this.#attempt(client);
        if (this.#stop.aborted) return;
        const reason = `${status[ended.code]} ${ended.details || "the gateway ended the stream"}`;
        if (REFUSALS.has(ended.code)) throw new HostError(`${access.gateway} refuses this host: ${reason}`);
        if (performance.now() - this.#heardAt > giveUpS * 1e3) {
          throw new HostError(`no gateway at ${access.gateway} for ${giveUpS} s: ${reason}`);
        }
        if (this.#attached) backoffS = FIRST_BACKOFF_S;
        console.error(`stream to ${access.gateway} lost, trying again: ${reason}`);
        await pause(backoffS * (0.5 + Math.random() / 2), this.#stop);
        backoffS = Math.min(backoffS * 2, MAX_BACKOFF_S);
      }
    } finally {
      this.#sessions.keep(new Set());
      client.close();
    }
  }

  /** One stream, from Hello to its end. */
  async #attempt(client: Client): Promise<Ended> {
    this.#epoch += 1;
    this.#attached = false;
    const { access } = this.#options;
    const stream: HostStream = new Stream(client, ATTACH, access, (message) => {
      this.#heardAt = performance.now();
      watchdog.heard();
      if (this.#attached) this.#handle(message);
      else this.#welcome(message, stream, watchdog);
    });
    const watchdog = new Watchdog(WELCOME_S, (text) => stream.abort(status.UNAVAILABLE, text));
    const drain = () => void this.#drain(stream);
    this.#stop.addEventListener("abort", drain);
    this.#stream = stream;
    this.#say({ hello: this.#hello() });
    try {
      return await stream.ended;
    } finally {
      this.#stop.removeEventListener("abort", drain);
      watchdog.stop();
    }
  }

  #say(message: HostMessage): void {
    this.#stream?.send(encode(ATTACH, message));
  }

  #hello() {
    const { name, offers } = this.#options;
    return {
      protocol: PROTOCOL,
      host: name,
      instance: this.#instance,
      epoch: `${this.#epoch}`,
      environments: offers.map(described),
      capacity: this.#sessions.offered,
    };
  }

  #welcome(message: GatewayMessage, stream: HostStream, watchdog: Watchdog): void {
    const welcome: Welcome | undefined = message.message === "welcome" ? message.welcome : undefined;
    if (welcome?.protocol !== PROTOCOL) {
      const got = welcome ? `protocol ${welcome.protocol}` : `${message.message} before Welcome`;
      stream.abort(status.INVALID_ARGUMENT, `the gateway speaks ${got}, this host protocol ${PROTOCOL}`);
      return;
    }
    this.#attached = true;
    watchdog.allow(Math.max(3 * welcome.leaseS, 1)); // the gateway pings several times a lease
    this.#sessions.maxTextBytes = Math.max(welcome.maxTextBytes, 1024);
    // 0 of an older gateway, which does not say.
    this.#sessions.maxActionCharacters = welcome.maxActionCharacters || MAX_ACTION_CHARACTERS;
    this.#sessions.keep(new Set(welcome.sessions));
    this.#ready();
    this.#ready = () => {};
  }

  #handle(message: GatewayMessage): void {
    switch (message.message) {
      case "reset":
        return this.#sessions.reset(message.reset);
      case "step":
        return this.#sessions.step(message.step);
      case "close":
        return this.#sessions.drop(message.close.session);
      case "cancel":
        return this.#sessions.drop(message.cancel.session);
      case "ping":
        return this.#say({ pong: { nonce: message.ping.nonce } });
      case "drain":
        return console.error(`the gateway drains: ${message.drain.reason}`);
    }
  }

  /** Let the episodes end, then the stream. Every wait is bounded. */
  async #drain(stream: HostStream): Promise<void> {
    const { drainS } = this.#options;
    console.error(`draining ${this.#sessions.open} episodes`);
    this.#say({ drain: { graceS: drainS, reason: "the host stops" } });
    await Promise.race([this.#sessions.empty(), stream.ended, pause(drainS)]);
    stream.close();
    await Promise.race([stream.ended, pause(LAST_WORDS_S)]);
    stream.abort(status.CANCELLED, "the host stops");
  }
}

/** The description of an environment for the gateway; hosts that serve one name must agree on the schema's hash. */
function described(offer: Offer): EnvironmentInfo {
  const tools = toolsJson(offer.tools ?? []);
  const schema = JSON.stringify({ action: "text", observation: "text", tools });
  return {
    name: offer.name,
    description: offer.description,
    schemaHash: createHash("sha256").update(schema).digest("hex").slice(0, 16),
    toolsJson: tools,
    ...(offer.rewardRange && { minReward: offer.rewardRange[0], maxReward: offer.rewardRange[1] }),
  };
}

/** Calls `silent` once nothing was heard for a while. */
class Watchdog {
  readonly #silent: (text: string) => void;
  #timer: NodeJS.Timeout | undefined;

  constructor(seconds: number, silent: (text: string) => void) {
    this.#silent = silent;
    this.allow(seconds);
  }

  /** From now on silence may last this long. */
  allow(seconds: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#silent(`the gateway was silent for ${seconds} s`), seconds * 1e3);
  }

  heard(): void {
    this.#timer?.refresh();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

/** Wait, but not past `stop`; on its own this does not keep the process alive. */
async function pause(seconds: number, stop?: AbortSignal): Promise<void> {
  const options = stop ? { signal: stop } : { ref: false };
  await sleep(seconds * 1e3, undefined, options).catch(() => {});
}
