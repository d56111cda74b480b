"""`python -m services.trainer --run FILE [--name NAME]`: the trainer, or a rank under torchrun."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from earl.config.service import service_run
from earl.errors import EarlError
from earl.obs import log
from earl.rpc.main import await_peers, ended_by


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m services.trainer", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run file, or a run.json")
    parser.add_argument("--name", default="trainer", help="the trainer's name, unique in the run")
    arguments = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    log.setup(arguments.name if rank == 0 else f"{arguments.name}-{rank}")
    await_peers("services.trainer.rank_process")
    try:
        config, directory = service_run(arguments.run, "trainer")
        # Threads that wait must not spin: engines and environments share this machine's cores.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        if config.trainer.ranks > 1 and "RANK" not in os.environ:
            from services.trainer.launch import launch  # heavy: torchrun's agent

            return launch(sys.argv[1:], config.trainer.ranks)
    except EarlError as error:
        return ended_by(error)
    from services.trainer.rank_process import run_rank
    from services.trainer.ranks.process_group import leave  # heavy: after the configuration was read

    leave(run_rank(config, directory, arguments.name))


if __name__ == "__main__":
    sys.exit(main())
