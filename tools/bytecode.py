"""Writes the bytecode of all that EARL's processes import at their start, so that none has to compile it.

    .venv/bin/python tools/bytecode.py

Python keeps the bytecode of a module when it is imported first, unless PYTHONDONTWRITEBYTECODE is set, as in
many containers. There each process of each run would compile torch and the rest again: for the trainer that
takes longer than all else of its start.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# With what they import, all that processes of a run import, whatever their stage.
MODULES = (
    "earl.cli.main",
    "earl.cli.run.demo",
    "earl.cli.run.live_view",
    "earl.cli.run.resume",
    "earl.cli.run.train",
    "earl.cli.show.ls",
    "earl.dashboard.serve",
    "earl.env.adapters.open_spiel",
    "earl.env.host",
    "earl.models.__main__",
    "earl.models.create",
    "earl.stack.valkey",
    "services.env_gateway.serve",
    "services.rollout.engines.process.__main__",
    "services.rollout.engines.torch.engine",
    "services.rollout.engines.torch.leader",
    "services.rollout.engines.torch.ranks",
    "services.rollout.service",
    "services.scheduler.service",
    "services.trainer.launch",
    "services.trainer.service",
)


def write_bytecode(modules: Sequence[str] = MODULES) -> None:
    """Imports the modules, and all that they import, in this process. Raises ImportError."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for module in modules:
        importlib.import_module(module)


if __name__ == "__main__":
    # The checkout's modules, also where EARL is not installed yet.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    write_bytecode()
