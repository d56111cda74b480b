"""Checks the times that processes were busy, and their warnings, read on as their files grow."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from earl.cli.report.sections.alerts import SHOWN, Alerts
from earl.cli.report.sections.busy import FIRST_S, STRETCHES, BusyTable
from earl.obs.metrics import LineFile
from earl.stack.run_files import LOGS

SECOND = 10**9


def span(who: str, what: str, start_s: float, end_s: float) -> dict[str, object]:
    start_ns, end_ns = (10**18 + round(at * SECOND) for at in (start_s, end_s))
    return {"who": who, "what": what, "start_ns": start_ns, "end_ns": end_ns}


def test_a_span_counts_in_every_stretch_that_it_touches(tmp_path: Path):
    file = LineFile(tmp_path / "timeline.jsonl")
    table = BusyTable(tmp_path / "timeline.jsonl")
    table.update()
    assert table.section() == {"start_ms": 0, "stretch_s": FIRST_S, "rows": []}
    file.write(span("trainer", "train", 0.0, 0.75), span("rollout-0", "generate", 1.0, 1.25))
    table.update()
    file.write(span("trainer", "train", 1.5, 1.75), {"who": "trainer"})
    table.update()
    rows = table.section()["rows"]
    assert [(row["who"], row["shares"]) for row in rows] == [
        ("rollout-0", [0.0, 0.0, 0.5, 0.0]),
        ("trainer", [1.0, 0.5, 0.0, 0.5]),
    ]


@given(st.lists(st.tuples(st.floats(0, 5000), st.floats(0, 300)), min_size=1, max_size=30))
def test_no_second_is_lost_however_long_the_run_is(spans: list[tuple[float, float]]):
    table = BusyTable(Path("nowhere"))
    first = min(start for start, _ in spans)
    table._add("a", "origin", 10**18 + round(first * SECOND), 10**18 + round(first * SECOND))
    for start, took in spans:
        one = span("a", "b", start, start + took)
        table._add("a", "b", int(str(one["start_ns"])), int(str(one["end_ns"])))
    seconds = sum(table._rows["a", "b"])
    assert abs(seconds - sum(took for _, took in spans)) < 1e-3
    assert all(len(row["shares"]) <= STRETCHES for row in table.section()["rows"])


def log(file: Path, level: str, message: str, second: int) -> None:
    record = {"time": f"2026-01-01T00:00:{second:02d}.000Z", "level": level, "message": message}
    with file.open("a") as lines:
        lines.write(json.dumps(record) + "\n")


def test_lines_that_differ_in_numbers_are_one_alert_and_the_last_counts(tmp_path: Path):
    (tmp_path / LOGS).mkdir()
    alerts = Alerts(tmp_path)
    assert alerts.update() == []
    worker, trainer = (tmp_path / LOGS / f"{name}.log" for name in ("rollout-0", "trainer"))
    worker.write_text("a library writes what it likes\n")
    log(worker, "info", "fine", 1)
    log(worker, "warning", "waited 3 s for a host", 2)
    log(trainer, "error", "cannot read", 3)
    alerts.update()
    log(worker, "warning", "waited 14 s for a host", 4)
    rows = alerts.update()
    said = [(row["process"], row["error"], row["text"], row["count"]) for row in rows]
    assert said == [
        ("rollout-0", False, "waited 14 s for a host", 2),
        ("trainer", True, "cannot read", 1),
    ]
    for number in range(20):
        log(trainer, "warning", f"another {'x' * number}", 5)
    assert len(alerts.update()) == SHOWN
