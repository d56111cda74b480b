"""The report's page: headline figures, charts, tables and the run file, as one HTML text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from earl.cli.report.charts import label, timeline
from earl.cli.report.conversations import conversations
from earl.cli.report.data import Record, RunRecord, read_run
from earl.cli.report.panels import card, panels, table
from earl.cli.report.style import CSS


def write_report(directory: Path) -> Path:
    """Reads a run's directory and writes report.html into it; ConfigError if it is no run."""
    path = directory / "report.html"
    path.write_text(page(read_run(directory)), encoding="utf-8")
    return path


def page(run: RunRecord) -> str:
    """The whole document."""
    busy = f'<div class="scroll">{timeline(run.spans, phase_starts(run), run.end_s)}</div>'
    measured, missing = panels(run)
    spoken, rules = conversations(run.samples)
    sections = [
        tiles(run),
        f'<div class="charts">{measured}</div>',
        missing,
        card("What was said", spoken, wide=True),
        card("Who was busy when", busy, wide=True),
        evaluation_table(run) if run.evaluations else "",
        f'<div class="charts">{"".join(tables(run))}</div>',
        f'<details class="card wide"><summary>Run file</summary><pre>{run_file(run)}</pre></details>',
    ]
    return document(run.config.name, subtitle(run), "".join(sections), rules)


def document(title: str, text: str, body: str, rules: str = "") -> str:
    """A page that needs nothing else. text: below the title; rules: CSS beside the reports' own."""
    title = escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>EARL · {title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{CSS}{rules}</style></head>"
        f"<body><header><h1>{title}</h1><p>{escape(text)}</p></header>"
        f"<main>{body}</main></body></html>\n"
    )


def subtitle(run: RunRecord) -> str:
    config = run.config
    model = config.model.path or (
        f"{config.model.scratch.family} from scratch, {config.model.scratch.layers} layers of "
        f"{config.model.scratch.hidden_size}"
    )
    return f"{config.environment.name} · {model} · seed {config.seed}"


# --- headline -------------------------------------------------------------------------------


def tiles(run: RunRecord) -> str:
    """The figures a reader looks for first; those that the run has not got are left out."""
    by_name = {str(record.get("name")): record for record in run.evaluations}
    final, start = by_name.get("final", {}), by_name.get("start", {})
    gained = f"{bounds(final, 'gain', signed=True)} in reward on the same {final.get('gain_episodes')} tasks"
    warmed = "after the warm-up" if run.config.warmup.batches else "the model as it came"
    best = run.result.get("best_version")
    newest = run.metrics[-1].get("version") if run.metrics else None
    figures = [
        ("win rate after", percent(final.get("win_rate")), sampled(final)),
        ("win rate before", percent(start.get("win_rate")), f"{sampled(start)}, {warmed}"),
        ("gain", number(final.get("gain"), signed=True), gained),
        ("illegal moves", percent(final.get("metrics.illegal"), 2), "of the final episodes"),
        ("time", clock(run.result.get("seconds")), "start to final evaluation"),
        ("trained", count(run.result.get("trained")), "trajectories, each once"),
        ("best version", count(best), f"by its evaluation, of {count(newest)}: one a step"),
        ("policy version", "" if best else count(newest), "one a step"),
    ]
    shown = (
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<small>{escape(note)}</small></div>"
        for name, value, note in figures
        if value
    )
    return f'<section class="tiles">{"".join(shown)}</section>'


def sampled(evaluation: Record) -> str:
    """The interval of its win rate and how many episodes it is over."""
    return f"{bounds(evaluation, 'win_rate', share=True)} of {count(evaluation.get('done'))} episodes".strip()


def bounds(evaluation: Record, key: str, *, share: bool = False, signed: bool = False) -> str:
    """The 95 % interval in brackets; empty if it was not recorded."""
    low, high = evaluation.get(f"{key}_low"), evaluation.get(f"{key}_high")
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return ""
    ends = (percent(end) if share else number(end, signed=signed) for end in (low, high))
    return f"[{', '.join(ends)}]"


def percent(value: object, digits: int = 1) -> str:
    return f"{value:.{digits}%}" if isinstance(value, (int, float)) else ""


def count(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else ""


def clock(seconds: object) -> str:
    if not isinstance(seconds, (int, float)):
        return ""
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def phase_starts(run: RunRecord) -> list[tuple[str, float]]:
    """(phase, second it began): a phase begins where the one before it recorded its end."""
    ends: dict[str, float] = {}
    for record in run.metrics:
        if "time_s" in record:
            ends[str(record.get("phase"))] = float(record["time_s"])
    for record in run.evaluations:
        if record.get("name") in ("start", "final") and "time_s" in record:
            ends[f"evaluate:{record['name']}"] = float(record["time_s"])
    order = sorted(ends, key=lambda phase: ends[phase])
    return list(zip(order, [0.0, *(ends[phase] for phase in order)], strict=False))


# --- tables ---------------------------------------------------------------------------------


def tables(run: RunRecord) -> Iterable[str]:
    ledger = {key: run.result[key] for key in LEDGER if key in run.result}
    if ledger:
        note = "issued = trained + evaluated + dropped + live, at every moment of the run."
        yield card("Ledger", table(list(ledger), [[count(value) for value in ledger.values()]]), note=note)
    moved = transfers(run.metrics[-1] if run.metrics else {})
    if moved:
        note = (
            "Tensors that readers pulled from where they were computed, by the path that was used. "
            "GB/s: bytes over the seconds that reads took, so what one read gets while others run; "
            "retries: requests that were sent again after a connection was lost."
        )
        yield card("Data plane", table(["path", "bytes", "reads", "GB/s", "retries"], moved), note=note)


def evaluation_table(run: RunRecord) -> str:
    illegal = any("metrics.illegal" in record for record in run.evaluations)
    best = run.result.get("best_version")
    rows = []
    for record in run.evaluations:
        version = count(record.get("version"))
        rows.append(
            [
                str(record.get("name", "")),
                f"{version} (best)" if best and record.get("version") == best else version,
                f"{count(record.get('done'))} of {count(record.get('episodes'))}",
                f"{percent(record.get('win_rate'))} {bounds(record, 'win_rate', share=True)}",
                f"{number(record.get('mean_reward'))} {bounds(record, 'mean_reward')}",
                f"{number(record.get('gain'), signed=True)} {bounds(record, 'gain', signed=True)}",
                *[percent(record.get("metrics.illegal"), 2)] * illegal,
            ]
        )
    heads = ["evaluation", "version", "episodes", "win rate", "reward", "gain", *["illegal"] * illegal]
    note = "Brackets: 95 % intervals. Gains are paired: the same tasks as in the first evaluation."
    return card("Evaluations", table(heads, rows), wide=True, note=note)


LEDGER = ("issued", "trained", "evaluated", "dropped", "live")


def transfers(last: Mapping[str, object]) -> list[list[str]]:
    """Rows of (path, bytes, reads, GB/s, retries) from the last step's totals."""
    rows = []
    for key, value in last.items():
        path = key.removeprefix("transfers.").removesuffix(".size_bytes")
        if key == f"transfers.{path}.size_bytes" and isinstance(value, (int, float)):
            reads, rate, retries = (last.get(f"transfers.{path}.{name}") for name in FIGURES)
            rows.append([path, f"{value / (1 << 20):,.1f} MiB", count(reads), number(rate), count(retries)])
    return rows


FIGURES = ("transfers", "gb_per_s", "retries")


def number(value: object, *, signed: bool = False) -> str:
    if not isinstance(value, (int, float)):
        return ""
    return ("+" if signed and value > 0 else "") + label(round(value, 3))


def run_file(run: RunRecord) -> str:
    """The resolved run file without what may be secret."""
    path = run.directory / "run.toml"
    text = path.read_text(encoding="utf-8") if path.is_file() else run.config.model_dump_json(indent=1)
    lines = ('redis_url = "(hidden)"' if line.startswith("redis_url") else line for line in text.splitlines())
    return escape("\n".join(lines))
