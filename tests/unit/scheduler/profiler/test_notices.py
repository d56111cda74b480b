"""`earl profile` tells how many of the points that it was to measure are known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.lib.notices import Count
from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from services.scheduler.profile.plan import LEAST, ProfilePoint
from services.scheduler.profile.stages import plan_of
from services.scheduler.profiler import command
from services.scheduler.profiler.facts import cache_of
from tests.support.notices import heard_notices

SPEC = ModelSpec("llama", 96, 2, 12, 6, 8, 192, 50, max_positions=4096)


def configuration() -> RunConfig:
    return RunConfig.model_validate(
        {"name": "t", "environment": {"name": "e"}, "rollout": {"device": "cpu"}, "model": {"path": "m"}}
    )


def test_the_command_tells_how_many_points_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = heard_notices(monkeypatch, command)
    lines: list[str] = []

    async def measure(*_: Any, points: Count, **__: Any) -> None:
        points.total = 12
        lines.append(heard.next_line())
        points.done = 3
        heard.next_line()  # it may have been written before
        lines.append(heard.next_line())

    monkeypatch.setattr(command, "measure", measure)
    file = tmp_path / "run.toml"
    file.write_text('name = "t"\n[environment]\nname = "e"\n')
    done = CliRunner().invoke(command.app, [str(file), "--minutes", "2"], catch_exceptions=False)
    assert done.exit_code == 0
    assert lines == [
        "measuring points: 0 of 12 in 0 s, at most 120 s left",
        "measuring points: 3 of 12 in 0 s, about 0 s left",
    ]


async def test_the_points_that_are_not_known_yet_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration()
    cache = cache_of("rollout", config, SPEC, tmp_path)
    with cache.held(fresh=False):
        for _ in range(LEAST):
            cache.note(Parallelism(), ProfilePoint(64, 1), 1.0, 0.5, None)
    plan = plan_of("rollout", config, SPEC, [64, 128], [1, 2])
    assert (
        command.unknown_points(plan, cache, fresh=False) == 3
        and command.unknown_points(plan, cache, fresh=True) == 4
    )

    def measuring(
        plan: Any, config: Any, model: Any, directory: Any, cache: Any, say: Any, window_s: Any
    ) -> Any:
        async def run(seconds: float) -> None:
            say("rollout dp=1, 128 tokens x 1: 2 tokens/s")

        return SimpleNamespace(run=run, lacking={})

    monkeypatch.setattr(command, "Measuring", measuring)
    monkeypatch.setattr(command, "_model", lambda *_: tmp_path)
    monkeypatch.setattr(command, "load_spec", lambda _: SPEC)
    points, messages = Count(), []
    await command.measure(
        config, ["rollout"], [64, 128], [1, 2], seconds=1.0, say=messages.append, measured=[], kept=tmp_path,
        points=points,
    )  # fmt: skip
    assert points() == (1, 3) and len(messages) == 1
