"""The arms by name. Another transport of the data plane is one line in `member.TRANSPORTS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec

from benchmarks.dispatch.arm import Arm
from benchmarks.dispatch.central_grpc import CentralGrpcAsyncio, CentralGrpcThreads
from benchmarks.dispatch.direct import CentralSameTransport, Direct
from benchmarks.dispatch.floor import MemcpyFloor, MemcpyHashFloor
from benchmarks.dispatch.member import TRANSPORTS, VERIFIED
from benchmarks.dispatch.sockets import Sockets
from earl.dispatch.transport.nixl.agent import PACKAGE as NIXL

GRPC = ("central_grpc_threads", "central_grpc_asyncio")

ARMS: dict[str, Callable[[], Arm]] = {
    **{name: partial(Direct, name) for name in TRANSPORTS},
    VERIFIED: partial(Direct, VERIFIED),
    "memcpy_floor": MemcpyFloor,
    "memcpy_hash_floor": MemcpyHashFloor,
    "socket": Sockets,
    **{f"central_{name}": partial(CentralSameTransport, name) for name in TRANSPORTS},
    "central_grpc_threads": CentralGrpcThreads,
    "central_grpc_asyncio": CentralGrpcAsyncio,
}


def absent(names: Iterable[str]) -> dict[str, str]:
    """The arms or transports among `names` that cannot run here, each with a remedy."""
    if find_spec(NIXL) is not None:
        return {}
    remedy = f'absent: {NIXL} is not installed; pip install "earl[nixl]"'
    return {name: remedy for name in names if name in ("nixl", "central_nixl")}
