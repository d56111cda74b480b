"""Hosts behind capped network cards: the processes of the benchmark's second part.

Every host has produced rows of a tensor and wants a slice of the columns of all rows, as workers do when
one stage's layout becomes the next one's: all to all.

    direct    slabs of rows, one after another through the cards (egress of each producer, ingress of the
              reader); Dispatcher.read over UCX fetches a slab from all of them when its first byte may enter
              the reader's card, and it counts as there once its last has passed. Where the kernel limits the
              links, everything is one read
    central   a socket from every host to the controller and back; a frame passes the sender's egress, the
              controller's ingress and egress, the receiver's ingress, each as soon as it is there
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

import numpy as np

from benchmarks.dispatch.lines import answer, commands, main
from benchmarks.dispatch.member import LOOPBACK, WAIT_S, Member
from benchmarks.dispatch.nic import EGRESS, INGRESS, cards_of
from benchmarks.dispatch.pattern import COLUMNS, DTYPE, ROW_BYTES, TENSOR, fill, key, right
from earl.dispatch.layout.box import Box
from earl.dispatch.publish.tensor_store import TensorSpec
from earl.dispatch.read.reader import Read

TRANSPORT = "ucx"
# The host whose card the controller uses.
CONTROLLER_HOST = 0
FRAME_BYTES = 256 << 10
STREAM_BYTES = 4 << 20
# receiver, sender, first row, bytes
_HEADER = struct.Struct("<4I")


class Plan:
    """A plan of what each of the first `hosts` hosts holds and reads, `rows` rows each."""

    def __init__(self, hosts: int, rows: int) -> None:
        self.hosts = hosts
        self.rows = rows
        self.columns = COLUMNS // hosts
        self.shape = (hosts * rows, COLUMNS)

    def held(self, host: int) -> Box:
        return Box((host * self.rows, 0), ((host + 1) * self.rows, COLUMNS))

    def target_box(self, host: int) -> Box:
        return Box((0, host * self.columns), (self.shape[0], (host + 1) * self.columns))

    def slabs(self, count: int) -> list[tuple[int, int]]:
        """At most so many ranges of a host's rows, each read together from everybody."""
        step = -(-self.rows // count)
        return [(first, min(first + step, self.rows)) for first in range(0, self.rows, step)]

    def frames(self) -> list[tuple[int, int]]:
        """Ranges of a host's rows that pass the controller together: small, so the first leaves early."""
        step = max(1, FRAME_BYTES // (self.columns * DTYPE.itemsize))
        return [(first, min(first + step, self.rows)) for first in range(0, self.rows, step)]

    def others(self, host: int) -> list[int]:
        """The other hosts from the next rank on, so that not all begin with the same host."""
        return [(host + step) % self.hosts for step in range(1, self.hosts)]


class Host:
    """One host: its rows in an arena served over the wire, its target, its card."""

    def __init__(self, me: Member, role: dict[str, Any]) -> None:
        self.me = me
        self.rank = me.rank
        self.nics = cards_of(role)
        self.memory = np.ones(me.rows * ROW_BYTES // DTYPE.itemsize, DTYPE)
        self.target = self.memory
        self._reader: Any = None
        self._writer: Any = None
        self.address = role["controller"]

    async def prepare(self, plan: Plan, number: int) -> None:
        """Produces and publishes this round's rows, and shapes the target for what this host reads."""
        store, name, box = await self.me.store(TRANSPORT), key(self.rank, number), plan.held(self.rank)
        await store.remove(store.keys)
        self.me.array = store.reserve(name, {TENSOR: TensorSpec("int32", plan.shape, box)})[TENSOR]
        fill(self.me.array, box, number)
        await store.publish(name)
        self.target = self.memory[: plan.shape[0] * plan.columns].reshape(plan.shape[0], plan.columns)

    def copy_local_rows(self, plan: Plan) -> None:
        """Copies the part of the target that this host produced itself."""
        held, target_box = plan.held(self.rank), plan.target_box(self.rank)
        kept = self.me.array[:, target_box.start[1] : target_box.stop[1]]
        np.copyto(self.target[held.start[0] : held.stop[0]], kept)

    async def direct(self, plan: Plan, number: int) -> int:
        """Returns the bytes read."""
        dispatcher = await self.me.dispatcher(TRANSPORT)
        slabs = iter(plan.slabs(self.nics.slabs))
        others, target_box = plan.others(self.rank), plan.target_box(self.rank)

        async def work() -> int:
            read_bytes = 0
            for first, stop in slabs:
                size = (stop - first) * plan.columns * DTYPE.itemsize
                sizes = {(host, EGRESS): size for host in others}
                sizes[self.rank, INGRESS] = size * len(others)
                reads: list[Read] = []
                for host in others:
                    rows = host * plan.rows + first, host * plan.rows + stop
                    box = Box((rows[0], target_box.start[1]), (rows[1], target_box.stop[1]))
                    reads.append(Read((key(host, number),), TENSOR, box, self.target[rows[0] : rows[1]]))
                async with self.nics.carrying(sizes):
                    read_bytes += (await dispatcher.read(reads, WAIT_S)).size_bytes
            return read_bytes

        self.copy_local_rows(plan)
        return sum(await asyncio.gather(*(work() for _ in range(self.nics.in_progress))))

    async def central(self, plan: Plan) -> int:
        """Returns the bytes received."""
        if self._writer is None:
            host, port = self.address.split(":")
            self._reader, self._writer = await asyncio.open_connection(host, int(port), limit=STREAM_BYTES)
            self._writer.write(struct.pack("<I", self.rank))
        self.copy_local_rows(plan)
        _, received = await asyncio.gather(self._send(plan), self._receive(plan))
        return received

    async def _send(self, plan: Plan) -> None:
        for first, stop in plan.frames():
            for other in plan.others(self.rank):
                columns = plan.target_box(other)
                piece = self.me.array[first:stop, columns.start[1] : columns.stop[1]].tobytes()
                if self.rank != CONTROLLER_HOST:
                    await self.nics.carry({(self.rank, EGRESS): len(piece)})
                self._writer.write(_HEADER.pack(other, self.rank, first, len(piece)))
                self._writer.write(piece)
                await self._writer.drain()

    async def _receive(self, plan: Plan) -> int:
        due = self.target.nbytes * (plan.hosts - 1) // plan.hosts
        received = 0
        while received < due:
            _, sender, first, size = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            piece = np.frombuffer(await self._reader.readexactly(size), DTYPE).reshape(-1, plan.columns)
            if self.rank != CONTROLLER_HOST:
                await self.nics.carry({(self.rank, INGRESS): size})
            row = sender * plan.rows + first
            self.target[row : row + len(piece)] = piece
            received += size
        return received

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self.nics.close()


class CappedController:
    """Forwards frames between hosts, each through its own host's card, in and out at once."""

    def __init__(self, role: dict[str, Any]) -> None:
        self.nics = cards_of(role)
        self._queues: dict[int, asyncio.Queue[tuple[bytes, bytes]]] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._bind = role.get("bind", LOOPBACK)

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, self._bind, 0, limit=STREAM_BYTES)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def queue(self, host: int) -> asyncio.Queue[tuple[bytes, bytes]]:
        return self._queues.setdefault(host, asyncio.Queue())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = struct.unpack("<I", await reader.readexactly(4))[0]
        sending = asyncio.create_task(self._send(host, writer))
        self._tasks.add(sending)
        try:
            while True:
                header = await reader.readexactly(_HEADER.size)
                receiver, _, _, size = _HEADER.unpack(header)
                piece = await reader.readexactly(size)
                if host != CONTROLLER_HOST:
                    await self.nics.carry({(CONTROLLER_HOST, INGRESS): size})
                self.queue(receiver).put_nowait((header, piece))
        except asyncio.IncompleteReadError:
            sending.cancel()
            writer.close()

    async def _send(self, host: int, writer: asyncio.StreamWriter) -> None:
        while True:
            header, piece = await self.queue(host).get()
            if host != CONTROLLER_HOST:
                await self.nics.carry({(CONTROLLER_HOST, EGRESS): len(piece)})
            writer.write(header)
            writer.write(piece)
            await writer.drain()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        self.nics.close()


async def run_host(role: dict[str, Any]) -> None:
    """One host's process: runs its rounds and answers with the time of each; idle hosts get no command."""
    me = Member(role)
    host = Host(me, role)
    await me.store(TRANSPORT)
    await me.dispatcher(TRANSPORT)
    answer()
    try:
        async for command in commands():
            plan, number = Plan(command["hosts"], command["rows"]), command["number"]
            if command["do"] == "prepare":
                await host.prepare(plan, number)
                answer()
            elif command["do"] == "run":
                answer(armed=True)
                me.pass_gate()
                moved = await (
                    host.direct(plan, number) if command["way"] == "direct" else host.central(plan)
                )
                answer(at_ns=time.monotonic_ns(), moved_bytes=moved)
            else:
                answer(right=right(host.target, plan.target_box(host.rank), number))
    finally:
        await host.close()
        await me.close()


async def run_controller(role: dict[str, Any]) -> None:
    controller = CappedController(role)
    answer(address=await controller.start())
    async for _ in commands():
        answer()
    await controller.close()


ROLES = {"host": run_host, "controller": run_controller}


if __name__ == "__main__":
    main(ROLES)
