// Numbers as a person reads them.

/** Phases of a run, as a person says them. */
export const PHASES = {
  warmup: "warm-up",
  train: "training",
  "evaluate:start": "evaluation before training",
  "evaluate:final": "final evaluation",
  done: "done",
};

/** Endings of an episode. */
export const ENDINGS = { ok: "ok", truncated: "truncated", env_error: "environment’s error", infra_error: "infrastructure’s error", timeout: "timeout" };

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 12,345 or 12.3k; "–" for what is not known. */
export function count(value) {
  if (!known(value)) return "–";
  if (Math.abs(value) >= 1e6) return `${(value / 1e6).toFixed(value < 1e7 ? 2 : 1)}M`;
  if (Math.abs(value) >= 1e5) return `${Math.round(value / 1e3)}k`;
  return Math.round(value).toLocaleString("en");
}

/** At most `digits` significant digits. */
export function number(value, digits = 3) {
  if (!known(value)) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(digits - 2).replace("e+", "e");
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

export function signed(value, digits = 3) {
  return known(value) && value > 0 ? `+${number(value, digits)}` : number(value, digits).replace("-", "−");
}

export function percent(value, digits = 1) {
  return known(value) ? `${(value * 100).toFixed(digits)} %` : "–";
}

export function bytes(value) {
  if (!known(value)) return "–";
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${number(value / size)} ${unit}`;
  }
  return `${value} B`;
}

/** 40 ms, 8.0 s, 3 min 20 s, 2 h 05 min. */
export function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds > 0 && seconds < 1) return `${number(seconds * 1000, 2)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

/** Wall-clock time of Unix seconds. */
export function clock(unix) {
  return new Date(unix * 1000).toLocaleTimeString("en-GB");
}

/** Date and wall-clock time of Unix seconds, to the minute. */
export function minute(unix) {
  return new Date(unix * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

export const plural = (amount, what) => `${count(amount)} ${what}${amount === 1 ? "" : "s"}`;

/** 512, 4K: a power of two of tokens. */
export function tokens(value) {
  return value >= 1024 && value % 1024 === 0 ? `${value / 1024}K` : count(value);
}

const FIGURES = {
  sequences: "trajectories", reward_mean: "mean reward", win_rate: "win rate", tokens: "tokens", trained_tokens: "tokens trained on",
  length_mean: "mean length", length_max: "longest", turns_mean: "mean turns", truncated_episodes: "truncated",
  staleness_mean: "mean staleness", staleness_max: "most staleness",
};
const PARTS = /^(?:environments\.(.+?)\.)?(?:seats\.(\d+)\.)?([^.]+)$/;

/** The environment, the seat and the figure of a metric, each as a person reads it; null for one of the whole run. */
export function partOf(key) {
  const [, label = "", number, figure] = PARTS.exec(key) ?? [];
  if (!label && !number) return null;
  return { label, seat: number ? `seat ${number}` : "", figure: FIGURES[figure] ?? figure.replaceAll("_", " ") };
}

/** The name of a metric as a person reads it: "relay/digits, seat 0: win rate". */
export function metricName(key) {
  const part = partOf(key);
  return part ? `${[part.label, part.seat].filter(Boolean).join(", ")}: ${part.figure}` : key;
}
