/**
 * The messages of proto/earl/v1/env.proto, read at run time: nothing is generated. Field names are in
 * camelCase and a uint64 is a string of digits, as a JavaScript number is exact only up to 2^53.
 */

import { fileURLToPath } from "node:url";
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

import type { Observation, ToolCall } from "./environment.ts";

export const PROTOCOL = 1;

/** Decimal digits of an unsigned 64-bit integer. */
export type Uint64 = string;

export type Ending =
  | "ENDING_UNSPECIFIED"
  | "ENDING_OK"
  | "ENDING_TRUNCATED"
  | "ENDING_ENV_ERROR"
  | "ENDING_INFRA_ERROR"
  | "ENDING_TIMEOUT";

export interface EnvironmentInfo {
  name: string;
  description: string;
  schemaHash: string;
  minReward?: number;
  maxReward?: number;
  toolsJson: string;
}

export interface Hello {
  protocol: number;
  host: string;
  instance: Uint64;
  epoch: Uint64;
  environments: EnvironmentInfo[];
  capacity: number;
}

export interface Welcome {
  protocol: number;
  leaseS: number;
  maxTextBytes: number;
  sessions: Uint64[];
  maxActionCharacters: number;
}

export interface Reset {
  session: Uint64;
  seq: Uint64;
  environment: string;
  taskJson: string;
  seed: Uint64;
  deadlineS: number;
}

export interface Step {
  session: Uint64;
  seq: Uint64;
  action: { text: string; toolCalls: ToolCall[] } | null;
  deadlineS: number;
}

export interface Result {
  session: Uint64;
  seq: Uint64;
  observation?: Observation | null;
  reward?: number;
  done?: boolean;
  ending?: Ending;
  message?: string;
  metrics?: Record<string, number>;
}

export interface Progress {
  session: Uint64;
  seq: Uint64;
  message: string;
}

export interface Drain {
  graceS: number;
  reason: string;
}

export interface Open {
  session: Uint64;
  environment: string;
  taskJson: string;
  seed: Uint64;
  queueS: number;
  resetS: number;
  stepS: number;
  episodeS: number;
}

/** The messages of a host. */
export type HostMessage =
  | { hello: Hello }
  | { result: Result }
  | { progress: Progress }
  | { credit: { capacity: number } }
  | { drain: Drain }
  | { pong: { nonce: Uint64 } };

/** The gateway's messages to a host; `message` names the field that is set, none for a kind unknown here. */
export type GatewayMessage =
  | { message: "welcome"; welcome: Welcome }
  | { message: "reset"; reset: Reset }
  | { message: "step"; step: Step }
  | { message: "close"; close: { session: Uint64 } }
  | { message: "cancel"; cancel: { session: Uint64; reason: string } }
  | { message: "drain"; drain: Drain }
  | { message: "ping"; ping: { nonce: Uint64 } }
  | { message?: undefined };

/** The messages of a client. */
export type ClientMessage =
  | { open: Open }
  | { step: { session: Uint64; seq: Uint64; action: { text: string; toolCalls?: ToolCall[] } } }
  | { close: { session: Uint64 } }
  | { cancel: { session: Uint64; seq: Uint64; reason: string } };

/** The gateway's messages to a client. */
export type SessionMessage =
  | { message: "result"; result: Required<Result> }
  | { message: "progress"; progress: Progress }
  | { message?: undefined };

/** A frame carries one message or several. */
export interface Frame<Message> {
  messages: Message[];
}

type Method<Out, In> = grpc.MethodDefinition<Frame<Out>, Frame<In>>;

const protos = process.env.EARL_PROTO ?? fileURLToPath(new URL("../../../proto", import.meta.url));
const definition = loadSync("earl/v1/env.proto", {
  includeDirs: [protos],
  longs: String,
  enums: String,
  defaults: true,
  oneofs: true,
});
const service = definition["earl.v1.EnvGatewayService"] as grpc.ServiceDefinition;

/** A host's stream. */
export const ATTACH = service.Attach as Method<HostMessage, GatewayMessage>;
/** A client's stream. */
export const PLAY = service.Play as Method<ClientMessage, SessionMessage>;

/**
 * One message as a frame of its own. Frames are concatenable, as protobuf's repeated fields are: so a
 * message is encoded once, its size is known, and messages that are ready together are sent together.
 */
export function encode<Out, In>(method: Method<Out, In>, message: Out): Buffer {
  return method.requestSerialize({ messages: [message] });
}
