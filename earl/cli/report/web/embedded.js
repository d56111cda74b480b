// The data of a file that needs no server, and the answers that a server would give about a run.

/** What stands in the file. */
export function embedded() {
  return JSON.parse(document.getElementById("data").textContent);
}

// Rows of one answer, and characters of a sibling's text, as of the server.
const ROWS = 200;
const BEGINNING = 240;

/** A function that answers requests about the run, such as "keys"; null for what the file does not have. */
export function archive({ answers, metrics, trajectories }) {
  return async (what) => {
    const [path, query] = what.split("?");
    const asked = new URLSearchParams(query);
    if (path === "series") return { series: series(metrics, asked.getAll("key"), asked.get("over") ?? "step") };
    if (path === "trajectories") return listing(trajectories, asked);
    if (path.startsWith("trajectories/")) return whole(trajectories, Number(path.split("/")[1]));
    return answers[path] ?? null;
  };
}

function series(metrics, names, over) {
  const places = metrics[over] ?? [];
  const known = (value) => value !== null && value !== undefined;
  return Object.fromEntries(names.map((name) => [name, (metrics[name] ?? [])
    .map((value, index) => [places[index], value]).filter(([x, y]) => known(x) && known(y))]));
}

function listing(trajectories, asked) {
  const taken = trajectories.filter((one) => takes(one, asked));
  return { count: taken.length, rows: taken.slice(-ROWS).reverse() };
}

/** Whether the filters take a trajectory; the server's are in trajectories.py. */
function takes(one, asked) {
  const kinds = one.evaluation ? ["evaluation", one.evaluation] : ["training"];
  const sign = !(typeof one.reward === "number") || one.reward === 0 ? "zero" : one.reward > 0 ? "positive" : "negative";
  const text = asked.get("text")?.toLowerCase();
  return (!asked.get("kind") || kinds.includes(asked.get("kind")))
    && (!asked.get("ending") || asked.get("ending") === one.ending)
    && (!asked.get("reward") || asked.get("reward") === sign)
    && (!asked.get("first") || one.step >= Number(asked.get("first")))
    && (!asked.get("last") || one.step <= Number(asked.get("last")))
    && (!text || one.turns.some((turn) => turn.text.toLowerCase().includes(text)));
}

/** One trajectory, with those of its group or the same task in each evaluation. */
function whole(trajectories, ticket) {
  const one = trajectories.find((other) => other.ticket === ticket);
  if (!one) return null;
  const same = one.evaluation ? trajectories.filter((other) => other.evaluation && other.index === one.index)
    : trajectories.filter((other) => !other.evaluation && other.group === one.group);
  const rows = same.map((other) => ({ ...other, said: said(other) }));
  return { ...one, siblings: one.evaluation ? [] : rows, evaluated: one.evaluation ? rows : [] };
}

/** The beginning of what the policy wrote. */
function said(one) {
  return one.turns.filter((turn) => turn.role === "assistant").map((turn) => turn.text).join(" ").slice(0, BEGINNING);
}
