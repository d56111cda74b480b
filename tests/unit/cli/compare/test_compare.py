"""`earl compare`: figures that agree with what runs recorded, charts on the same axes, clear mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.compare.command import app
from earl.errors import ConfigError
from earl.obs.metrics import LineFile, read_lines
from tests.support.recorded import recorded
from tests.support.report_file import report_data

SWITCH = {
    "end_ns": 105 * 10**9, "step": 11, "stage": "rollout", "epoch": 1, "reason": "a < b & c",
    "before": {"dp": 2, "tp": 1, "cp": 1, "pp": 1}, "after": {"dp": 1, "tp": 2, "cp": 1, "pp": 1},
}  # fmt: skip


def told(*arguments: object) -> str:
    """Returns what it prints on standard output; raises what it raises."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """One that stays as it is cut, and a shorter one that was switched in step 11, and once in vain."""
    fixed, moved = tmp_path / "fixed", tmp_path / "moved"
    for directory in (fixed, moved):
        directory.mkdir()
    recorded(fixed, steps=24)
    recorded(moved, steps=20, seed=1, layout=(1, 2, 1, 1))
    lines = list(read_lines(moved / "metrics.jsonl"))
    for line in lines[:10]:
        line["parallelism"]["rollout"] = SWITCH["before"]
    write(moved / "metrics.jsonl", lines)
    failed = {**SWITCH, "epoch": 2, "rolled_back": True, "message": "no memory", "stall_s": 1.5}
    write(moved / "switches.jsonl", [{**SWITCH, "rolled_back": False, "stall_s": 0.5}, failed])
    (moved / "failure.json").write_text('{"error": "EngineLost", "message": "gone", "exit_code": 14}')
    return fixed, moved


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.unlink(missing_ok=True)
    file = LineFile(path)
    file.write(*lines)
    file.close()


def row(text: str, title: str) -> list[str]:
    """Cells of the row with this title."""
    [line] = [line for line in text.splitlines() if line.startswith(f"{title}  ")]
    return re.split(r" {2,}", line.removeprefix(title).strip())


# --- figures --------------------------------------------------------------------------------


def test_each_environment_of_a_mixture_is_compared(runs: tuple[Path, Path]) -> None:
    fixed, moved = runs
    lines = list(read_lines(moved / "evaluations.jsonl"))
    figures = {"mean_reward": 0.5, "gain": 0.25, "gain_low": 0.2, "gain_high": 0.3}
    lines[-1] |= {f"environments.as x.{name}": value for name, value in figures.items()}
    write(moved / "evaluations.jsonl", lines)
    steps = list(read_lines(moved / "metrics.jsonl"))
    for line in steps[-4:]:
        line |= {"environments.as x.staleness_mean": 0.75, "environments.as x.length_mean": 120.0}
        line["environments.as x.truncated_episodes"] = 2.0
    write(moved / "metrics.jsonl", steps)
    text = told(fixed, moved)
    assert row(text, "as x, last steps: mean staleness")[:2] == ["–", "0.75"]
    assert row(text, "as x, last steps: mean context")[:2] == ["–", "120"]
    assert row(text, "as x: truncated, yet trained on")[:2] == ["–", "8"]
    assert row(text, "mean staleness, last steps")[:2] == ["0.5", "0.5"]
    assert row(text, "as x, last evaluation: gain")[:2] == ["–", "+0.25 [+0.2, +0.3]"]
    assert row(text, "as x, last evaluation: reward")[:2] == ["–", "0.5"]
    compared = json.loads(told(fixed, moved, "--json"))["runs"]
    assert [run["figures"]["last_evaluation_environments.as x.mean_reward"] for run in compared] == [
        None,
        0.5,
    ]


def test_the_figures_are_those_of_the_runs(runs: tuple[Path, Path]) -> None:
    found = json.loads(told(*runs, "--json"))["runs"]
    for directory, one in zip(runs, found, strict=True):
        lines = list(read_lines(directory / "metrics.jsonl"))
        figures = one["figures"]
        assert one["name"] == directory.name and figures["steps"] == len(lines)
        # The last evaluation ends 5 s after the last step.
        assert figures["elapsed_s"] == 10.0 * len(lines) + 5 and figures["step_s"] == 10.0
        tokens = sum(line["tokens"] for line in lines)
        assert figures["tokens_per_s"] == pytest.approx(tokens / figures["elapsed_s"])
        assert figures["generated_tokens_per_s"] == pytest.approx(figures["tokens_per_s"] / 2)
        assert figures["reward_first"] == pytest.approx(sum(line["reward_mean"] for line in lines[:8]) / 8)
        assert figures["reward_last"] == figures["reward_best"] > figures["reward_first"]
        assert figures["max_tokens_first"] == max(line["length_max"] for line in lines[:8])
        assert figures["max_tokens"] == max(line["length_max"] for line in lines)
        assert figures["mean_tokens_last"] == pytest.approx(
            sum(line["length_mean"] for line in lines[-8:]) / 8
        )
        [start, final] = read_lines(directory / "evaluations.jsonl")
        assert figures["first_evaluation_mean_reward"] == start["mean_reward"]
        assert figures["gain_low"] == final["gain_low"] and figures["gain_high"] == final["gain_high"]
        assert [one["name"] for one in one["evaluations"]] == ["start", "final"]
        # 64 a step, and what was lost with an engine; 1, 2 and 3 were truncated in the last steps.
        assert figures["episodes"] == 64 * len(lines) + 1
        assert figures["episodes_truncated"] == figures["truncated_trained"] == 6
        assert figures["episodes_infra_error"] == figures["episodes_out_of_memory"] == 1
        assert figures["episodes_timeout"] == 0 and figures["memory_trainer"] == 0.4
    fixed, moved = found
    assert fixed["ratios"] == {} and moved["ratios"]["steps"] == pytest.approx(20 / 24)
    assert moved["ratios"]["episodes_timeout"] is None and moved["ratios"]["outcome"] is None
    assert (fixed["figures"]["outcome"], moved["figures"]["outcome"]) == ("complete", "failed: EngineLost")
    assert fixed["failure"] is None and moved["failure"]["exit_code"] == 14


def test_switches_are_counted_with_their_stalls(runs: tuple[Path, Path]) -> None:
    fixed, moved = json.loads(told(*runs, "--json"))["runs"]
    names = ("switches", "switches_rolled_back", "stall_s", "stall_s_most", "parallelism_rollout")
    assert [fixed["figures"][name] for name in names] == [0, 0, 0, 0.0, "dp2"]
    assert [moved["figures"][name] for name in names] == [1, 1, 2.0, 1.5, "dp2 → tp2"]
    assert [one["epoch"] for one in moved["switches"]] == [1, 2] and fixed["switches"] == []


def test_the_table_has_a_column_a_run_and_ratios_to_the_first(runs: tuple[Path, Path]) -> None:
    text = told(*runs)
    assert text.splitlines()[0].split() == ["fixed", "moved", "÷", "fixed"]
    assert row(text, "training steps") == ["24", "20", "0.83"]
    assert row(text, "wall time") == ["4 min 05 s", "3 min 25 s", "0.84"]
    assert row(text, "ended TIMEOUT") == ["0", "0"]
    assert row(text, "parallelism of rollout") == ["dp2", "dp2 → tp2"]
    value, other, times = row(text, "last evaluation: win rate")
    assert re.fullmatch(r"[\d.]+% \[[\d.]+%, [\d.]+%\]", value) and other != value and float(times) > 0
    # Nothing of a reference stage was recorded by either.
    assert "reference" not in text


def test_what_a_run_did_not_record_is_no_zero(runs: tuple[Path, Path]) -> None:
    fixed, moved = runs
    for name in ("endings.jsonl", "evaluations.jsonl"):
        (moved / name).unlink()
    text = told(fixed, moved)
    assert row(text, "ended TRUNCATED") == ["6", "–"]
    assert row(text, "gain, last over first evaluation")[1:] == ["–"]
    figures = json.loads(told(moved, fixed, "--json"))["runs"][0]["figures"]
    assert figures["episodes"] is None and figures["gain"] is None and figures["best_evaluation"] is None


def test_steps_that_were_rolled_back_do_not_count_but_their_episodes_do(runs: tuple[Path, Path]) -> None:
    fixed, moved = runs
    lines = list(read_lines(fixed / "metrics.jsonl"))
    # The last four once more, as after a trainer that was restored from step 20.
    write(fixed / "metrics.jsonl", lines + [{**line, "time_s": line["time_s"] + 40} for line in lines[20:]])
    figures = json.loads(told(fixed, moved, "--json"))["runs"][0]["figures"]
    assert (figures["steps"], figures["elapsed_s"]) == (24, 280.0)
    assert figures["episodes"] == 64 * 24 + 1


def test_three_runs_and_many_layouts_of_one(runs: tuple[Path, Path], tmp_path: Path) -> None:
    fixed, moved = runs
    third = tmp_path / "third"
    third.mkdir()
    recorded(third, steps=10)
    lines = list(read_lines(third / "metrics.jsonl"))
    for at, line in enumerate(lines):
        line["parallelism"]["rollout"] = SWITCH["after" if at % 2 else "before"]
    write(third / "metrics.jsonl", lines)
    text = told(fixed, moved, third)
    assert row(text, "training steps") == ["24", "20", "0.83", "10", "0.42"]
    assert row(text, "parallelism of rollout")[2] == "dp2 → … → tp2 (9 changes)"


def test_a_reward_is_a_score_where_nothing_is_won(runs: tuple[Path, Path], tmp_path: Path) -> None:
    def titles() -> set[str]:
        page = tmp_path / "page.html"
        shown = told(*runs, "--html", page)
        data = report_data(page)
        charts = [chart["title"] for key in ("together", "rows") for chart in data[key]]
        return {*re.split(r" {2,}|\n", shown), *charts, *(cells[0] for cells in data["figures"])}

    rewards = {"mean reward, first steps", "best evaluation: reward", "Reward", "Reward over time"}
    scores = {title.replace("reward", "score").replace("Reward", "Score") for title in rewards}
    assert rewards <= titles() and not scores & titles()
    for directory in runs:
        lines = list(read_lines(directory / "evaluations.jsonl"))
        write(directory / "evaluations.jsonl", [{**line, "metrics": {}} for line in lines])
    assert scores <= titles() and not rewards & titles()
    assert "reward_first" in json.loads(told(*runs, "--json"))["runs"][0]["figures"]


# --- page -----------------------------------------------------------------------------------


def test_a_page_has_both_runs_charts_on_the_same_axes(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    told(*runs, "--html", page)
    text = page.read_text()
    assert (
        text.count("<script") == 3
        and "default-src 'none'" in text
        and "<title>fixed and moved · EARL" in text
    )
    data = report_data(page)
    assert data["heads"][:3] == ["", "fixed", "moved"]
    assert ["training steps", "24", "20", "0.83"] in data["figures"]
    rows = {row["title"]: row for row in data["rows"]}
    side = (
        "Context and parallelism of rollout", "Reward", "Throughput", "Memory",
        "Truncated and failed episodes",
    )  # fmt: skip
    assert set(side) <= rows.keys()
    for title in side:
        row = rows[title]
        assert [cell["name"] for cell in row["cells"]] == ["fixed", "moved"]
        points = [point for cell in row["cells"] for line in cell["series"] for point in line["points"]]
        assert row["reach"][0] <= min(x for x, _ in points) <= max(x for x, _ in points) <= row["reach"][1]
        assert row["within"][0] <= min(y for _, y in points) <= max(y for _, y in points) <= row["within"][1]
    # The shorter run's lines end before the axis does. Time begins with the run.
    first, second = rows["Throughput"]["cells"]
    assert right_end(second) < right_end(first) == rows["Throughput"]["reach"][1]
    assert rows["Throughput"]["reach"][0] == 0
    # A band for each stretch of one layout, colours in one order for both; a mark for each switch.
    row = rows["Context and parallelism of rollout"]
    first, second = row["cells"]
    assert row["log"] == 2 and row["layouts"] == ["dp2", "tp2"]
    assert [band["layout"] for band in first["bands"]] == ["dp2"]
    assert [band["layout"] for band in second["bands"]] == ["dp2", "tp2"]
    assert first["marks"] == [] and len(second["marks"]) == 2
    assert second["marks"][0]["lines"] == ["step 11: a < b & c; stalled 0.50 s"]
    judged = rows["Reward"]["cells"][0]["series"][2]
    assert judged["dots"] and all(low < high for _, low, high in judged["bounds"])
    assert len(judged["bounds"]) == len(judged["points"]) == 2
    together = {chart["title"]: chart for chart in data["together"]}
    assert {"Reward over time", "Tokens/s over time"} <= together.keys()
    assert [line["name"] for line in together["Reward over time"]["series"]] == ["fixed", "moved"]
    assert together["Reward over time"]["reach"][0] == 0


def right_end(cell: dict[str, Any]) -> float:
    return max(line["points"][-1][0] for line in cell["series"])


def test_what_no_run_recorded_is_not_drawn(runs: tuple[Path, Path], tmp_path: Path) -> None:
    for directory in runs:
        (directory / "endings.jsonl").unlink()
    told(*runs, "--html", tmp_path / "page.html")
    assert "Truncated and failed episodes" not in [
        row["title"] for row in report_data(tmp_path / "page.html")["rows"]
    ]


# --- mistakes -------------------------------------------------------------------------------


def test_mistakes_are_named_with_their_remedies(runs: tuple[Path, Path], tmp_path: Path) -> None:
    fixed, moved = runs
    with pytest.raises(ConfigError, match="is only one run; name two or more"):
        told(fixed)
    with pytest.raises(ConfigError, match="fixed is named twice"):
        told(fixed, moved, fixed)
    with pytest.raises(ConfigError, match=r"there is no run .*none'"):
        told(fixed, tmp_path / "none")
    with pytest.raises(ConfigError, match=r"page\.html cannot be written: No such file or directory"):
        told(fixed, moved, "--html", tmp_path / "none" / "page.html")
    (moved / "metrics.jsonl").write_text('{"step": 1, "phase": "warmup", "version": 2}\n')
    with pytest.raises(ConfigError, match="moved has no training step yet") as caught:
        told(fixed, moved)
    assert caught.value.exit_code == 2


def test_runs_of_one_name_are_told_apart_by_their_paths(runs: tuple[Path, Path], tmp_path: Path) -> None:
    fixed, moved = runs
    other = tmp_path / "elsewhere"
    other.mkdir()
    moved.rename(other / "fixed")
    found = json.loads(told(fixed, other / "fixed", "--json"))["runs"]
    assert [one["name"] for one in found] == [str(fixed), str(other / "fixed")]
