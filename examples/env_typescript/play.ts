/**
 * Plays episodes through the gateway, as any gRPC client may; the policy takes a random legal action:
 *
 *     EARL_GATEWAY=127.0.0.1:7000 node play.ts example/battleship --episodes 8 --seed 1
 *
 * Prints one JSON object an episode. Episode number i has the seed `seed + i`.
 */

import { parseArgs } from "node:util";

import { GatewayClient } from "./earl/client.ts";
import { accessFromEnvironment } from "./earl/connection.ts";
import { Random } from "./earl/random.ts";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    episodes: { type: "string", default: "1" },
    seed: { type: "string", default: "0" },
    task: { type: "string", default: "{}" },
  },
});
const [environment = "example/battleship"] = positionals;
const client = new GatewayClient(accessFromEnvironment());

async function episode(seed: bigint) {
  const task = JSON.parse(values.task) as Record<string, unknown>;
  const session = await client.open(environment, { task, seed });
  const policy = new Random(~seed); // not the numbers that the environment draws
  let steps = 0;
  while (!session.done) {
    await session.step(policy.choice(session.observation.legalActions ?? []));
    steps += 1;
  }
  return { seed: `${seed}`, steps, return: session.return, ...session.metrics };
}

try {
  const first = BigInt(values.seed);
  const seeds = Array.from({ length: Number(values.episodes) }, (_, index) => first + BigInt(index));
  for (const played of await Promise.all(seeds.map(episode))) console.log(JSON.stringify(played));
} catch (error) {
  console.error(`error: ${(error as Error).message}`);
  process.exitCode = 1;
} finally {
  client.close();
}
