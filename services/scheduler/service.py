"""A scheduler process: bus, ledger, server, until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path

from earl.bus import Bus
from earl.config.run import RunConfig
from earl.errors import BusUnavailable
from earl.obs.tracing import exporting
from earl.rpc.access import Access
from earl.rpc.audit import AUDIT_FILE, Audit
from earl.rpc.main import announce
from earl.rpc.metrics_endpoint import MetricsEndpoint
from earl.rpc.peers import variable_or_file
from earl.rpc.server import Server
from earl.rpc.token_file import Role
from earl.rpc.tokens import tokens_to_accept
from earl.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from earl.waiting import until_first
from services.scheduler.api.metrics import figures
from services.scheduler.api.servicer import SERVICE, SchedulerServicer
from services.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

# How long a bus that cannot be reached may delay the scheduler's end.
ENDING_S = 5.0
# Objects that were made and not yet given up before cycles are looked for among them; younger generations'
# collections before an older one's.
COLLECT = (5_000, 20, 50)


async def serve(config: RunConfig, run_dir: Path, name: str, stop: asyncio.Event) -> None:
    """Serves until `stop`, and sends its traces to the run file's address.

    Raises BusUnavailable, PortInUse, InsecureBind, LedgerFenced.
    """
    with exporting(config.obs.traces, name, config.name):
        url = variable_or_file("EARL_REDIS_URL") or config.bus.redis_url
        if not url:
            raise BusUnavailable(
                "EARL_REDIS_URL is not set and bus.redis_url is empty", "start the run with `earl train`"
            )
        access, tokens, audit = Access.of(Role.WORKER), tokens_to_accept(), Audit(run_dir / AUDIT_FILE, name)
        server = Server(name, config.scheduler.bind, tokens=tokens, tls=access.tls, drain_s=2.0, audit=audit)
        sources = [server.calls.samples, lambda: figures(scheduler)]
        metrics = MetricsEndpoint(config.obs.metrics, sources, tokens=tokens, tls=access.tls)
        events, outage_s = config.bus.stream_events, config.bus.outage_s
        bus = await Bus.connect(url, config.name, source=name, stream_events=events, outage_s=outage_s)
        try:
            scheduler = await Scheduler.open(config, run_dir, bus, access)
            # Nothing of what was loaded is ever garbage: looking through it would stop the loop for tens of
            # ms.
            gc.freeze()
            # Nearly all that is made here ends by itself. With the interpreter's own thresholds a large
            # fleet's scheduler looked for cycles 70 times a second, 4 % of its time, sometimes for 20 ms.
            gc.set_threshold(*COLLECT)
            server.add(add_SchedulerServiceServicer_to_server, SchedulerServicer(scheduler), SERVICE)
            await _work(scheduler, server, metrics, name, stop)
        finally:
            await metrics.close()
            await bus.close()


async def _work(
    scheduler: Scheduler, server: Server, metrics: MetricsEndpoint, name: str, stop: asyncio.Event
) -> None:
    """Calls in flight are answered before the ledger is closed."""
    quit_event = asyncio.Event()
    working = asyncio.create_task(scheduler.loop.run(quit_event))
    try:
        announce(name, await server.start(), await metrics.start())
        await until_first(working, stop.wait())
    finally:
        scheduler.loop.drain()
        await server.stop()
        quit_event.set()
        if not (await until_first(working, timeout_s=ENDING_S))[0]:
            # What was decided and is not stored yet was told to nobody.
            log.warning("the bus cannot be reached: the scheduler ends without it")
            working.cancel()
            await asyncio.wait([working])
        else:
            await working
