// Faults of environments: of each the larger count of the run's record and of the gateway's listing.

import { at, h, head, put, table } from "./dom.js";
import { count, minute, plural } from "./text.js";

export class Faults {
  constructor() {
    this.listed = [];
    this.record = { rows: [], until_ms: null };
    this.show();
  }

  /** listed: environments with faults since the gateway began, of a gateway that answers. */
  now(listed) {
    this.listed = listed;
    this.show();
  }

  /** record: an environment a row, over all launches of the run; until_ms: when the record became full, or null. */
  recorded(record) {
    this.record = record;
    this.show();
  }

  show() {
    const { rows, newer } = merged(this.record.rows, this.listed);
    const withQuarantines = rows.some((row) => row.quarantines);
    at("faults").classList.toggle("without", !rows.length);
    put(at("faults"), head("Faults of environments", this.note(newer)),
      rows.length > 0 && table("Faults of environments", ["environment", "#faults", "last fault", "commonest fault", ...(withQuarantines ? ["#quarantines", "hosts", "last reason"] : [])],
        rows.map((row) => [row.environment, count(row.faults), wrap(row.last), commonest(row),
          ...(withQuarantines ? [count(row.quarantines), hosts(row), wrap(row.reason)] : [])])));
  }

  /** What the counts cover. newer: some of them are the gateway's. */
  note(newer) {
    const { rows, until_ms: until } = this.record;
    if (!rows.length) return "Since the gateway began.";
    if (until === null) return "Of the whole run.";
    return `Recorded until ${minute(until / 1000)}, when faults.jsonl was full${newer ? "; larger counts are those of the gateway since it began" : ""}.`;
  }
}

/** The rows of the record, with the gateway's figures where it counts more; newer: whether there is such a row. */
function merged(recorded, listed) {
  const rows = new Map(recorded.map((row) => [row.environment, row]));
  let newer = false;
  for (const { name, faults, last_fault: last, commonest_fault: commonest, commonest_count } of listed) {
    const known = rows.get(name) ?? { environment: name, faults: 0, quarantines: 0, hosts: [], reason: "" };
    if (faults <= known.faults) continue;
    rows.set(name, { ...known, faults, last, commonest, commonest_count });
    newer = true;
  }
  return { rows: [...rows.values()].sort((row, other) => other.faults - row.faults), newer };
}

const wrap = (text) => h("span", { class: "wrap" }, text || "–");

/** The commonest text with its count, where it is not the last one. */
function commonest({ last, commonest: text, commonest_count: times }) {
  return wrap(text && text !== last ? `${plural(times, "time")}: ${text}` : "");
}

/** The hosts that were in quarantine, each with how often. */
function hosts({ hosts: named, quarantines }) {
  const others = quarantines - named.reduce((sum, host) => sum + host.quarantines, 0);
  const texts = named.map((host) => (host.quarantines > 1 ? `${host.name} (${count(host.quarantines)} times)` : host.name));
  return wrap([...texts, ...(others > 0 ? [`others (${plural(others, "time")})`] : [])].join(", "));
}
