/** A stream to the gateway: token, TLS, keepalive; writes that never block and are bounded. */

import { readFileSync } from "node:fs";
import { BlockList, isIP } from "node:net";
import { getCACertificates } from "node:tls";
import * as grpc from "@grpc/grpc-js";

import type { Frame } from "./wire.ts";

/** The address of a gateway and the credentials for it. */
export interface Access {
  /** "host:port". */
  gateway: string;
  token?: string;
  /** Encrypt. authority: PEM of the authorities to trust. Without it no token is sent off this machine. */
  tls?: { authority: Buffer };
}

/** EARL_GATEWAY, EARL_TOKEN, and TLS if EARL_TLS_CA is set: to a PEM file, or "system" for the authorities that this machine trusts. */
export function accessFromEnvironment(): Access {
  const { EARL_GATEWAY, EARL_TLS_CA } = process.env;
  const token = process.env.EARL_TOKEN?.trim();
  if (!EARL_GATEWAY) throw new Error("EARL_GATEWAY is not set; set it to the gateway's host:port");
  return {
    gateway: EARL_GATEWAY,
    ...(token && { token }),
    ...(EARL_TLS_CA && { tls: { authority: authority(EARL_TLS_CA) } }),
  };
}

function authority(named: string): Buffer {
  return named === "system" ? Buffer.from(getCACertificates("system").join("\n")) : readFileSync(named);
}

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet("127.0.0.0", 8, "ipv4");
LOOPBACK.addAddress("::1", "ipv6");

/** Whether nothing outside this machine can answer there. Any other name may resolve to anything. */
function isLoopback(address: string): boolean {
  const host = address.slice(0, address.lastIndexOf(":")).replace(/^\[|\]$/g, "");
  const version = isIP(host);
  return host === "localhost" || (version !== 0 && LOOPBACK.check(host, version === 6 ? "ipv6" : "ipv4"));
}

const CHANNEL: grpc.ChannelOptions = {
  "grpc.max_receive_message_length": 32 << 20,
  "grpc.max_send_message_length": 32 << 20,
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 20_000,
  "grpc.keepalive_permit_without_calls": 1,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 2_000,
  "grpc.enable_retries": 0,
};

/** Throws if the token would be sent off this machine in plain text: whoever answered there would have it. */
export function connect(access: Access): grpc.Client {
  const loopback = isLoopback(access.gateway);
  if (access.token && !access.tls && !loopback) {
    throw new Error(
      `a token would be sent to ${access.gateway} in plain text; ` +
        "set EARL_TLS_CA=ca.pem, or EARL_TLS_CA=system for whom this machine trusts",
    );
  }
  const credentials = access.tls
    ? grpc.credentials.createSsl(access.tls.authority)
    : grpc.credentials.createInsecure();
  // A proxy that the environment names does not come between this machine and itself.
  return new grpc.Client(access.gateway, credentials, { ...CHANNEL, "grpc.enable_http_proxy": loopback ? 0 : 1 });
}

/** Bounds of one frame (a single message may be larger), and of what a peer leaves unread. */
const FRAME_BYTES = 4 << 20;
const UNREAD_BYTES = 64 << 20;

/** How a stream ended: gRPC's status, or this side's reason. */
export interface Ended {
  code: grpc.status;
  details: string;
}

/**
 * One bidirectional stream of frames.
 *
 *     const stream = new Stream(client, ATTACH, access, (message) => ...);
 *     stream.send(encode(ATTACH, {hello}));
 *     const {code, details} = await stream.ended;
 */
export class Stream<Out, In> {
  /** Settles once, whatever ends the stream; never rejects. */
  readonly ended: Promise<Ended>;
  readonly #call: grpc.ClientDuplexStream<Buffer, Frame<In>>;
  #waiting: Buffer[] = [];
  #waitingBytes = 0;
  #scheduled = false;
  #blocked = false;
  /** Closed: nothing more is queued or read. */
  #closing = false;
  #over = false;
  #verdict: Ended | undefined;

  constructor(
    client: grpc.Client,
    method: grpc.MethodDefinition<Frame<Out>, Frame<In>>,
    access: Access,
    receive: (message: In) => void,
  ) {
    const metadata = new grpc.Metadata();
    if (access.token) metadata.set("authorization", `Bearer ${access.token}`);
    const asIs = (frame: Buffer) => frame;
    this.#call = client.makeBidiStreamRequest(method.path, asIs, method.responseDeserialize, metadata);
    this.#call.on("data", (frame: Frame<In>) => {
      if (!this.#over) frame.messages.forEach(receive);
    });
    this.#call.on("drain", () => {
      this.#blocked = false;
      this.#write();
    });
    this.#call.on("error", () => {}); // the status says the same, and also comes without an error
    this.ended = new Promise((resolve) => {
      this.#call.on("status", ({ code, details }: grpc.StatusObject) => {
        this.#stop();
        resolve(this.#verdict ?? { code, details });
      });
    });
  }

  /** Queue an encoded message. Messages that are ready together go in one frame; after the end it is dropped. */
  send(message: Buffer): void {
    if (this.#closing) return;
    this.#waiting.push(message);
    this.#waitingBytes += message.length;
    if (this.#waitingBytes > UNREAD_BYTES) {
      this.abort(grpc.status.RESOURCE_EXHAUSTED, `the gateway left ${this.#waitingBytes} bytes unread`);
    } else if (!this.#scheduled && !this.#blocked) {
      this.#scheduled = true;
      setImmediate(() => {
        this.#scheduled = false;
        this.#write();
      });
    }
  }

  /** Stop sending once the queue is written; the other side then ends the stream. */
  close(): void {
    if (this.#closing) return;
    this.#closing = true;
    if (!this.#scheduled && !this.#blocked) this.#write();
  }

  /** End now, for a reason of this side's. */
  abort(code: grpc.status, details: string): void {
    this.#verdict ??= { code, details };
    this.#stop();
    this.#call.cancel();
  }

  #stop(): void {
    this.#closing = true;
    this.#over = true;
    this.#waiting = [];
  }

  #write(): void {
    while (this.#waiting.length > 0 && !this.#blocked) {
      this.#blocked = !this.#call.write(this.#nextFrame());
    }
    if (this.#closing && !this.#blocked) this.#call.end();
  }

  #nextFrame(): Buffer {
    let count = 0;
    let bytes = 0;
    for (const message of this.#waiting) {
      if (count > 0 && bytes + message.length > FRAME_BYTES) break;
      count += 1;
      bytes += message.length;
    }
    this.#waitingBytes -= bytes;
    return Buffer.concat(this.#waiting.splice(0, count), bytes);
  }
}
