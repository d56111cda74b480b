"""Checks how a benchmark ends when a process of its own fails or stays."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.children import last_line, outputs_of, process_error, within
from benchmarks.role import RoleProcess
from earl.errors import DeadlineExceeded, ProcessFailed
from tests.support.launched import earl_here

FAILS = "import sys; sys.exit('first\\nno such thing')"
STAYS = "import signal; signal.pause()"


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def test_a_process_that_fails_is_an_error_with_its_last_words():
    assert last_line(python("print('some'); print('last')"), "it", 60.0) == "last"
    with pytest.raises(ProcessFailed, match="the plan ended with 1: no such thing; ") as failed:
        last_line(python(FAILS), "the plan", 60.0)
    assert failed.value.__notes__ == ["first"]
    assert process_error("ranks", [0, 1]).remedy


async def test_what_takes_too_long_is_an_error_that_says_what():
    with pytest.raises(DeadlineExceeded, match="the answer took longer than 0 s; see whether"):
        async with within(0.0, "the answer"):
            await asyncio.Event().wait()
    with pytest.raises(DeadlineExceeded, match="the plan took longer"):
        last_line(python(STAYS), "the plan", 0.01)


def test_no_rank_stays_behind_one_that_does_not_end():
    ranks = [subprocess.Popen(python(STAYS), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    with pytest.raises(DeadlineExceeded, match="the ranks took longer"):
        outputs_of(ranks, "the ranks", 0.01)
    assert [rank.wait() for rank in ranks] == [-signal.SIGKILL, -signal.SIGKILL]
    failing = [subprocess.Popen(python(FAILS), stdout=subprocess.PIPE, text=True)]
    with pytest.raises(ProcessFailed, match=r"the ranks ended with \[1\]"):
        outputs_of(failing, "the ranks", 60.0)


async def test_a_role_that_dies_is_an_error_of_the_catalogue():
    with pytest.raises(ProcessFailed, match="a process of the benchmark ended with 1"):
        await RoleProcess.start("benchmarks.no_such_module")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("dispatch", "--hosts", "6"), 2, "--hosts 6 is no power of two; give 2, 4, 8, 16, 32 or 64"),
        (("dispatch", "--sizes", "0.01"), 2, "give 0.0625 or more"),
        (("reference", "--sizes", "1x512"), 2, "--sizes 1x512 is no batch; give 2 sequences or more"),
        (("up", "no-such-run.toml"), 13, "earl up ended with 2: earl: error: "),
    ],
)
def test_a_benchmark_ends_with_one_line_and_a_documented_code(
    arguments: tuple[str, ...], code: int, words: str, tmp_path: Path
):
    done = earl_here(tmp_path, "bench", *arguments, "--results", str(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("earl: error: ") and done.stderr.count("\n") == 1
    assert words in done.stderr and list(tmp_path.iterdir()) == []
