"""`python -m earl.models --run FILE` makes <run directory>/model, a job of every run (earl.models.create)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from earl.bulk_import import bulk_import
from earl.config.service import service_run
from earl.errors import EarlError
from earl.rpc.main import ended_by


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m earl.models", description="Make the model directory of a run."
    )
    parser.add_argument("--run", type=Path, required=True, help="run file, or a run.json")
    path: Path = parser.parse_args().run
    try:
        config, directory = service_run(path)
        with bulk_import():
            from earl.models.create import create_models

        create_models(directory.resolve(), config)
    except EarlError as error:
        return ended_by(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
