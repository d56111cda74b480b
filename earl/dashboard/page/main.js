// Puts the page together: each section of the feed goes to the part that shows it.

import { Decisions } from "./decisions.js";
import { at } from "./dom.js";
import { Feed } from "./feed.js";
import { Fleet } from "./fleet.js";
import { Learning } from "./learning.js";
import { Ledger } from "./ledger.js";
import { Lengths } from "./lengths.js";
import { Overview } from "./overview.js";
import { scheme } from "./scheme.js";
import { Viewer } from "./viewer.js";

// The link's token is used up: it need not stand in the history.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);
scheme(at("scheme"));

const overview = new Overview();
const learning = new Learning();
const lengths = new Lengths();
const decisions = new Decisions();
const ledger = new Ledger();
const fleet = new Fleet();
const viewer = new Viewer();

const parts = {
  run: (value) => {
    overview.update(value);
    decisions.live(value.stages);
  },
  learning: (value) => {
    learning.update(value);
    overview.learned(value);
  },
  lengths: (value) => lengths.update(value),
  decisions: (value) => decisions.update(value),
  ledger: (value) => ledger.update(value),
  endings: (value) => ledger.ended(value),
  tickets: (value) => ledger.listing(value),
  workers: (value) => fleet.workers(value),
  hosts: (value) => fleet.hosts(value),
  moved: (value) => fleet.paths(value),
  trajectories: (value) => viewer.update(value),
};

// Shown once every section has come: nothing moves under the reader's eyes while the page fills.
const missing = new Set(Object.keys(parts));
const reveal = () => document.body.classList.remove("waiting");
setTimeout(reveal, 4000);

new Feed(Object.keys(parts), (name, value) => {
  parts[name](value);
  missing.delete(name);
  if (!missing.size) reveal();
}, (state) => overview.connected(state));

// The section that is looked at is marked in the navigation.
const links = [...document.querySelectorAll("nav a")];
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links) {
      if (link.hash === `#${entry.target.id}`) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }
}, { rootMargin: "-20% 0px -70% 0px" });
for (const link of links) seen.observe(document.querySelector(link.hash));
