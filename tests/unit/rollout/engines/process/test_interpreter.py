"""Checks which Python runs an engine."""

from __future__ import annotations

import sys

import pytest

from earl.errors import ConfigError, EngineNotInstalled
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.process.interpreter import interpreter_of


def spec(**fields) -> EngineSpec:
    return EngineSpec(name="e", model_dir="m", **fields)


def test_an_engine_runs_in_its_own_environment(tmp_path, monkeypatch):
    assert interpreter_of(spec()) == sys.executable
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    for engine in ("vllm", "sglang"):
        with pytest.raises(EngineNotInstalled, match=engine) as caught:
            interpreter_of(spec(engine=engine))
        assert isinstance(caught.value, ConfigError) and "rollout.engine_python" in caught.value.remedy
    python = tmp_path / ".venv-vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert interpreter_of(spec(engine="vllm")) == str(python)
    with pytest.raises(EngineNotInstalled, match="no executable"):
        interpreter_of(spec(engine="vllm", python=str(tmp_path / "nowhere")))


def test_an_engine_that_is_installed_beside_earl_needs_no_environment_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    assert interpreter_of(spec(engine="vllm")) == sys.executable
