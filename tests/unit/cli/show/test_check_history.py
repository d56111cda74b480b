"""`earl check-history`: its exit codes and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.show.check_history import app
from earl.errors import ConfigError, HistoryIncomplete, HistoryViolated

HEADER = {
    "history": 1, "segment": 1, "revision": 4, "rules": {"staleness": 1},
    "state": {
        "version": 1, "published": 1, "fence": 0, "next_ticket": 1, "batch": None, "tickets": [], "closed": {}
    },
}  # fmt: skip
TRUE = [
    {"r": 5, "t": 1.0, "e": [["issued", 1, 1, 1, "train", 1], ["leased", 1, 1, 1, "rollout-0", 9]]},
    {"r": 6, "t": 2.0, "e": [["ready", 1, 1, 1], ["planned", 1], ["batch", 1, 1, "train"]]},
    {"r": 7, "t": 3.0, "e": [["trained", 1], ["commit", 1, 2]]},
]


def run_with(directory: Path, *lines: dict[str, Any]) -> Path:
    (directory / "history").mkdir()
    (directory / "run.json").write_text("{}")
    (directory / "run.toml").write_text("")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "history" / "000001.jsonl").write_text(text)
    return directory


def test_a_proven_history(tmp_path: Path):
    done = CliRunner().invoke(app, [str(run_with(tmp_path, HEADER, *TRUE))])
    assert done.exit_code == 0, done.output
    assert "proven: 7 events in 3 rounds of 1 segments, up to version 2; tickets: 1 trained" in done.stdout


@pytest.mark.parametrize(
    ("lines", "error", "code", "text"),
    [
        ([*TRUE, {"r": 8, "t": 4.0, "e": [["trained", 1]]}], HistoryViolated, 28, "is trained"),
        ([TRUE[0], TRUE[2]], HistoryIncomplete, 29, "round 7 follows on round 5"),
    ],
)
def test_what_is_broken_or_missing(
    tmp_path: Path, lines: list[dict[str, Any]], error: type, code: int, text: str
):
    done = CliRunner().invoke(app, [str(run_with(tmp_path, HEADER, *lines)), "--json"])
    assert isinstance(done.exception, error) and error.exit_code == code and text in str(done.exception)
    report = json.loads(done.stdout)
    [finding] = report["violations"] or report["gaps"]
    assert report["verdict"] in ("violated", "incomplete")
    assert finding["segment"] == "000001.jsonl" and text in finding["text"]


def test_a_run_without_a_history(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "run.toml").write_text("")
    done = CliRunner().invoke(app, [str(tmp_path)])
    assert isinstance(done.exception, ConfigError) and "has no history" in str(done.exception)
