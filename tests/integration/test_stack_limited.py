"""A run that its time limit ends: the same words for it wherever a person looks, and how to resume it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.ended import assert_told_everywhere, in_scheduler_log
from tests.support.launched import SMALL, TICTACTOE, earl_here

STEPS = 9999
KEYS = SMALL | {"evaluation.episodes": "0", "scheduler.steps": str(STEPS), "scheduler.profile_s": "0"}


def trained(here: Path, limit_s: str, **overrides: str) -> str:
    """The reason that `earl train` gives for the end of a run with this limit, in runs/limited.

    The limit counts from the first version that can be sampled from.
    """
    keys = (
        KEYS | {"scheduler.train_limit_s": limit_s} | {k.replace("__", "."): v for k, v in overrides.items()}
    )
    typed = [text for key, value in keys.items() for text in (f"--{key}", value)]
    done = earl_here(here, "train", str(TICTACTOE), "--name", "limited", *typed, "--plain", "--json")
    assert done.returncode == 0, done.stderr
    closing = done.stderr.splitlines()[-1]
    reached = f"the time limit of {limit_s} s (scheduler.train_limit_s) was reached after "
    assert re.fullmatch(rf"earl: complete: {re.escape(reached)}\d+ of {STEPS} steps", closing), done.stderr
    return closing.removeprefix("earl: ")


def test_a_time_limit_is_told_in_the_same_words_everywhere(tmp_path: Path):
    here, directory = tmp_path, tmp_path / "runs" / "limited"
    reason = trained(here, "0.3")
    assert_told_everywhere(directory, reason, 20)
    assert in_scheduler_log(directory, reason)

    resumed = earl_here(here, "resume", "limited", "--foreground")
    remedy = "earl resume limited --scheduler.train_limit_s 0.6"
    assert resumed.returncode == 2
    assert resumed.stderr == (
        f"earl: error: limited is {reason}; to continue it raise scheduler.train_limit_s: {remedy}\n"
    )


def test_a_time_limit_that_ends_a_run_before_its_engines_are_ready_is_told_too(tmp_path: Path):
    reason = trained(tmp_path, "0.01", warmup__batches="0")
    status = earl_here(tmp_path, "status", "limited", "--json")
    assert json.loads(status.stdout)["why_ended"] == reason
