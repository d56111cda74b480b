"""The report's page: headline figures, charts, tables and the run file, as one HTML text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from earl.cli.report.charts import Series, label, line_chart, smooth, timeline
from earl.cli.report.data import RunRecord, read_run
from earl.cli.report.style import CSS

TRAIN = "train"
SMOOTHING_STEPS = 8


def write_report(directory: Path) -> Path:
    """Reads a run's directory and writes report.html into it; ConfigError if it is no run."""
    path = directory / "report.html"
    path.write_text(page(read_run(directory)), encoding="utf-8")
    return path


def page(run: RunRecord) -> str:
    """The whole document."""
    name = escape(run.config.name)
    sections = [
        tiles(run),
        f'<div class="charts">{"".join(charts(run))}</div>',
        card("Who was busy when", timeline(run.spans, phase_starts(run), run.end_s), wide=True),
        f'<div class="charts">{"".join(tables(run))}</div>',
        f'<details class="card wide"><summary>Run file</summary><pre>{run_file(run)}</pre></details>',
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>EARL · {name}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{CSS}</style></head>'
        f"<body><header><h1>{name}</h1><p>{escape(subtitle(run))}</p></header>"
        f"<main>{''.join(sections)}</main></body></html>\n"
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
    figures = [
        ("win rate after training", percent(final.get("win_rate")), f"of {final.get('episodes', 0)} games"),
        ("win rate before", percent(start.get("win_rate")), "after the warm-up"),
        ("illegal moves", percent(final.get("metrics.illegal"), 2), "of the final games"),
        ("time", clock(run.result.get("seconds")), "start to final evaluation"),
        ("trajectories trained", count(run.result.get("trained")), "each exactly once"),
        ("policy version", count(run.metrics[-1].get("version") if run.metrics else None), "one a step"),
    ]
    shown = (
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b>'
        f"<small>{escape(note)}</small></div>"
        for name, value, note in figures
        if value
    )
    return f'<section class="tiles">{"".join(shown)}</section>'


def percent(value: object, digits: int = 1) -> str:
    return f"{value:.{digits}%}" if isinstance(value, (int, float)) else ""


def count(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else ""


def clock(seconds: object) -> str:
    if not isinstance(seconds, (int, float)):
        return ""
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


# --- charts ---------------------------------------------------------------------------------


def card(title: str, body: str, *, wide: bool = False, note: str = "") -> str:
    text = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="card{" wide" if wide else ""}"><h2>{escape(title)}</h2>{text}{body}</section>'


def charts(run: RunRecord) -> Iterable[str]:
    wins = run.points("win_rate", phase=TRAIN)
    judged = evaluation_points(run)
    yield card(
        "Win rate",
        line_chart(
            [
                Series("training games", wins, 0, faint=True),
                Series(f"mean of {SMOOTHING_STEPS} steps", smooth(wins, SMOOTHING_STEPS), 0),
                Series("evaluation", judged, 2, dots=True),
            ],
            x_label="training step",
            percent=True,
            y_range=(0.0, 1.0),
        ),
        note="Training games are sampled as they are learned from; evaluations use seeds never trained on.",
    )
    rewards = run.points("reward_mean", phase=TRAIN)
    yield card(
        "Reward",
        line_chart(
            [
                Series("mean of the batch", rewards, 1, faint=True),
                Series(f"mean of {SMOOTHING_STEPS} steps", smooth(rewards, SMOOTHING_STEPS), 1),
            ],
            x_label="training step",
        ),
    )
    yield card(
        "Episode length",
        line_chart(
            [
                Series(text, run.points(f"episode_tokens.{key}", phase=TRAIN), colour)
                for text, key, colour in (
                    ("95th percentile", "p95", 3),
                    ("mean", "mean", 0),
                    ("median", "p50", 2),
                )
            ],
            x_label="training step",
        ),
        note="Tokens of whole episodes: the context that the policy sees by the last turn.",
    )
    yield card(
        "Throughput",
        line_chart(
            [Series("tokens/s", smooth(run.points("tokens_per_s", over="time_s"), 3), 4)], x_label="seconds"
        ),
        note="Tokens of finished episodes per second, over the whole run.",
    )
    for title, key, colour in (
        ("Entropy", "entropy", 5),
        ("Staleness", "staleness_mean", 6),
        ("Gradient norm", "grad_norm", 3),
        ("Loss", "loss", 1),
    ):
        points = run.points(key, phase=TRAIN)
        if points:
            yield card(title, line_chart([Series(key, points, colour)], x_label="training step"))


def evaluation_points(run: RunRecord) -> list[tuple[float, float]]:
    """(training step, win rate) of every evaluation."""
    last = max((x for x, _ in run.points("win_rate", phase=TRAIN)), default=0.0)
    at = {"start": 0.0, "final": last}
    points = []
    for record in run.evaluations:
        step = record.get("step", at.get(str(record.get("name"))))
        if isinstance(step, (int, float)) and isinstance(record.get("win_rate"), (int, float)):
            name = str(record.get("name"))
            points.append((at.get(name, float(step)), float(record["win_rate"])))
    return sorted(points)


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
    rows = [
        [
            str(record.get("name", "")),
            count(record.get("version")),
            count(record.get("episodes")),
            percent(record.get("win_rate")),
            number(record.get("mean_reward")),
            percent(record.get("metrics.illegal"), 2),
        ]
        for record in run.evaluations
    ]
    if rows:
        heads = ["evaluation", "version", "episodes", "win rate", "reward", "illegal"]
        yield card("Evaluations", table(heads, rows))
    ledger = {key: run.result[key] for key in LEDGER if key in run.result}
    if ledger:
        note = "issued = trained + evaluated + dropped + live, at every moment of the run."
        yield card("Ledger", table(list(ledger), [[count(value) for value in ledger.values()]]), note=note)
    moved = transfers(run.metrics[-1] if run.metrics else {})
    if moved:
        note = "Tensors that readers pulled from where they were computed, by the path that was used."
        yield card("Data plane", table(["path", "bytes"], moved), note=note)


LEDGER = ("issued", "trained", "evaluated", "dropped", "live")


def transfers(last: Mapping[str, object]) -> list[list[str]]:
    """Rows of (path, bytes) from the last step's totals."""
    found = []
    for key, value in last.items():
        if key.startswith("bytes_by_path.") and isinstance(value, (int, float)):
            found.append([key.removeprefix("bytes_by_path."), f"{value / (1 << 20):,.1f} MiB"])
    return found


def number(value: object) -> str:
    return label(round(value, 4)) if isinstance(value, (int, float)) else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def run_file(run: RunRecord) -> str:
    """The resolved run file without what may be secret."""
    path = run.directory / "run.toml"
    text = path.read_text(encoding="utf-8") if path.is_file() else run.config.model_dump_json(indent=1)
    lines = ('redis_url = "(hidden)"' if line.startswith("redis_url") else line for line in text.splitlines())
    return escape("\n".join(lines))
