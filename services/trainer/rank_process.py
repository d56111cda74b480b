"""A stage as a process: its command line, its ranks, signals as requests, errors as a line and an exit code.

python -m MODULE --run FILE ─┬─ one rank: this process
                             └─ more: torchrun's agent here, `python -m MODULE --run FILE` per rank
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from earl.bulk_import import bulk_import
from earl.config.device_pool import most_devices
from earl.config.run import RunConfig
from earl.config.service import service_run
from earl.errors import EarlError
from earl.obs import log as log_setup
from earl.obs.tracing import exporting
from earl.rpc.main import await_peers, ended_by
from earl.service_main import service_arguments
from services.trainer.launch import follow_agent, launch
from services.trainer.ranks.requests import StageRequests

log = logging.getLogger(__name__)

Serve = Callable[[RunConfig, Path, str, StageRequests], None]


def stage_main(stage: str, module: str, about: str | None) -> int:
    """Runs a rank of a stage in this process, which then ends; or starts all ranks and returns their exit
    code.

    stage: "trainer", or a frozen model's role, also the process's name unless another is given. module: what
    `python -m` starts; its submodule `service` has the function `serve`. about: for --help. Of a stage that
    draws on a pool, as many processes start as could ever be its ranks; those that are none wait.
    """
    arguments = service_arguments(module, about, stage, f"the {stage}'s name, unique in the run")
    rank = int(os.environ.get("RANK", "0"))
    log_setup.setup(arguments.name if rank == 0 else f"{arguments.name}-{rank}")
    await_peers(f"{module}.service")
    try:
        config, directory = service_run(arguments.run, stage)
        # Threads that wait must not spin: engines and environments share this machine's cores.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        processes = most_devices(config, stage)
        if processes > 1 and "RANK" not in os.environ:
            return launch(sys.argv[1:], processes, module)
    except EarlError as error:
        return ended_by(error)
    with bulk_import():  # after the configuration was read
        serve = importlib.import_module(f"{module}.service").serve
        from services.trainer.ranks.process_group import leave

    leave(run_rank(config, directory, arguments.name, serve))


def run_rank(config: RunConfig, run_dir: Path, name: str, serve: Serve) -> int:
    """Serves until the run has ended; returns the exit code."""
    requests = StageRequests()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: requests.stop.set())
    follow_agent()
    # Rank 0 speaks for all in traces, too.
    traces = config.obs.traces if int(os.environ.get("RANK", "0")) == 0 else ""
    try:
        with exporting(traces, name, config.name):
            serve(config, run_dir, name, requests)
    except EarlError as error:
        return ended_by(error)
    except Exception:
        log.exception("%s failed", name)
        return 1
    return 0
