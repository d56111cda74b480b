// The page of a run that is followed: each section of the feed goes to the part that shows it.

import { Feed } from "./feed.js";
import { assembled, revealed } from "./page.js";
import { ask, run } from "./route.js";

// The link's token is used up: it need not stand in the history.
const kept = new URLSearchParams(location.search);
if (kept.has("token")) history.replaceState(null, "", `/?run=${encodeURIComponent(run)}${location.hash}`);
const PERIOD_MS = 3000;

let waiting = false;
let refreshed = -PERIOD_MS;

/** Asks for what the feed does not tell, at most every PERIOD_MS. */
async function refresh() {
  if (waiting) return;
  waiting = true;
  await new Promise((resume) => setTimeout(resume, Math.max(0, refreshed + PERIOD_MS - performance.now())));
  waiting = false;
  refreshed = performance.now();
  page.again();
}

const page = assembled(ask, refresh);
const missing = new Set(Object.keys(page.sections));
setTimeout(revealed, 4000);

new Feed(Object.keys(page.sections), (name, value) => {
  page.sections[name](value);
  missing.delete(name);
  if (!missing.size) revealed();
}, page.connected);
