// Where every trajectory is: counts that add up to what was issued, and the tickets in progress.

import { at, empty, h, head, put, s, table } from "./dom.js";
import { ENDINGS, count, duration } from "./text.js";
import { ROLES, TICKETS } from "./words.js";

// Each state as { name, word, meaning, colour, live }: the word is shown, the name is that of the data.
const STATES = TICKETS.map(([name, word, meaning, , colour, live]) => ({ name, word, meaning, colour, live }));
const LIVE = STATES.filter((state) => state.live);
// Shown first until the reader chooses: pending tickets are the least interesting.
const PREFERRED = [...LIVE.slice(1), LIVE[0]];

export class Ledger {
  constructor() {
    this.endings = {};
    this.chosen = null;
    at("counts").classList.add("without");
    this.body = h("div", { class: "rows" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "State of the tickets" });
    put(at("tickets"), head("Tickets in progress", "The oldest first."), this.chips, this.body);
    this.listing({ state: "ended", rows: [] });
  }

  update(ledger) {
    this.ledger = ledger;
    this.counts();
  }

  ended(endings) {
    this.endings = endings;
    if (this.ledger) this.counts();
  }

  counts() {
    const { ledger } = this;
    at("counts").classList.toggle("without", !ledger.issued);
    if (!ledger.issued) return;
    const dropped = Object.values(ledger.dropped).reduce((sum, one) => sum + one, 0);
    const values = { ...ledger, dropped };
    const note = ledger.state === "live" ? `issued = trained${ledger.replayed ? " + trained again" : ""} + evaluated + dropped + in progress, at every moment.`
      : ledger.final ? "At the end of the run."
      : ledger.step ? `As of training step ${count(ledger.step)}.` : "Last answer of the scheduler.";
    put(at("counts"), head("Ledger", note),
      this.bar(values),
      h("dl", { class: "facts states" }, h("div", {}, h("dt", {}, "issued"), h("dd", {}, count(ledger.issued))),
        STATES.filter(({ name }) => name !== "replayed" || values.replayed).map(({ name, word, meaning, colour }) => h("div", { title: meaning }, h("dt", {}, h("i", { class: `c${colour}` }), word), h("dd", {}, count(values[name]))))),
      Object.keys(ledger.dropped).length > 0 && h("p", { class: "note" }, "Dropped: ",
        Object.entries(ledger.dropped).map(([reason, many]) => `${reason.replaceAll("_", " ")} ${count(many)}`).join(", "), "."),
      this.endingsNote(),
      ledger.roles.length > 0 && table("Stages of a batch", ["stage", ...ROLES.map(([, word]) => `#${word}`)],
        ledger.roles.map((one) => [one.name, ...ROLES.map(([name]) => count(one[name]))])));
  }

  /** How episodes ended; those out of memory are a part of the infrastructure’s errors. */
  endingsNote() {
    const { out_of_memory: outOfMemory = 0, ...endings } = this.endings;
    const texts = Object.entries(endings).filter(([, times]) => times).map(([kind, times]) => `${ENDINGS[kind] ?? kind} ${count(times)}`
      + (kind === "infra_error" && outOfMemory ? ` (${count(outOfMemory)} because an engine ran out of memory)` : ""));
    return texts.length > 0 && h("p", { class: "note" }, `Episodes ended: ${texts.join(", ")}. Every attempt of an episode counts.`);
  }

  bar(values) {
    let from = 0;
    const total = STATES.reduce((sum, { name }) => sum + (values[name] || 0), 0) || 1;
    const boxes = STATES.map(({ name, colour }) => {
      const wide = ((values[name] || 0) / total) * 100;
      const box = wide > 0 && s("rect", { class: `c${colour}`, x: from, y: 0, width: Math.max(0.25, wide - 0.15), height: 14 });
      from += wide;
      return box;
    });
    const label = STATES.map(({ name, word }) => `${word} ${count(values[name])}`).join(", ");
    return s("svg", { class: "stack", viewBox: "0 0 100 14", preserveAspectRatio: "none", role: "img", "aria-label": label }, boxes.filter(Boolean));
  }

  listing(tickets) {
    this.tickets = tickets;
    const rows = tickets.rows ?? [];
    const live = tickets.state === "live" && this.ledger;
    // A run that has ended has none in progress.
    at("tickets").classList.toggle("without", tickets.state === "ended");
    // Until the reader chooses, a state that has tickets.
    const filled = PREFERRED.find(({ name }) => rows.some((one) => one.state === name));
    const { name: shown, word } = this.chosen || filled || PREFERRED[0];
    put(this.chips, LIVE.map((state) =>
      h("button", { type: "button", "aria-pressed": state.name === shown, onclick: () => this.choose(state) }, live ? `${state.word} ${count(this.ledger[state.name])}` : state.word)));
    const found = rows.filter((one) => one.state === shown);
    if (!found.length) {
      put(this.body, empty(tickets.state === "live" ? `No ticket is ${word} now.`
        : "The scheduler does not answer; the list is shown again when it does."));
      return;
    }
    put(this.body, table(`Tickets that are ${word}`, ["#ticket", "#group", "for", "#try", "worker", "#tokens", "#age"],
      found.map((one) => [String(one.ticket), String(one.group), one.evaluation || one.purpose, String(one.attempt || "–"),
        one.worker || "–", one.tokens ? count(one.tokens) : "–", duration(one.age_s)])),
      live && this.ledger[shown] > found.length && h("p", { class: "note" }, `The oldest ${count(found.length)} of ${count(this.ledger[shown])}.`));
  }

  choose(state) {
    this.chosen = state;
    this.listing(this.tickets);
    this.chips.querySelector("[aria-pressed=true]").focus();
  }
}
