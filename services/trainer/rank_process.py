"""One rank as a process: signals become requests, errors become one line and an exit code."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from earl.config.run import RunConfig
from earl.errors import EarlError
from earl.obs.tracing import exporting
from earl.rpc.main import ended_by
from services.trainer.launch import follow_agent
from services.trainer.ranks.requests import StageRequests
from services.trainer.service import serve

log = logging.getLogger(__name__)


Serve = Callable[[RunConfig, Path, str, StageRequests], None]


def run_rank(config: RunConfig, run_dir: Path, name: str, serve: Serve = serve) -> int:
    """Serves until the run is over; returns the exit code."""
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
