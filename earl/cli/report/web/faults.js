// Faults of environments: as the run's directory recorded them, or, without a record, as the gateway lists them.

import { at, h, head, put, table } from "./dom.js";
import { count, plural } from "./text.js";

export class Faults {
  constructor() {
    this.listed = [];
    this.rows = [];
    this.show();
  }

  /** listed: environments with faults, of a gateway that answers. */
  now(listed) {
    this.listed = listed.map((one) => ({ ...one, environment: one.name, last: one.last_fault, commonest: one.commonest_fault, quarantines: 0, hosts: [] }));
    this.show();
  }

  /** rows: of the whole run, an environment each. */
  recorded(rows) {
    this.rows = rows;
    this.show();
  }

  show() {
    const rows = this.rows.length ? this.rows : this.listed;
    const held = rows.some((one) => one.quarantines);
    at("faults").classList.toggle("without", !rows.length);
    put(at("faults"), head("Faults of environments", this.rows.length ? "Of the whole run." : "Since the gateway began."),
      rows.length > 0 && table("Faults of environments", ["environment", "#faults", "last fault", "commonest fault", ...(held ? ["#quarantines", "hosts", "last reason"] : [])],
        rows.map((one) => [one.environment, count(one.faults), wrap(one.last), often(one),
          ...(held ? [count(one.quarantines), hosts(one), wrap(one.reason)] : [])])));
  }
}

const wrap = (text) => h("span", { class: "wrap" }, text || "–");

/** The commonest text with its count, where it is not the last one. */
const often = ({ last, commonest, commonest_count: times }) => wrap(commonest && commonest !== last ? `${plural(times, "time")}: ${commonest}` : "");

/** The hosts that were in quarantine, each with how often. */
function hosts({ hosts: named, quarantines }) {
  const others = quarantines - named.reduce((sum, one) => sum + one.quarantines, 0);
  const texts = named.map((one) => (one.quarantines > 1 ? `${one.name} (${count(one.quarantines)} times)` : one.name));
  return wrap([...texts, ...(others > 0 ? [`others (${count(others)} times)`] : [])].join(", "));
}
