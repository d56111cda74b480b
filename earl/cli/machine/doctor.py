"""Say what works on this machine, each thing tried out, and what to do about the rest.

Each probe runs in a process of its own and within PROBE_S, so that no library can take the command down.
Findings are printed as they come; what takes long is named on standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from earl.cli.lib.notices import waiting
from earl.cli.lib.probes import BY_HAND, PROBE_S, failed_probe, probed_by
from earl.cli.lib.wrapped import print_wrapped, terminal_width, wrapped
from earl.cli.machine import machine, node
from earl.cli.machine.findings import PROBES, Finding, data_plane
from earl.config import auto_dtype
from earl.config.data_plane import DataPlaneConfig
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError, EarlError
from earl.obs.processor import flags, native_bfloat16
from earl.rpc.peers import variable_or_file
from earl.stack.auto_dtype import gpu_bytes_here, settle

app = typer.Typer(add_completion=False)

# Where the text of a finding begins.
INDENT = 21
# What each probe of the data plane tries, in words.
TRIED = {
    "memory": "testing shared memory",
    "ucx": "testing UCX",
    "nixl": "testing NIXL",
    "rdma": "looking for RDMA",
}


@app.command(epilog="Example: earl doctor examples/tictactoe.toml")
def doctor(
    run_file: Annotated[
        Path | None, typer.Argument(metavar="[RUN.toml]", help="Run file to check for.")
    ] = None,
    gateway: Annotated[
        str, typer.Option("--gateway", metavar="HOST:PORT", help="Check the env hosts there, too.")
    ] = "",
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            metavar="NxSIZE",
            help="Plan for a machine with these GPUs instead, such as 8x80GiB; nothing here is tested.",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object.")] = False,
) -> None:
    """Test what works on this machine, and say what to do about the rest.

    Cores, memory, open files, clock, bfloat16; Redis, or the embedded Valkey where none is named; shared
    memory, UCX and NIXL, which each move 16 MiB from an arena. With a run file its dtypes, its ports, its
    model and space for its arenas, too. Exit code 1 if anything that the run file, or a run without one,
    needs does not work here; what it does not need may be missing.

    With --devices: which GPUs each process would compute on, and how much of their memory it would take, by
    part, as predicted. Exit code 1 if it does not fit.
    """
    if devices:
        raise typer.Exit(planned_elsewhere(run_file, devices, as_json=as_json))
    config = settle(load_run(run_file)) if run_file is not None else None
    gateway = gateway or os.environ.get("EARL_GATEWAY", "")
    findings = asyncio.run(reported(examined(config, gateway), quiet=as_json))
    works = not any(finding.fatal for finding in findings)
    if as_json:
        print(json.dumps({"works": works, "findings": [asdict(finding) for finding in findings]}))
    else:
        print_wrapped(verdict(findings, str(run_file) if run_file is not None else "a run with the defaults"))
    raise typer.Exit(0 if works else 1)


def planned_elsewhere(run_file: Path | None, devices: str, *, as_json: bool) -> int:
    """Prints what a run would take of such devices; returns the exit code. Raises ConfigError."""
    gpus, device_bytes = node.devices_of(devices)
    if run_file is None:
        raise ConfigError("--devices without a run file", "give one: earl doctor RUN.toml --devices 8x80GiB")
    config = load_run(run_file, elsewhere=True)
    config = auto_dtype.resolve(config, lambda device: device != "cpu" or native_bfloat16(flags()))
    probed = asyncio.run(probed_node(config, gpus, device_bytes))
    findings = list(node.of_node(probed))
    works = not any(finding.fatal for finding in findings)
    if as_json:
        print(json.dumps({"works": works, "findings": [asdict(finding) for finding in findings]}))
        return 0 if works else 1
    if probed["error"] is None:
        print("\n".join(node.table(probed["facts"])))
    for finding in findings:
        print("\n".join(fitted(finding, terminal_width())))
    print_wrapped(f"{run_file} {'fits' if works else 'does not fit'} {devices}")
    return 0 if works else 1


async def probed_node(config: RunConfig, gpus: int, device_bytes: int, host_bytes: int = 0) -> dict[str, Any]:
    """{"facts", "error"}: what the run takes of so many GPUs; without any, of the machine's memory.

    host_bytes: of the machine, if they are known.
    """
    given = {"run": json.loads(needed(config)), "gpus": gpus, "device_bytes": device_bytes}
    given["host_bytes"] = host_bytes
    return await probed_by("services.scheduler.profiler.node_probe", json.dumps(given))


def with_facts(config: RunConfig, facts: Mapping[str, Any]) -> RunConfig:
    """The run with the bound of contexts that the probe of its devices found; without facts as it is."""
    held = facts.get("held_context_tokens", config.rollout.held_context_tokens)
    rollout = config.rollout.model_copy(update={"held_context_tokens": held})
    return config.model_copy(update={"rollout": rollout})


async def reported(findings: AsyncIterator[Finding], *, quiet: bool) -> list[Finding]:
    """All findings; each is printed as soon as it is known, unless `quiet`."""
    known = []
    async for finding in findings:
        known.append(finding)
        if not quiet:
            print("\n".join(fitted(finding, terminal_width())), flush=True)
    return known


async def examined(config: RunConfig | None, gateway: str) -> AsyncIterator[Finding]:
    """The findings, each as soon as it is known.

    One probe runs after the other: rates are not shared, nor is the arena's space.
    """
    plane = config.data_plane if config is not None else DataPlaneConfig()
    here = machine.machine()
    for finding in (*machine.of_machine(here), machine.of_bfloat16(flags(), config)):
        yield finding
    probed: dict[str, dict[str, Any]] = {}
    if config is not None:
        yield machine.of_threads(here, config)
        with waiting("predicting memory", PROBE_S):
            gpu_bytes = await asyncio.to_thread(gpu_bytes_here, config)
            device_bytes = min(gpu_bytes, default=here.memory_bytes)
            planned = await probed_node(config, len(gpu_bytes), device_bytes, here.memory_bytes)
        for finding in node.of_node(planned):
            yield finding
        yield machine.of_ports(config)
        with waiting("examining the model", PROBE_S):
            model = await probed_by("earl.models.probe", config.model.model_dump_json(exclude_defaults=True))
        yield machine.of_model(config, model)
        with waiting("computing the size of the arenas", 2 * PROBE_S):
            probed["memory"] = await probe("memory", plane)
            bounded = with_facts(config, planned["facts"])
            rollout = await probed_by("services.rollout.worker.arena_size", needed(bounded))
        yield machine.of_arenas(config, probed["memory"]["facts"], rollout, model)
    with waiting("testing Redis", PROBE_S):
        server = await redis(config.bus.redis_url if config is not None else "")
    for finding in machine.of_redis(server):
        yield finding
    if gateway:
        names = dict.fromkeys(entry.name for entry in config.mixture) if config is not None else [""]
        with waiting(f"asking the gateway at {gateway}"):
            findings = [await at_gateway(gateway, name) for name in names]
        for finding in findings:
            yield finding
    for name in PROBES:
        if name not in probed:
            with waiting(TRIED[name], PROBE_S):
                probed[name] = await probe(name, plane)
        for finding in data_plane(name, plane, probed):
            yield finding


def needed(config: RunConfig) -> str:
    """Returns the part of the run file that the probe of a worker reads. Not the bus: its URL may hold a
    password, and a remedy shows what was read."""
    return config.model_dump_json(exclude_defaults=True, exclude={"bus"})


async def redis(configured: str) -> dict[str, Any]:
    """{"facts", "error"} of the server that EARL_REDIS_URL names, else `configured`, else of the embedded."""
    try:
        url = variable_or_file("EARL_REDIS_URL") or configured
    except EarlError as error:
        return failed_probe(error.message, error.remedy)
    if url:
        return await probed_by("earl.bus.probe", url, piped="echo REDIS_URL")
    # Also of a probe that had to be killed nothing stays.
    with tempfile.TemporaryDirectory(prefix="earl-doctor-", ignore_cleanup_errors=True) as scratch:
        return await probed_by("earl.bus.probe", "", piped="true", environment={"TMPDIR": scratch})


async def at_gateway(address: str, name: str) -> Finding:
    from earl.cli.lib.gateway_codec import CALL_S, list_environments
    from earl.rpc.access import Access
    from earl.rpc.token_file import READERS

    try:
        environments = await list_environments(address, Access.of(*READERS), CALL_S)
    except EarlError as error:
        return machine.of_gateway(address, name, None, error)
    return machine.of_gateway(
        address, name, {environment.name: environment.hosts for environment in environments}, None
    )


def lines(finding: Finding) -> Iterator[str]:
    """A finding in one line, and its remedy below it."""
    mark = "ok" if finding.works else "NO" if finding.needed else "no"
    yield f"{mark}  {finding.name:<15}  {finding.said}"
    if finding.remedy:
        yield f"{'':<{INDENT}}-> {finding.remedy}"


def fitted(finding: Finding, width: int) -> Iterator[str]:
    """The lines of a finding on a terminal of so many characters, 0 for no terminal.

    A command to be typed gets a line of its own, which is not wrapped: it can be copied.
    """
    first, *remedies = lines(finding)
    yield from wrapped(first, width, INDENT)
    for remedy in remedies:
        text, by_hand, command = remedy.partition(BY_HAND)
        if width and command:
            yield from wrapped(f"{text}{by_hand}".rstrip(), width, 3)
            yield command
        else:
            yield from wrapped(remedy, width, 3)


def verdict(findings: Sequence[Finding], who: str) -> str:
    """The last line. who: the run, in words."""
    fatal = ", ".join(finding.name for finding in findings if finding.fatal)
    return f"{who} does not work here: {fatal}" if fatal else f"{who} works here"


async def probe(name: str, config: DataPlaneConfig, timeout_s: float = PROBE_S) -> dict[str, Any]:
    """{"facts", "error"} of one probe of the data plane."""
    written = config.model_dump_json(exclude_defaults=True)
    return await probed_by("earl.dispatch.probe", written, name, timeout_s=timeout_s)
