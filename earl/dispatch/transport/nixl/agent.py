"""NIXL's agent as EARL uses it: one UCX backend whose wire is known, and nothing loaded before it is needed.

The wire is chosen by allowing UCX nothing else, so that "rdma" is a fact and not a hope: where UCX finds no
such device, making the agent fails. NIXL brings its own libucx, which exists next to ucxx's in one process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from earl.errors import PeerLost, TransportUnavailable

Wire = Literal["tcp", "rdma"]
PACKAGE = "nixl_cu12"

# Read when NIXL's libraries load. Peers that die are expected: typed errors here, not lines on stderr.
# Its UCX hooks no mmap: nothing here needs that, and ucxx's UCX in the same process does it already.
_ENVIRONMENT = {
    "NIXL_LOG_LEVEL": "FATAL",
    "UCX_LOG_LEVEL": "error",
    "UCX_MEM_MMAP_HOOK_MODE": "none",
    "UCX_HANDLE_ERRORS": "none",
}
_TLS: dict[Wire, str] = {"tcp": "tcp", "rdma": "rc,dc,ud"}
# 512k segments bring UCX over TCP near a plain socket's speed; both directions are needed.
_TUNING = "TCP_TX_SEG_SIZE=512k,TCP_RX_SEG_SIZE=512k,KEEPALIVE_INTERVAL=1s"
# How often NIXL's progress thread polls even without events on its descriptors; 0 would spin.
_PROGRESS_DELAY_US = 100_000
_BACKEND = "UCX"
_INFINIBAND = Path("/sys/class/infiniband")


def rdma_ports(root: Path = _INFINIBAND) -> list[str]:
    """The RDMA ports of this machine that are up, for example ["mlx5_0/1"]."""
    states = sorted(root.glob("*/ports/*/state"))
    return [f"{s.parents[2].name}/{s.parent.name}" for s in states if "ACTIVE" in s.read_text()]


def wire_here(root: Path = _INFINIBAND) -> Wire:
    """The wire that NIXL uses on this machine: RDMA if a port is up, else TCP."""
    return "rdma" if rdma_ports(root) else "tcp"


def load() -> Any:
    """NIXL's bindings. Raises TransportUnavailable when they are not installed."""
    try:
        # Its Python layer cannot set the progress thread's delay.
        return importlib.import_module(f"{PACKAGE}._bindings")
    except ImportError as error:
        raise TransportUnavailable(
            f"NIXL cannot be loaded: {error}",
            "install earl[nixl], or set data_plane.transport to auto, shm or ucx",
        ) from error


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class NixlAgent:
    """A NIXL agent. All calls from one thread, apart from the progress thread of its own.

    progress: answer peers' reads while nobody calls, on a thread that sleeps when there are none.
    """

    def __init__(self, name: str, wire: Wire, *, loopback: bool, progress: bool) -> None:
        """Raises TransportUnavailable when UCX cannot use this wire here."""
        forced = {key: os.environ[key] for key in ("UCX_TLS", "UCX_NET_DEVICES") if key in os.environ}
        if forced:
            raise TransportUnavailable(
                f"{forced} in the environment would decide NIXL's wire instead of {wire}",
                "unset them: the data plane chooses its wire itself",
            )
        devices = "lo" if loopback and wire == "tcp" else "all"
        parameters = {"engine_config": f"TLS={_TLS[wire]},NET_DEVICES={devices},{_TUNING}"}
        with _environment():
            self._nixl = load()
            raised = [value for key, value in vars(self._nixl).items() if re.fullmatch("nixl.*Error", key)]
            self._errors: tuple[type[Exception], ...] = (*raised, RuntimeError, ValueError)
            config = self._nixl.nixlAgentConfig()
            config.useProgThread = progress
            config.pthrDelay = _PROGRESS_DELAY_US
            try:
                self._agent = self._nixl.nixlAgent(name, config)
                self._backend = self._agent.createBackend(_BACKEND, parameters)
            except self._errors as error:
                raise TransportUnavailable(
                    f"NIXL cannot use {wire} on network devices {devices!r}: {error}",
                    "check data_plane.bind, and the machine's RDMA devices if it should use RDMA",
                ) from error

    @property
    def metadata(self) -> bytes:
        """Returns how to reach this agent and its registered memory: for authenticated peers only."""
        return self._agent.getLocalMD()

    def register(self, memory: np.ndarray) -> Any:
        """Makes uint8 `memory` known to the wire: what `deregister` takes. Raises TransportUnavailable."""
        described = self._nixl.nixlRegDList(self._nixl.DRAM_SEG, [(memory.ctypes.data, memory.nbytes, 0, "")])
        try:
            self._agent.registerMem(described, [self._backend])
        except self._errors as error:
            raise TransportUnavailable(
                f"NIXL cannot register {memory.nbytes} bytes: {error}", "is `ulimit -l` too small for RDMA?"
            ) from error
        return described

    def deregister(self, described: Any) -> None:
        """Forgets memory that `register` made known. Raises TransportUnavailable when it is not known."""
        try:
            self._agent.deregisterMem(described, [self._backend])
        except self._errors as error:
            raise TransportUnavailable(
                f"NIXL cannot deregister memory: {error!r}",
                "it was never registered, or is deregistered already",
            ) from error

    def add_peer(self, metadata: bytes) -> str:
        """The name of the agent whose metadata this is; from an authenticated peer only. Raises PeerLost."""
        try:
            return self._agent.loadRemoteMD(metadata).decode()
        except self._errors as error:
            raise _lost("a serving process", error) from error

    def remove_peer(self, name: str) -> None:
        """Forgets a peer none of whose transfers is in flight: their outcome could not be read any more."""
        with contextlib.suppress(*self._errors):  # never added
            self._agent.invalidateRemoteMD(name)

    def post(self, peer: str, local: np.ndarray, remote: np.ndarray, length: np.ndarray) -> int:
        """Starts reading; uint64[N] addresses here and there and bytes. Returns a handle. Raises PeerLost."""
        sides = []
        for address in (local, remote):
            table = np.zeros((len(length), 3), np.uint64)
            table[:, 0], table[:, 1] = address, length
            sides.append(self._nixl.nixlXferDList(self._nixl.DRAM_SEG, table))
        handle = 0
        try:
            handle = self._agent.createXferReq(self._nixl.NIXL_READ, *sides, peer, "", [self._backend])
            self._agent.postXferReq(handle)
        except self._errors as error:
            if handle:
                self.release(handle)
            raise _lost(peer, error) from error
        return handle

    def done(self, handle: int, peer: str) -> bool:
        """Returns whether a transfer has succeeded; asking also makes progress. Raises PeerLost."""
        try:
            return self._agent.getXferStatus(handle) == self._nixl.NIXL_SUCCESS
        except self._errors as error:
            raise _lost(peer, error) from error

    def release(self, handle: int) -> None:
        """Frees a transfer that has ended: of one that has not, the memory would still be written."""
        with contextlib.suppress(*self._errors):  # kept by NIXL until it can let go
            self._agent.releaseXferReq(handle)

    def progress(self) -> None:
        """Handles what arrived between transfers; the next transfer from a lost peer reports the loss."""
        with contextlib.suppress(*self._errors):
            self._agent.getNotifs({}, [self._backend])


def _lost(peer: str, error: Exception) -> PeerLost:
    return PeerLost(f"NIXL agent {peer}: {error}", "its owner died or restarted")
