/** A host whose environment gives what must not be sent; the action says what. */

import { accessFromEnvironment } from "../../examples/env_typescript/earl/connection.ts";
import type { StepResult } from "../../examples/env_typescript/earl/environment.ts";
import { serve } from "../../examples/env_typescript/earl/host.ts";

const results: Record<string, () => unknown> = {
  "reward NaN": () => ({ observation: "", reward: NaN }),
  "metric Infinity": () => ({ observation: "", done: true, metrics: { steps: Infinity } }),
  "lone surrogate": () => ({ observation: "half a pair: \ud83d" }),
  "lone surrogate in a list": () => ({ observation: { text: "", legalActions: ["\udc00"] } }),
  "too long": () => ({ observation: "x".repeat(2 << 20) }),
  "no text": () => ({ observation: 7 }),
  "no result": () => undefined,
  "thrown text": () => {
    throw "a text";
  },
  "thrown and long": () => {
    throw new Error("🙂".repeat(1000));
  },
};

const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
const access = accessFromEnvironment();
const environment = {
  reset: () => "name a fault",
  step: ({ text }: { text: string }) => results[text]!() as StepResult,
};
const offers = [{ name: "test/faulty", description: "", create: () => environment }];
await serve({ access, offers, name: "faulty" }, stop.signal, () => {
  console.log(JSON.stringify({ ready: "faulty", address: access.gateway }));
});
