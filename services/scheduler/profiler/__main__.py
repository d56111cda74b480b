"""`python -m services.scheduler.profiler --run FILE`: the short profile of a launch (profiler.short).

A job of a launch, after the run's model and before its workers. A run can do without a profile, so what goes
wrong is logged, and the job ends with 0.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

from earl.config.service import service_run
from earl.errors import EarlError
from earl.obs import log
from earl.rpc.main import await_peers, run
from earl.service_main import service_arguments
from earl.waiting import until_first
from services.scheduler.profiler.short import measure_short

logger = logging.getLogger(__name__)


async def take(run_file: Path) -> None:
    """Takes the profile; logs where it cannot."""
    config, directory = service_run(run_file)
    with tempfile.TemporaryDirectory(prefix="earl-profile-") as temporary:
        try:
            await measure_short(config, directory.resolve() / "model", Path(temporary), logger.info)
        except EarlError as error:
            logger.warning("there is no profile, so the selector decides nothing: %s", error)


def main() -> None:
    arguments = service_arguments("services.scheduler.profiler", __doc__, "profile", "name in logs")
    log.setup(arguments.name)
    await_peers()

    async def until_stopped(stop: asyncio.Event) -> None:
        await until_first(take(arguments.run), stop.wait())  # its probes end with it

    run(until_stopped)


if __name__ == "__main__":
    main()
