"""`earl bench newcomer` with another checkout: a real clone and a real make, whose targets are short."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.newcomer import GOALS, MARK, environment, measured, megabytes, missed, risen, setup_target
from earl.errors import ProcessFailed

# One high step, as chance brings it, is no rise; eight in a row that are above the start evaluation are.
RATES = (0.45, 0.71, 0.5, *(0.62,) * 8)
START = {"name": "start", "win_rate": 0.56, "win_rate_low": 0.52, "win_rate_high": 0.605}


def step(number: int, phase: str, win_rate: float | None) -> dict[str, object]:
    return {"step": number, "phase": phase, "win_rate": win_rate}


LINES = [step(0, "warmup", 0.9), *(step(number, "train", rate) for number, rate in enumerate(RATES, 1))]


def checkout(directory: Path, *, setup: str, demo: str) -> Path:
    """A repository whose make does this for setup and demo."""
    made = directory / "checkout"
    made.mkdir()
    (made / "Makefile").write_text(f"setup:\n\t@{setup}\ndemo: ready\n\t@{demo}\n")
    (made / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    (made / "evaluations.jsonl").write_text(f"{json.dumps(START)}\n")
    (made / "uncommitted.txt").write_text("no part of HEAD")
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    for arguments in (
        ("init", "-q"),
        ("add", "Makefile", "metrics.jsonl", "evaluations.jsonl"),
        (*who, "commit", "-qm", "it"),
    ):
        subprocess.run(["git", "-C", str(made), *arguments], check=True)
    return made


def within(directory: Path) -> list[int]:
    """Processes that work in the directory or below it, even if it is gone."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(process / "cwd").startswith(f"{directory}/"):
                found.append(int(process.name))
    return found


def test_every_phase_is_timed_in_a_clone_and_nothing_is_left(tmp_path: Path, elsewhere: Path) -> None:
    made = checkout(
        tmp_path,
        setup="test ! -e uncommitted.txt && touch ready",
        # A process that outlives its command, in a session of its own.
        demo="mkdir -p runs/demo && (setsid sleep 600 &) && cp *.jsonl runs/demo/",
    )
    found = measured(made)
    phases = [found[f"{name}_s"] for name in ("clone", "setup", "demo")]
    assert all(seconds >= 0 for seconds in phases)
    assert found["total_s"] == pytest.approx(sum(phases), abs=0.2)
    # It rose while the demo went on.
    assert phases[0] + phases[1] - 0.2 <= found["risen_s"]
    assert found["rise"] == {
        "step": 9, "win_rate_mean": 0.6163, "start_win_rate": 0.56, "start_win_rate_high": 0.605,
    }  # fmt: skip
    assert found["left"] == 1
    assert within(tmp_path) == [] and list(elsewhere.iterdir()) == []


def test_a_phase_that_fails_says_so_and_leaves_nothing(tmp_path: Path, elsewhere: Path) -> None:
    made = checkout(tmp_path, setup="(setsid sleep 600 &); echo no such wheel; exit 3", demo="true")
    with pytest.raises(ProcessFailed, match=r"setup: `make setup` ended with 2: make: .*Error 3") as failed:
        measured(made)
    assert "no such wheel" in "".join(failed.value.__notes__)
    assert within(tmp_path) == [] and list(elsewhere.iterdir()) == []
    with pytest.raises(ProcessFailed, match="clone: `git clone` ended with 128"):
        measured(tmp_path / "nothing")


def test_a_curve_that_does_not_rise_has_no_time(tmp_path: Path, elsewhere: Path) -> None:
    found = measured(checkout(tmp_path, setup="touch ready", demo="true"))
    assert found["risen_s"] is None and found["rise"] is None and found["left"] == 0


def test_the_curve_has_risen_once_the_mean_of_eight_steps_is_above_the_start_evaluation() -> None:
    assert risen(LINES, [START]) == {
        "step": 9, "win_rate_mean": 0.6163, "start_win_rate": 0.56, "start_win_rate_high": 0.605,
    }  # fmt: skip
    assert risen(LINES[:9], [START]) is None, "the mean of the first eight is below"
    # Neither without an evaluation before training, nor by another one.
    assert risen(LINES, []) is None and risen(LINES, [{**START, "name": "final"}]) is None
    assert risen([], [START]) is None
    # Above the interval, and not just at its end; steps without a figure are left out.
    level = [step(number, "train", 0.605) for number in range(20)]
    assert risen(level, [START]) is None
    assert risen([step(0, "train", None), *(step(number, "train", 0.7) for number in range(8))], [START])


def test_goals_that_are_missed_are_named() -> None:
    assert missed(GOALS) == []
    late = {**GOALS, "win_rate": 0.949, "setup_s": 40.1, "risen_s": None}
    assert missed(late) == ["setup_s", "risen_s", "win_rate"]
    assert missed({}) == list(GOALS)


def test_what_the_demo_needs_is_installed_alone_where_make_knows_how(tmp_path: Path) -> None:
    made = checkout(tmp_path, setup="false", demo="true")
    assert setup_target(made) == "setup"
    with (made / "Makefile").open("a") as file:
        file.write("setup-demo:\n\t@true\n")
    assert setup_target(made) == "setup-demo"
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "a").write_bytes(b"x" * 5_000_000)
    os.link(tmp_path / "two" / "a", tmp_path / "two" / "b")
    assert megabytes(tmp_path / "two") == 5


def test_a_newcomers_shell_knows_nothing_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EARL_TOKEN_FILE", "PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL"):
        monkeypatch.setenv(name, "1")
    found = environment("m")
    assert found[MARK] == "m" and found["HOME"] == os.environ["HOME"]
    assert not {"EARL_TOKEN_FILE", "PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL"} & found.keys()
