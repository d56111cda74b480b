"""`python -m services.rollout --run <dir>/run.json [--name NAME]`: one rollout worker."""

from __future__ import annotations

import argparse
from pathlib import Path

from earl.config.run import RunConfig
from earl.obs import log
from earl.rpc.main import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.rollout", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="resolved run file (JSON)")
    parser.add_argument("--name", default="rollout-0", help="the worker's name, unique in the run")
    arguments = parser.parse_args()
    log.setup(arguments.name)
    config = RunConfig.model_validate_json(arguments.run.read_bytes())
    from services.rollout.service import serve  # heavy: after the configuration was read

    run(lambda stop: serve(config, arguments.run.parent, arguments.name, stop))


if __name__ == "__main__":
    main()
