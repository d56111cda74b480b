"""The GPUs that a profile is kept for, by a driver's tool that answers or fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.spec import ModelSpec
from services.scheduler.profiler.facts import cache_of, facts_of

SPEC = ModelSpec("llama", 96, 2, 12, 6, 8, 192, 50, max_positions=4096)


def run(device: str) -> RunConfig:
    return RunConfig.model_validate(
        {"name": "t", "environment": {"name": "e"}, "trainer": {"device": device}}
    )


def tool(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a script the machine's only nvidia-smi."""
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


def gpus(device: str) -> list[str]:
    return facts_of("trainer", run(device), SPEC)["hardware"]["gpus"]


def test_gpus_are_named_where_the_stage_may_use_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "echo H100; echo H200", monkeypatch)
    assert (gpus("auto"), gpus("cuda"), gpus("cpu")) == (["H100", "H200"], ["H100", "H200"], [])


def test_a_tool_that_fails_is_no_machine_without_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, "exit 9", monkeypatch)
    assert gpus("cpu") == []
    with pytest.raises(ConfigError, match="GPUs cannot be listed") as raised:
        cache_of("trainer", run("cuda"), SPEC, tmp_path)
    assert 'trainer.device = "cpu"' in str(raised.value)


@pytest.mark.parametrize("driver", [True, False])
def test_auto_depends_on_whether_the_driver_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: bool
) -> None:
    tool(tmp_path, "exit 9", monkeypatch)
    file = tmp_path / "nvidiactl"
    monkeypatch.setattr("earl.obs.machine.NVIDIA", file)
    if driver:
        file.touch()
        with pytest.raises(ConfigError):
            gpus("auto")
    else:
        assert gpus("auto") == []
