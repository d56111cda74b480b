"""The gateway process: server, sweep, dialled hosts and events together, drained in the order that lets
episodes finish."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from earl.config.run import RunConfig
from earl.obs.tracing import exporting
from earl.rpc.access import Access
from earl.rpc.audit import AUDIT_FILE, Audit
from earl.rpc.main import announce
from earl.rpc.metrics_endpoint import MetricsEndpoint
from earl.rpc.peers import variable_or_file
from earl.rpc.server import Server
from earl.rpc.token_file import Role
from earl.rpc.tokens import tokens_to_accept
from earl.waiting import until_first
from services.env_gateway.api.host_dialer import HostDialer
from services.env_gateway.api.metrics import figures
from services.env_gateway.api.servicer import SERVICE, EnvGatewayServicer, add_to_server
from services.env_gateway.events import QuarantineEvents
from services.env_gateway.fault_file import FaultFile
from services.env_gateway.gateway import Gateway

log = logging.getLogger(__name__)

# The gateway's sense of time is at least this fine.
MAX_INTERVAL_S = 0.1
DRAIN_S = 5.0
# How often what was counted goes to the log, if anything was.
REPORT_S = 60.0


async def serve(config: RunConfig, run_dir: Path, name: str, stop: asyncio.Event) -> None:
    """Serves as `_serve` does, and sends traces to the run file's address."""
    with exporting(config.obs.traces, name, config.name):
        await _serve(config, run_dir, name, stop)


async def _serve(config: RunConfig, run_dir: Path, name: str, stop: asyncio.Event) -> None:
    """Serves until `stop`, then drains. Raises PortInUse, InsecureBind, ConfigError."""
    interval_s = min(MAX_INTERVAL_S, config.gateway.lease_s / 10)
    redis_url = variable_or_file("EARL_REDIS_URL")
    events = QuarantineEvents(redis_url, config.name, name) if redis_url else None
    faults = FaultFile(run_dir)

    def quarantined(environment: str, host: str, reason: str) -> None:
        faults.quarantined(environment, host, reason)
        if events is not None:
            events.announce(environment, host, reason)

    gateway = Gateway(config.gateway, time.monotonic, quarantined)
    servicer = EnvGatewayServicer(gateway, interval_s)
    # What a host that listens is shown is the environment's own token: it learns no other.
    access, audit = Access.of(Role.ENVIRONMENT), Audit(run_dir / AUDIT_FILE, name)
    dialers = [HostDialer(gateway, listening, access) for listening in config.gateway.dial]
    tokens = tokens_to_accept()
    server = Server(name, config.gateway.bind, tokens=tokens, tls=access.tls, drain_s=1.0, audit=audit)
    server.add(add_to_server, servicer, SERVICE)
    metrics = MetricsEndpoint(
        config.obs.metrics,
        [server.calls.samples, lambda: figures(gateway, time.monotonic())],
        tokens=tokens,
        tls=access.tls,
    )
    address, shown = await server.start(), await metrics.start()
    tasks = [asyncio.create_task(servicer.run()), asyncio.create_task(_report(gateway))]
    tasks.append(asyncio.create_task(_record(gateway, faults)))
    tasks += [asyncio.create_task(dialer.run()) for dialer in dialers]
    if events is not None:
        tasks.append(asyncio.create_task(events.run()))
    try:
        announce(name, address, shown)
        await until_first(stop.wait(), *tasks)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await server.set_serving(SERVICE, False)
        # Draining truncates episodes, which is no fault: the file ends before it.
        faults.update(gateway.pool.faults, most=None)
        faults.close()
        await servicer.drain(DRAIN_S)
        for task in tasks:
            task.cancel()
        await metrics.close()
        await server.stop()
        log.info("counted in all", extra={"fields": gateway.counts.fields()})


async def _report(gateway: Gateway) -> None:
    """Logs what was counted, until cancelled."""
    reported = gateway.counts.fields()
    while True:
        await asyncio.sleep(REPORT_S)
        fields = gateway.counts.fields()
        if fields != reported:
            reported = fields
            log.info("counted so far", extra={"fields": fields})


async def _record(gateway: Gateway, faults: FaultFile) -> None:
    """Writes the faults of environments into the run's directory, until cancelled."""
    while True:
        await asyncio.sleep(faults.period_s)
        faults.update(gateway.pool.faults)
