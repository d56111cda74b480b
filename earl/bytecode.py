"""Writes the bytecode of all that EARL's processes import at their start, so that none has to compile it.

    python -m earl.bytecode

Python keeps the bytecode of a module when it is imported first, unless PYTHONDONTWRITEBYTECODE is set, as in
many containers. There each process of each run would compile torch and the rest again: for the trainer that
takes longer than all else of its start.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence

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
# Packages of which no module may be missing.
OURS = ("earl", "services")


def write_bytecode(modules: Sequence[str] = MODULES) -> Iterator[str]:
    """Imports the modules, and all that they import, in this process.

    Yields a line for each that needs a package of an extra that is not installed. Raises ImportError.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in OURS:
                raise
            yield f"{module} is left out: {error}"


if __name__ == "__main__":
    for line in write_bytecode():
        sys.stderr.write(f"bytecode: {line}\n")
