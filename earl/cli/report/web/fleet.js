// Workers with their gauges, what moved by which path, and the hosts of the environments.

import { Chart } from "./chart.js";
import { at, h, head, put, s, table } from "./dom.js";
import { Faults } from "./faults.js";
import { bytes, clock, count, duration, number, percent, plural } from "./text.js";

const PATH_TINTS = [0, 1, 4, 6, 5, 7];
// Bytes between two ticks of an axis: powers of two, as KiB, MiB and GiB are.
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);

export class Fleet {
  constructor() {
    this.open = new Set();
    this.moved = [];
    this.faulty = new Faults();
    this.chart = new Chart("Bytes read in each training step, by path", "");
    this.read = h("h4", {}, this.chart.title);
    this.totals = h("div", {});
    put(at("transfers"), head("Transfers by path", "What readers read from the owners’ memory. GB/s: during reads."),
      this.read, this.chart.plot, this.chart.legend, this.totals);
    this.workers({ state: "ended", rows: [] });
    this.hosts({ state: "ended", rows: [], environments: [], waiting: [] });
    this.transfers();
  }

  workers({ state, rows, heard }) {
    this.rows = rows;
    this.transfers();
    const note = state === "live" || !rows.length ? "" : `Last answer of the scheduler: ${clock(heard)}.`;
    at("workers").classList.toggle("without", !rows.length);
    put(at("workers"), head("Workers", note), table("Workers",
      ["worker", "stage", "parallelism", "#version", "#running", "memory", "KV in use", "#last seen", "gauges"],
      rows.map((one) => [one.name, one.stage, one.parallelism, count(one.version), one.capacity ? `${count(one.running)} / ${count(one.capacity)}` : count(one.running),
        meter(one.gauges.memory_fraction, "memory"), meter(one.gauges.kv_used_tokens / one.gauges.kv_tokens, "KV"), `${duration(one.silent_s)} ago`, this.gauges(one)])));
  }

  gauges(one) {
    const found = Object.entries(one.gauges).sort();
    return h("details", { open: this.open.has(one.name), ontoggle: (event) => this.open[event.target.open ? "add" : "delete"](one.name) },
      h("summary", {}, String(found.length)),
      h("dl", { class: "gauges" }, found.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, number(value, 4))))));
  }

  /** moved: by path, over the whole run. */
  paths(moved) {
    this.moved = moved;
    this.transfers();
  }

  transfers() {
    const live = (this.rows ?? []).flatMap((one) => one.transfers.map((path) => ({ worker: one.name, ...path })));
    at("transfers").classList.toggle("without", !this.moved.length && !live.length);
    // A single step draws no line.
    const drawn = this.moved.some((one) => one.a_step.length > 1);
    for (const part of [this.read, this.chart.plot, this.chart.legend]) part.hidden = !drawn;
    this.chart.update({
      series: drawn ? this.moved.map((one, path) => ({ name: one.path, colour: PATH_TINTS[path % PATH_TINTS.length], points: one.a_step })) : [],
      format: bytes, ticks: BINARY, zero: true,
    });
    put(this.totals,
      this.moved.length > 0 && table("Bytes by path", ["path", "#bytes", "#reads", "#GB/s", "#sent again"], this.moved.map((one) =>
        [one.path, bytes(one.size_bytes), count(one.transfers), number(one.size_bytes / one.seconds / 1e9), count(one.retries)])),
      live.length > 0 && h("details", {}, h("summary", {}, "by worker, now"), table("Bytes by worker", ["worker", "path", "#bytes", "#GB/s", "#sent again"],
        live.map((one) => [one.worker, one.path, bytes(one.size_bytes), number(one.gb_per_s), count(one.retries)]))));
  }

  hosts({ state, rows, environments, waiting, more, since, error, waits }) {
    this.faulty.now(environments.filter((one) => one.faults));
    at("hosts").classList.toggle("without", state !== "silent" && !environments.length && !waiting.length);
    if (state === "silent") {
      put(at("hosts"), head("Environment hosts"), h("p", { class: "empty bad" }, `The gateway has not answered since ${clock(since)}: ${error}`));
      return;
    }
    put(at("hosts"), head("Environment hosts", waits?.count ? `Waits for a host: median ${duration(waits.p50)}, 99 % ${duration(waits.p99)}, longest ${duration(waits.longest)}.` : ""),
      waiting.map((sentence) => h("p", { class: "bad wrap" }, `${sentence}.`)),
      rows.length > 0 && table("Hosts", ["host", "state", "busy", "#sessions", "#faults in a row"], rows.map((one) =>
        [one.name, hostState(one), meter(one.open / one.capacity, "sessions"), `${count(one.open)} / ${count(one.capacity)}`, count(one.faults)])),
      more?.hosts > 0 && h("p", { class: "note" }, `And ${plural(more.hosts, "more host")}.`),
      environments.length > 0 && table("Environments", ["environment", "#hosts", "#open", "#capacity", "#queue", "#quarantined"], environments.map((one) =>
        [one.name, count(one.hosts), count(one.open), count(one.capacity), count(one.queued), h("span", { class: one.quarantined && "bad" }, count(one.quarantined))])),
      more?.environments > 0 && h("p", { class: "note" }, `And ${plural(more.environments, "more environment")}.`));
  }

  faults(record) {
    this.faulty.recorded(record);
  }
}

/** The state of a host, in a line each: its stream, then what it gets fewer sessions of, or none, and why. */
function hostState({ state, quarantines, more, probation }) {
  const stream = state === "attached" ? state : h("span", { class: "bad" }, state);
  const held = quarantines.map((one) => h("span", { class: "wrap bad" }, `quarantined until ${clock(one.until)} for ${one.environment}: ${one.reason}`));
  const others = more > 0 && h("span", { class: "wrap bad" }, `quarantined for ${plural(more, "more environment")}`);
  const tried = probation.length > 0 && h("span", { class: "wrap" }, `on probation for ${probation.join(", ")}: one session at a time`);
  return h("span", {}, stream, held, others, tried);
}

/** A share as a bar with its number; "–" for what is not known. */
function meter(part, what) {
  if (typeof part !== "number" || !Number.isFinite(part)) return "–";
  return h("span", { class: "meter" },
    s("svg", { viewBox: "0 0 60 8", "aria-hidden": true },
      s("rect", { class: "idle", width: 60, height: 8, rx: 4 }),
      s("rect", { class: part > 0.92 ? "c7" : "c0", width: Math.max(2, Math.min(60, part * 60)), height: 8, rx: 4 })),
    h("span", { class: "hidden" }, what), percent(part, 0));
}
