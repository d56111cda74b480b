"""Checks what the report reads: records as written, without what a crash or a roll-back made void."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.cli.report.curves import smooth
from earl.cli.report.data import flat, judged, kept_samples, read_run, surviving
from earl.cli.report.sections.lengths import columns
from earl.cli.report.sections.series import MetricTable
from earl.errors import ConfigError
from earl.obs.metrics import LineFile, read_lines
from tests.support.recorded import recorded


def test_a_running_mean_starts_with_what_there_is():
    assert smooth([(0, 2.0), (1, 4.0), (2, 6.0)], 2) == [(0, 2.0), (1, 3.0), (2, 5.0)]


def test_a_line_that_a_crash_truncated_is_left_out(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert list(read_lines(tmp_path / "metrics.jsonl")) == [{"step": 1}, {"step": 2}]
    # Who goes on with the file ends that line; what follows counts.
    resumed = LineFile(tmp_path / "metrics.jsonl")
    resumed.write({"step": 3})
    resumed.close()
    assert list(read_lines(tmp_path / "metrics.jsonl")) == [{"step": 1}, {"step": 2}, {"step": 3}]
    assert list(read_lines(tmp_path / "none.jsonl")) == []
    assert flat({"a": {"b": {"c": 1}}, "d": 2}) == {"a.b.c": 1, "d": 2}


def test_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="is not a run directory"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["result.json", "failure.json"])
@pytest.mark.parametrize("content", [b'{"error": "Eng', b"[]", b"\xff"])
def test_a_broken_file_of_a_run_is_named(
    name: str, content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    recorded(tmp_path)
    read_run(tmp_path)
    assert not caplog.messages
    (tmp_path / name).write_bytes(content)
    run = read_run(tmp_path)
    assert caplog.messages == [f"{tmp_path / name} is no JSON object: it is left out"]
    assert not (run.result if name == "result.json" else run.failure)


def test_a_table_of_many_steps_is_thinned_to_rows_that_keep_means_and_places(tmp_path: Path):
    file = LineFile(tmp_path / "metrics.jsonl")
    file.write(*({"step": step, "version": step, "loss": float(step), **({"x": 1.0} if step > 5 else {})}
                 for step in range(1, 11)))  # fmt: skip
    file.close()
    table = MetricTable(tmp_path / "metrics.jsonl")
    table.update()
    found = table.columns(5)
    assert found["step"] == [2.0, 4.0, 6.0, 8.0, 10.0] and found["loss"] == [1.5, 3.5, 5.5, 7.5, 9.5]
    assert found["x"][2:] == [1.0, 1.0, 1.0] and found["x"][0] != found["x"][0]
    assert table.columns(10)["loss"] == [float(step) for step in range(1, 11)]


# --- after a roll-back ----------------------------------------------------------------------


def test_steps_that_were_rolled_back_are_gone_also_those_that_were_not_done_again():
    before = [{"phase": "train", "step": step, "version": step + 1} for step in (1, 2, 3, 4)]
    again = [{"phase": "train", "step": 3, "version": 4, "new": True}]
    assert surviving([*before, *again]) == [*before[:2], *again]
    assert surviving([{"step": 1}, {"step": 2}]) == [{"step": 1}, {"step": 2}]


def test_the_last_evaluation_of_a_name_counts_unless_its_version_is_gone():
    lines = [
        {"name": "start", "version": 1}, {"name": "step-2", "version": 3, "mean_reward": 0.1},
        {"name": "step-2", "version": 3, "mean_reward": 0.2}, {"name": "step-4", "version": 5},
    ]  # fmt: skip
    assert judged(lines, 4) == [lines[0], lines[2]]
    assert judged(lines, None) == [lines[0], lines[2], lines[3]]


def test_conversations_that_were_rolled_back_are_gone():
    def line(step: int, ticket: int, version: int, evaluation: str = "") -> dict[str, object]:
        return {"step": step, "ticket": ticket, "version": [1, version], "evaluation": evaluation, "index": 0}

    lines = [line(0, 1, 1, "start"), line(1, 2, 1), line(2, 3, 2), line(2, 4, 3, "step-2"), line(2, 5, 9)]
    again = [line(2, 6, 2, "step-2"), line(1, 7, 1)]
    kept = kept_samples([*lines, *again], 4)
    assert [one["ticket"] for one in kept] == [1, 2, 7, 6]


def step(number: int, first: int, counts: list[int], mean: float = 20.0) -> dict[str, object]:
    return {
        "step": number, "length_histogram.first": first, "length_histogram.counts": counts,
        "length_histogram.per_octave": 4, "length_mean": mean,
    }  # fmt: skip


def test_many_steps_share_columns_and_lose_nothing():
    found, per_octave = columns([step(number, 16, [1, 0, 3]) for number in range(1, 1001)])
    assert per_octave == 4 and len(found) <= 96
    assert sum(column.total for column in found) == 4000 and found[-1].last == 1000
    assert all(set(column.counts) == {16, 18} for column in found)
    assert columns([{"step": 1}]) == ([], 0)
