"""`python -m earl.dispatch.probe NAME`, with `[data_plane]` as JSON on stdin, tries out what works here.

It prints one line, {"facts": {…}, "error": null or {"message", "remedy"}}. A process for each probe, so that
a library that crashes or hangs takes nothing else with it; its caller bounds its time. Every probe
of a way moves bytes on it, from an arena, and compares what arrived.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from earl.config.data_plane import DataPlaneConfig
from earl.errors import ConfigError, DataPlaneError, EarlError
from earl.waiting import deadline

PROBE_BYTES = 16 << 20
READ_S = 10.0
_PREFIX = "earl-doctor-"
Facts = dict[str, Any]


def memory(config: DataPlaneConfig, facts: Facts) -> None:
    """An arena in arena_dir, and a read from it as the `shm` transport does it."""
    from earl.dispatch.transport.shm import SharedMemory

    facts |= file_system(Path(config.arena_dir))
    asyncio.run(_read(config, lambda *_: SharedMemory(), facts, served=False))


def ucx(config: DataPlaneConfig, facts: Facts) -> None:
    """Probes UCX's transports, and a read from a serving process as the `ucx` transport does it."""
    import ucxx
    from ucxx._lib import libucxx as api

    from earl.dispatch.transport.ucx import ucp
    from earl.dispatch.transport.ucx.transport import UcxTcp  # says what to do where UCX is missing

    facts["gathers_because"] = ucp.refusal()
    facts["version"] = ".".join(map(str, ucxx.get_ucx_version()))
    facts["ucxx"] = ucxx.__version__
    maps = Path("/proc/self/maps").read_text().splitlines()
    facts["library"] = min((line.split()[-1] for line in maps if "libucp." in line), default="")
    offered = api.UCXContext({}, feature_flags=(api.Feature.TAG,)).info
    facts |= offers(offered)
    facts["verbs"] = "ib" in facts["components"] or any(Path(facts["library"]).parent.glob("ucx/libuct_ib*"))
    config = config.model_copy(update={"transport": "ucx", "require": ""})
    asyncio.run(_read(config, UcxTcp, facts))


def nixl(config: DataPlaneConfig, facts: Facts) -> None:
    """NIXL's plugins, and a read from a serving process as the `nixl` transport does it."""
    from importlib.metadata import version

    from earl.dispatch.transport.nixl.agent import PACKAGE, load, wire_here
    from earl.dispatch.transport.nixl.transport import Nixl

    bindings = load()
    facts["version"] = version(PACKAGE.replace("_", "-"))
    agent = bindings.nixlAgent("probe", bindings.nixlAgentConfig())
    facts["plugins"] = sorted(agent.getAvailPlugins())
    facts["wire"] = wire_here()
    asyncio.run(_read(config.model_copy(update={"transport": "nixl"}), Nixl, facts))


def rdma(config: DataPlaneConfig, facts: Facts) -> None:
    """RDMA devices, and their ports that are up."""
    from earl.dispatch.transport.nixl.agent import rdma_ports

    root = Path("/sys/class/infiniband")
    facts["devices"] = sorted(entry.name for entry in root.iterdir()) if root.is_dir() else []
    facts["ports_up"] = rdma_ports()


# Where a probe needs another extra than stack.
EXTRAS = {"ucx": "ucx", "nixl": "nixl", "rdma": "nixl"}
PROBES: dict[str, Callable[[DataPlaneConfig, Facts], None]] = {
    "memory": memory,
    "ucx": ucx,
    "nixl": nixl,
    "rdma": rdma,
}


def probe(name: str, config: DataPlaneConfig) -> dict[str, Any]:
    """The result of one probe, {"facts", "error"}; facts from before a failure stay."""
    facts: Facts = {}
    error: dict[str, str] | None = None
    try:
        PROBES[name](config, facts)
    except EarlError as failure:
        error = {"message": failure.message, "remedy": failure.remedy}
    except ImportError as failure:
        error = {
            "message": f"{failure.name} is not installed",
            "remedy": f"install earl[{EXTRAS.get(name, 'stack')}]",
        }
    return {"facts": facts, "error": error}


def file_system(directory: Path) -> Facts:
    """Type, size and free bytes of the file system of a directory, or of its nearest parent that exists."""
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    status = os.statvfs(place)
    return {
        "directory": str(directory),
        "file_system": file_system_of(place, Path("/proc/self/mounts").read_text()),
        "size_bytes": status.f_blocks * status.f_frsize,
        "free_bytes": status.f_bavail * status.f_frsize,
    }


def file_system_of(place: Path, mounts: str) -> str:
    """Type of the mount that holds `place`, by the lines of /proc/self/mounts; "" if none does."""
    file_system = ""
    longest = -1
    for line in mounts.splitlines():
        _, mounted, kind, *_ = line.split(" ")
        mounted = mounted.encode().decode("unicode_escape")  # a blank is written \040
        if len(mounted) >= longest and place.resolve().is_relative_to(mounted):
            file_system, longest = kind, len(mounted)
    return file_system


def offers(info: str) -> Facts:
    """UCX's own description of a context as {"components": […], "transports": {name: [devices]}}."""
    components: list[str] = []
    transports: dict[str, list[str]] = {}
    for line in info.splitlines():
        words = line.split()
        if words[1:2] == ["component"] and words[-2:-1] == [":"]:
            components.append(words[-1])
        elif words[1:2] == ["resource"]:
            name, _, device = words[-1].partition("/")
            transports.setdefault(name, []).append(device)
    return {"components": components, "transports": transports}


@contextmanager
def _directory(config: DataPlaneConfig) -> Iterator[Path]:
    """A directory in arena_dir, removed afterwards with its contents; so is what killed probes left."""
    from earl.dispatch.memory.arena_file import remove_stale

    try:
        for left in Path(config.arena_dir).glob(f"{_PREFIX}*"):
            remove_stale(left)
            with suppress(OSError):  # its probe lives
                left.rmdir()
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir=config.arena_dir)
    except OSError as error:
        raise ConfigError(
            f"nothing can be made in data_plane.arena_dir = {config.arena_dir}: {error.strerror}",
            "name a directory on a tmpfs that this user may write",
        ) from error
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _check_arrival(facts: Facts, seconds: float, equal: bool) -> None:
    if not equal:
        raise DataPlaneError("other bytes arrived than were sent", "do not use this way: report it")
    facts |= {"moved_bytes": PROBE_BYTES, "gb_per_s": round(PROBE_BYTES / seconds / 1e9, 3)}


async def _read(
    config: DataPlaneConfig, transport_of: Callable[..., Any], facts: Facts, *, served: bool = True
) -> None:
    """Two reads of an arena, from a serving process of its own where the transport needs one.

    The second one is timed: the first connects, and touches the pages.
    """
    import numpy as np

    from earl.dispatch.describe.pieces import Pieces
    from earl.dispatch.describe.regions import Regions
    from earl.dispatch.memory.arena import Arena
    from earl.dispatch.serve.server_process import ServingProcess

    secret = secrets.token_bytes(32)
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(_directory(config))
        arena = stack.enter_context(closing(Arena.create(directory, "doctor", 1, PROBE_BYTES)))
        if served:
            serving = await ServingProcess.start(arena.ref, config, secret)
            stack.push_async_callback(serving.stop)
            arena.served_at(**{f"{config.wire}_address": serving.address})
        transport = transport_of(config, secret)
        stack.push_async_callback(transport.close)
        facts["path"] = transport.path
        region = arena.allocate(PROBE_BYTES)
        source = region.array(np.uint8, (PROBE_BYTES,))
        source[:] = np.frombuffer(secrets.token_bytes(PROBE_BYTES), np.uint8)
        ref = region.seal(checksum=True)
        into = np.zeros(PROBE_BYTES, np.uint8)
        first, unit = np.zeros(1, np.int32), np.ones(1, np.int64)
        zero, size = np.zeros(1, np.int64), np.full(1, PROBE_BYTES, np.int64)
        pieces = Pieces(Regions.of([ref]), first, zero, unit, size, size, (into,), first, zero, size)
        for _ in range(2):
            into[:] = 0
            started = time.perf_counter()
            text = f"{PROBE_BYTES} bytes were not read within {READ_S} s"
            late = DataPlaneError(text, "does a firewall drop connections of this machine to itself?")
            async with deadline(READ_S, late):
                await transport.read(arena.ref, pieces, verify=True)
            seconds = time.perf_counter() - started
            _check_arrival(facts, seconds, np.array_equal(source, into))


def main() -> None:
    config = DataPlaneConfig.model_validate_json(sys.stdin.read())
    sys.stdout.write(json.dumps(probe(sys.argv[1], config)) + "\n")


if __name__ == "__main__":
    main()
