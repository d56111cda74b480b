"""Checks what commands that read whole runs or traces tell while they do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.compare import command as compare
from earl.cli.lib import run_directory
from earl.cli.report import command as report
from earl.cli.report import data
from earl.cli.show import sink, trace, trace_events
from earl.errors import ConfigError
from earl.stack import sink as following
from services.scheduler.replay import command as replay
from tests.support.notices import heard_notices
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples" / "selector"


def test_compare_tells_how_many_runs_it_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = heard_notices(monkeypatch, compare)
    lines: list[str] = []

    def read_run(directory: Path) -> SimpleNamespace:
        heard.next_line()  # it may have been computed before
        lines.append(heard.next_line())
        return SimpleNamespace(directory=directory)

    monkeypatch.setattr(compare, "read_run", read_run)
    monkeypatch.setattr(compare, "steps", lambda _: 1)
    names, runs = compare.read_all([tmp_path / "first", tmp_path / "second"])
    assert names == ["first", "second"] and len(runs) == 2
    assert lines == ["reading runs: 0 of 2 in 0 s", "reading runs: 1 of 2 in 0 s, about 0 s left"]


def test_report_tells_which_report_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = heard_notices(monkeypatch, report)
    lines: list[str] = []

    def write_report(directory: Path) -> Path:
        lines.append(heard.next_line())
        return directory / "report.html"

    monkeypatch.setattr(report, "pick_run", lambda *_, **__: tmp_path)
    monkeypatch.setattr(report, "write_report", write_report)
    done = CliRunner().invoke(report.app, [], catch_exceptions=False)
    assert done.stdout == f"{tmp_path / 'report.html'}\n"
    assert lines == [f"writing the report of {tmp_path}: 0 s"]


def test_trace_tells_what_it_reads_and_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = heard_notices(monkeypatch, trace)
    out = tmp_path / "trace.json"
    lines: list[str] = []

    def trace_of(_: Path) -> dict[str, Any]:
        lines.append(heard.next_line())
        return {"traceEvents": []}

    def write_bytes(_: Path, text: bytes) -> int:
        lines.append(heard.next_line())
        return out.write_text(text.decode(), encoding="utf-8")

    monkeypatch.setattr(trace, "pick_run", lambda *_, **__: tmp_path)
    monkeypatch.setattr(data, "read_run", lambda directory: directory)
    monkeypatch.setattr(trace_events, "trace_of", trace_of)
    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    CliRunner().invoke(trace.app, ["--out", str(out)], catch_exceptions=False)
    assert lines == [f"reading the timeline of {tmp_path}: 0 s", f"writing {out}: 0 s"]


@pytest.mark.parametrize("follow", [False, True])
def test_sink_tells_whose_figures_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    heard = heard_notices(monkeypatch, sink)
    lines: list[str] = []

    async def follow_run(*_: Any) -> int:
        if not follow:
            lines.append(heard.next_line())
        return 3

    monkeypatch.setattr(sink, "pick_run", lambda *_, **__: tmp_path)
    monkeypatch.setattr(run_directory, "config_of", lambda _: None)
    monkeypatch.setattr(following, "follow", follow_run)
    arguments = ["--to", "tensorboard", *(["--follow"] if follow else [])]
    done = CliRunner().invoke(sink.app, arguments, catch_exceptions=False)
    assert done.stdout == f"3 points for tensorboard in {tmp_path}\n"
    told = f"giving the figures of {tmp_path} to tensorboard"
    assert lines == ([] if follow else [f"{told}: 0 s"])
    assert done.stderr == (f"{told} until Ctrl-C\n" if follow else "")


def test_replay_tells_how_many_steps_it_has_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = heard_notices(monkeypatch, replay)
    lines: list[str] = []

    def oracle(*_: Any) -> tuple[list[Any], float]:
        lines.append(heard.next_line())
        return [], 1.0

    def run(*_: Any) -> Iterator[Any]:
        lines.append(heard.next_line())
        raise ConfigError("enough", "it is a test")
        yield

    monkeypatch.setattr(replay, "oracle", oracle)
    monkeypatch.setattr(replay, "run", run)
    files = ["--profile", str(EXAMPLES / "profile.csv"), "--trace", str(EXAMPLES / "trace.csv")]
    done = CliRunner().invoke(replay.app, files)
    assert isinstance(done.exception, ConfigError) and done.exception.message == "enough"
    steps = len((EXAMPLES / "trace.csv").read_text(encoding="utf-8").splitlines()) - 1
    assert lines == [
        f"computing what the oracle does in {steps:,} steps: 0 s",
        f"replaying steps: 0 of {steps:,} in 0 s",
    ]
