"""Checks that fail, die or hang cost their own row, and leave nothing behind."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from benchmarks.gpu.check import GpuCheck
from benchmarks.gpu.execution import CheckRunner, visible_devices

CHECKS = "tests.support.gpu_checks"
# Twice as long on a processor: enough for a process to begin.
HANG_S = 1.5


def check(name: str, deadline_s: float = 60.0, **fields) -> GpuCheck:
    return GpuCheck(name, f"{CHECKS}:{name}", f"it {name}", deadline_s, **fields)


def wait_until_ended(pid: int) -> None:
    """Waits until a process has ended; who inherits it may be slow to collect it."""
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


def test_whatever_becomes_of_a_check_the_others_run():
    ended: list[str] = []
    runner = CheckRunner("cpu", 1, "least", 120.0, lambda row: ended.append(row["name"]), side_by_side=2)
    table = [
        check("hangs", HANG_S),
        check("dies"),
        check("raises", required=False),
        check("fails", timed=True),
        check("skips"),
        check("passes", timed=True),
        GpuCheck("card", f"{CHECKS}:dies", "it needs a card", 60.0, needs_card="it copies"),
        GpuCheck("two", f"{CHECKS}:dies", "it needs two", 60.0, devices=2),
    ]
    rows = {row["name"]: row for row in runner.run(table)}
    assert list(rows) == [each.name for each in table] and sorted(ended) == sorted(rows)
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "hangs": "failed", "dies": "failed", "raises": "failed", "fails": "failed", "skips": "skipped",
        "passes": "ok", "card": "skipped", "two": "skipped",
    }  # fmt: skip
    assert rows["hangs"]["reason"] == "it had not ended after 3 s"
    wait_until_ended(int(rows["hangs"]["output"].split()[0]))
    assert rows["dies"]["reason"] == "its process ended with -9"
    assert rows["raises"]["reason"] == "ValueError: broken" and "Traceback" in rows["raises"]["output"]
    assert [row["required"] for row in rows.values()].count(False) == 1
    fails, passes = rows["fails"], rows["passes"]
    assert (fails["reason"], fails["figures"], fails["tolerance"]) == (
        "the value is 2",
        {"value": 2},
        {"bound": 1},
    )
    assert fails["output"] == "the last words\n"
    assert passes["figures"]["sizes"] == "least" and passes["tolerance"] == {"bound": 1}
    assert not any(Path(passes["figures"][name]).exists() for name in ("directory", "arenas"))
    assert rows["card"]["reason"] == "it needs a CUDA card: it copies"
    assert rows["two"]["reason"] == "it needs 2 devices: give --gpus 2"


def test_a_check_that_there_is_no_time_for_has_failed():
    (row,) = CheckRunner("cpu", 1, "least", 0.0).run([check("passes")])
    assert (row["outcome"], row["reason"]) == ("failed", "there was no time for it: 0 s were used up")


def test_a_check_sees_as_many_cards_as_it_may_use():
    assert visible_devices("cpu", 2, "0,1") == ""
    assert visible_devices("cuda", 1, "4,5") == "4"
    assert visible_devices("cuda", 2, "") == "0,1"
