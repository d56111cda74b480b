/**
 * Serves the environments of this folder:
 *
 *     EARL_GATEWAY=127.0.0.1:7000 node main.ts --capacity 64 --name env-typescript
 *
 * Hosts that run at the same time need different names. Prints one line of JSON once it is attached.
 * Ends on SIGTERM or Ctrl-C, once the running episodes have ended; a second signal ends it at once.
 */

import { parseArgs } from "node:util";

import { battleship } from "./battleship.ts";
import { coins } from "./coins.ts";
import { accessFromEnvironment } from "./earl/connection.ts";
import { serve } from "./earl/host.ts";

const { values } = parseArgs({
  options: {
    name: { type: "string", default: "env-typescript" },
    capacity: { type: "string", default: "64" },
  },
});
const { name } = values;
const stop = new AbortController();
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.on(signal, () => (stop.signal.aborted ? process.exit(130) : stop.abort()));
}

try {
  const access = accessFromEnvironment();
  const options = { access, offers: [battleship, coins], capacity: Number(values.capacity), name };
  await serve(options, stop.signal, () => {
    console.log(JSON.stringify({ ready: name, address: access.gateway }));
  });
} catch (error) {
  console.error(`error: ${(error as Error).message}`);
  process.exitCode = 1;
}
