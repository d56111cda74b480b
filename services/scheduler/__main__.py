"""`python -m services.scheduler --run <dir>/run.json [--name NAME]`: the scheduler of one run."""

from __future__ import annotations

import argparse
from pathlib import Path

from earl.config.run import RunConfig
from earl.obs import log
from earl.rpc.main import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.scheduler", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="resolved run file (JSON)")
    parser.add_argument("--name", default="scheduler", help="name in logs and events")
    arguments = parser.parse_args()
    log.setup(arguments.name)
    config = RunConfig.model_validate_json(arguments.run.read_bytes())
    from services.scheduler.service import serve  # heavy: after the configuration was read

    run(lambda stop: serve(config, arguments.run.parent, arguments.name, stop))


if __name__ == "__main__":
    main()
