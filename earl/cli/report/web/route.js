// Which run the page shows, and requests about it: "/?run=NAME". Without a name it is the server's first one.

const given = new URLSearchParams(location.search).get("run");

/** What the server lists: {folder, first, runs}; null if it does not answer. */
export async function listed() {
  const answer = await fetch("/api/runs").catch(() => null);
  return answer?.ok ? answer.json() : null;
}

export const run = given ?? (await listed())?.first ?? "";

/** The answer to a request about the run, such as "keys"; null if there is none. */
export async function ask(what) {
  const answer = await fetch(`/api/runs/${encodeURIComponent(run)}/${what}`).catch(() => null);
  return answer?.ok ? answer.json() : null;
}
