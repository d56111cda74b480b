"""The interpreter of an engine: that of its own environment, if it has one, else the service's."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from earl.errors import EngineNotInstalled
from services.rollout.engines.contract.engine import EngineSpec

# In the parent of the running environment's directory, where `make setup-vllm` puts it.
ENVIRONMENTS = {"vllm": ".venv-vllm", "sglang": ".venv-sglang"}
REMEDIES = {
    "vllm": "run `make setup-vllm`, or set rollout.engine_python to the Python of an environment with vLLM",
    "sglang": "make an environment with sglang 0.5.23 and EARL in it (docs/engines.md), and set "
    "rollout.engine_python to its Python",
}


def interpreter_of(spec: EngineSpec) -> str:
    """The path of the interpreter that runs the spec's engine. Raises EngineNotInstalled if there is none."""
    if spec.python:
        python = shutil.which(os.path.expanduser(spec.python))
        if python is None:
            raise EngineNotInstalled(
                f"rollout.engine_python = {spec.python!r} is no executable", _remedy(spec.engine)
            )
        return python
    if spec.engine not in ENVIRONMENTS:
        return sys.executable
    python = Path(sys.prefix).parent / ENVIRONMENTS[spec.engine] / "bin" / "python"
    if not python.is_file() and find_spec(spec.engine) is not None:
        # One environment for both: `make setup-vllm-gpu`.
        return sys.executable
    if not python.is_file():
        raise EngineNotInstalled(
            f"engine {spec.name} is rollout.engine = {spec.engine!r}, and there is no {python}",
            _remedy(spec.engine),
        )
    return str(python)


def _remedy(engine: str) -> str:
    return REMEDIES.get(engine, "give the Python of an environment that has EARL, or leave it empty")
