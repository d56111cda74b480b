// The parts of a run's page, and which section of the run each of them shows.

import { Alerts } from "./alerts.js";
import { Busy } from "./busy.js";
import { Decisions } from "./decisions.js";
import { at } from "./dom.js";
import { Evaluations } from "./evaluations.js";
import { Explorer } from "./explorer.js";
import { Figures } from "./figures.js";
import { Fleet } from "./fleet.js";
import { Learning } from "./learning.js";
import { Ledger } from "./ledger.js";
import { Lengths } from "./lengths.js";
import { Mixture } from "./mixture.js";
import { Overview } from "./overview.js";
import { Panels } from "./panels.js";
import { scheme } from "./scheme.js";
import { Viewer } from "./viewer.js";

/**
 * Builds the page. ask: answers requests about the run; grown: called when the run has grown; logs: whether
 * there are any to ask for.
 * Returns its sections, each a function that shows a new value, and connected(state) for the head.
 */
export function assembled(ask, grown, logs = true) {
  scheme(at("scheme"));
  const overview = new Overview();
  const learning = new Learning();
  const evaluations = new Evaluations();
  const mixture = new Mixture();
  const busy = new Busy(ask);
  const alerts = new Alerts(ask);
  // What is asked for when the run has grown.
  const asking = [new Explorer(ask), new Figures(ask), busy, alerts];
  const panels = new Panels(ask, logs);
  const lengths = new Lengths();
  const decisions = new Decisions();
  const ledger = new Ledger();
  const fleet = new Fleet();
  const viewer = new Viewer(ask);
  const sections = {
    run: (value) => {
      overview.update(value);
      evaluations.outline(value);
      decisions.live(value.stages);
    },
    learning: (value) => {
      learning.update(value);
      evaluations.update(value);
      overview.learned(value);
      busy.phases(value.phases);
      grown();
    },
    mixture: (value) => mixture.update(value),
    missing: (value) => evaluations.unmeasured(value),
    lengths: (value) => lengths.update(value),
    decisions: (value) => decisions.update(value),
    ledger: (value) => {
      ledger.update(value);
      // Of a run that has issued no ticket there is none to list.
      at("tickets").hidden = !value.issued;
    },
    endings: (value) => ledger.ended(value),
    tickets: (value) => ledger.listing(value),
    workers: (value) => {
      fleet.workers(value);
      panels.processes(value.rows.map((row) => row.name));
    },
    hosts: (value) => fleet.hosts(value),
    faults: (value) => fleet.faults(value),
    concerns: (value) => alerts.now(value),
    moved: (value) => fleet.paths(value),
    trajectories: (value) => viewer.update(value),
  };
  followed();
  return { sections, connected: (state) => overview.connected(state), again: () => asking.map((one) => one.update()) };
}

/** Marks the section in view in the navigation. */
function followed() {
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
  for (const link of links) if (link.hash) seen.observe(document.querySelector(link.hash));
}

/** Shows what is there. Until then nothing moves under the reader's eyes while the page fills. */
export function revealed() {
  document.body.classList.remove("waiting");
}
