"""Threads that the run file leaves open: decided by the launch, kept by a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.run import RunConfig
from earl.stack.thread_counts import with_threads
from tests.support.runs import tictactoe


def counts(config: RunConfig, gpus: int, cores: float, run_json: Path | None = None) -> tuple[int, int, int]:
    settled = with_threads(config, gpus, cores, run_json)
    return settled.rollout.threads, settled.trainer.threads, settled.reference.threads


@pytest.mark.parametrize(
    ("sections", "gpus", "cores", "threads"),
    [
        ({}, 0, 2.0, (1, 1, 1)),
        # A trainer's rank and an engine share what there is.
        ({}, 0, 16.0, (8, 8, 8)),
        ({}, 0, 1.5, (1, 1, 1)),
        ({"rollout": {"engines": 4}, "trainer": {"ranks": 2}}, 0, 13.0, (2, 2, 2)),
        # Those on GPUs need one each, and leave the cores to the others.
        ({}, 2, 16.0, (1, 1, 1)),
        ({"rollout": {"device": "cpu"}}, 1, 16.0, (16, 1, 1)),
        ({"trainer": {"kl_coefficient": 0.1}}, 0, 12.0, (4, 4, 4)),
        # A number in the run file stays.
        ({"trainer": {"threads": 3}}, 0, 16.0, (8, 3, 8)),
    ],
)
def test_ranks_share_the_cores(
    tmp_path: Path, sections: dict[str, Any], gpus: int, cores: float, threads: tuple[int, int, int]
):
    assert counts(tictactoe(tmp_path, **sections), gpus, cores) == threads


def test_a_resumed_run_keeps_its_threads(tmp_path: Path):
    config, run_json = tictactoe(tmp_path), tmp_path / "run.json"
    assert counts(config, 0, 8.0, run_json) == (4, 4, 4)  # a resume of what was never launched
    run_json.write_text(with_threads(config, 0, 8.0).model_dump_json(), encoding="utf-8")
    assert counts(config, 0, 32.0, run_json) == (4, 4, 4)
    assert counts(tictactoe(tmp_path, rollout={"threads": 2}), 0, 32.0, run_json) == (2, 4, 4)
    # One that was launched by a version without this key's 0, or by hand, had one thread.
    run_json.write_text(config.model_dump_json(), encoding="utf-8")
    assert counts(config, 0, 32.0, run_json) == (1, 1, 1)
