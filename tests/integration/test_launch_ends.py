"""A launch whose run its time limit ends while a process is still starting, with real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from earl.config.run import RunConfig
from earl.errors import ProcessFailed
from earl.stack import launcher, plan
from earl.stack.launcher import Signals, launch
from earl.stack.plan import ProcessSpec
from earl.stack.record import read_record
from earl.stack.run_files import FAILURE
from earl.stack.rundir import run_path
from earl.stack.status import RunStatus
from tests.support.runs import tictactoe

READY = 'print(\'{"ready": "x", "address": "127.0.0.1:1"}\', flush=True)\n'
SERVE = READY + "import signal; signal.sigwait([signal.SIGTERM])\n"
LIMIT = RunStatus(phase="done", message="the time limit was reached after 2 of 40 steps", done=True)


def specs(gate: Path) -> list[ProcessSpec]:
    """A scheduler; a trainer that fails once the gate, a pipe, is opened; an engine that is never ready."""
    return [
        ProcessSpec(plan.SCHEDULER, ("-c", SERVE)),
        ProcessSpec(plan.TRAINER, ("-c", f"{READY}open({str(gate)!r}).read(); exit(1)"), ends_with_run=True),
        ProcessSpec("rollout-0", ("-c", "import signal; signal.sigwait([signal.SIGTERM])")),
    ]


class LimitedScheduler:
    """A scheduler's answers: the run has trained, and its time limit has ended it."""

    def __init__(self, config: RunConfig, gate: Path) -> None:
        self._metrics = run_path(config) / "metrics.jsonl"
        self._gate = gate

    async def status(self, deadline_s: float) -> RunStatus:
        if self._metrics.exists():
            # Asked again, while the launcher waits for the trainer's end: that fails now.
            os.close(os.open(self._gate, os.O_RDWR))
        self._metrics.write_text("{}\n")
        return LIMIT

    async def close(self) -> None:
        """Has nothing to close."""


async def test_a_run_that_its_time_limit_ended_early_is_kept_if_its_trainer_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config, gate = tictactoe(tmp_path / "runs", dashboard={"bind": ""}), tmp_path / "gate"
    os.mkfifo(gate)
    monkeypatch.setattr(plan, "plan", lambda config, run_json: specs(gate))
    monkeypatch.setattr(launcher, "OperatorClient", lambda address, access: LimitedScheduler(config, gate))
    reasons: list[str] = []
    with pytest.raises(ProcessFailed, match="trainer ended with exit code 1") as failed:
        await launch(
            config,
            resume=False,
            started_at=0.0,
            signals=Signals(),
            on_update=lambda processes, status: None,
            on_failed=reasons.append,
        )
    assert reasons == [f"failed: ProcessFailed: {failed.value.message}"]
    directory, record = run_path(config), read_record(run_path(config))
    assert record is not None and (record.outcome, record.status) == ("failed", LIMIT)
    assert (directory / "metrics.jsonl").is_file() and (directory / FAILURE).is_file()
