"""`earl bench reshard --hosts`: from a publisher to every engine of other hosts, over links of a known rate.

    host 0: publisher ══ link ══ switch ══ link ══ host 1: copy ─► engines
                                        ══ link ══ host 2: copy ─► engines

Hosts are namespaces, each with a link that the kernel limits (benchmarks.network).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.children import REPORT, MeasurementWrong
from benchmarks.network.links import MTU_BYTES, Link
from benchmarks.network.rig import Rig, network
from benchmarks.record.progress import counted, phase
from benchmarks.reshard.cases import CARRIER
from benchmarks.reshard.coding_rates import ELEMENTS, coding_rates
from benchmarks.role import ANSWER_S, RoleProcess
from earl.bus import EmbeddedValkey
from earl.errors import ChecksumMismatch
from earl.models.spec import ModelSpec

MODULE = "benchmarks.reshard.host_roles"
# A host's own tmpfs.
ARENAS = "/dev/shm/arenas"
ENGINES = (1, 4)
# A version may take so many times what the link of the publisher allows, beside ANSWER_S.
SLACK = 10.0
COMPARES = (
    "Hosts are network namespaces of this machine, joined by a bridge; each has one full-duplex link, "
    "limited by tc tbf both ways, of packets with their headers. A publisher on host 0 has versions of a "
    "model of SmolLM2-135M's sizes (8 heads, 4 key-value heads), bfloat16, in two slots. On every other "
    "host one process keeps a rollout worker's copy (HostCopy, over UCX, all checksums verified), and 1 or "
    "4 processes apply a version: each copies it out of the host's copy through shared memory, verified, "
    "into arrays of its own, as large as the model. No model computes. The time is from the moment when a "
    "version's bits lie in the slot until the last engine has it: digests, descriptors and, for changes, "
    "comparing and coding are part of it. The first version is random bits; in each later one a fraction of "
    "the elements, chosen at random, has other random bits. whole: the version is published without "
    "changes, and read whole; changes: with them, and the copies read those alone. The ways take turns "
    "within a round; medians over the rounds; the digest of every engine's arrays is compared after each. "
    "whole_of_wire: the whole's time over its bytes ÷ the rate of one link. times_sooner: the whole's time "
    "over that of the changes. publisher_link_bytes: what crossed the publisher's link, with headers. "
    "Descriptors are fetched over a unix socket, not over the links."
)


@dataclass(frozen=True, slots=True)
class PublishingWay:
    """fraction: of the elements that are changed. changes: whether the changes are published."""

    name: str
    fraction: float
    changes: bool


WAYS = (
    PublishingWay("whole", 0.05, False),
    PublishingWay("changes_1_percent", 0.01, True),
    PublishingWay("changes_5_percent", 0.05, True),
)


@dataclass(frozen=True, slots=True)
class HostRound:
    """seconds: until the last engine had the version. known_s: of them, until it could be read."""

    seconds: float
    known_s: float
    copied_s: float
    link_bytes: int


class PublishingHosts:
    """Running processes on a rig's hosts."""

    def __init__(
        self,
        rig: Rig,
        publisher: RoleProcess,
        copies: Sequence[RoleProcess],
        engines: Sequence[Sequence[RoleProcess]],
        deadline_s: float,
    ) -> None:
        self._rig = rig
        self._publisher = publisher
        self._copies = copies
        self._engines = engines
        self._deadline_s = deadline_s
        self._version = 0

    @classmethod
    async def start(
        cls, stack: AsyncExitStack, rig: Rig, spec: ModelSpec, engines: int, deadline_s: float
    ) -> PublishingHosts:
        """`stack` ends them. engines: on each host but the first."""
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="earl-bench-")))
        valkey = EmbeddedValkey()
        stack.push_async_callback(valkey.stop)
        url = await valkey.start(directory / "valkey")
        model = asdict(spec)
        del model["rope"]

        async def start(role: str, host: int, name: str) -> RoleProcess:
            place = rig.hosts[host]
            made, _ = await RoleProcess.start(
                MODULE, enter=place.enter, role=role, name=name, redis=url, arenas=ARENAS,
                address=place.address, model=model,
            )  # fmt: skip
            stack.push_async_callback(made.stop)
            return made

        receivers = range(1, len(rig.hosts))
        publisher = await start("publisher", 0, "trainer")
        copies = await asyncio.gather(*(start("copy", host, f"rollout-{host}") for host in receivers))
        applying = [
            await asyncio.gather(*(start("engine", host, f"engine-{host}-{i}") for i in range(engines)))
            for host in receivers
        ]
        return cls(rig, publisher, copies, applying, deadline_s)

    async def publish(self, way: PublishingWay, engines: int) -> HostRound:
        """Brings the next version to so many engines of each host.

        Raises ChecksumMismatch where an engine has other bits, MeasurementWrong where a copy was not read as
        the way says.
        """
        self._version += 1
        version = {"version": self._version}
        slot = await self._ask(self._publisher, do="prepare", fraction=way.fraction, **version)
        before = self._rig.carried()[0].sent_bytes
        known = await self._ask(self._publisher, do="announce", changes=way.changes, **version)
        hosts = zip(self._copies, self._engines, strict=True)
        answers = await asyncio.gather(
            *(self._bring(copy, every[:engines], known["keys"]) for copy, every in hosts)
        )
        link_bytes = self._rig.carried()[0].sent_bytes - before
        if any(copied["changes"] != way.changes for copied, _ in answers):
            raise MeasurementWrong(f"{way.name}: a copy was read in another way", REPORT)
        ended_ns = max(applied["ended_ns"] for _, every in answers for applied in every)
        applying = [role for every in self._engines for role in every[:engines]]
        digests = {(await self._ask(role, do="check"))["digest"] for role in applying}
        if digests != {slot["digest"]}:
            raise ChecksumMismatch(f"{way.name}: an engine's arrays are not what was published", REPORT)
        if self._version > 1:
            await self._ask(self._publisher, do="withdraw", version=self._version - 1)
        began_ns = known["began_ns"]
        copied_ns = max(copied["copied_ns"] for copied, _ in answers)
        return HostRound(
            (ended_ns - began_ns) / 1e9,
            (known["known_ns"] - began_ns) / 1e9,
            (copied_ns - began_ns) / 1e9,
            link_bytes,
        )

    async def _bring(
        self, copy: RoleProcess, engines: Sequence[RoleProcess], keys: Sequence[str]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        bound = {"deadline_s": self._deadline_s}
        copied = await self._ask(copy, do="bring", version=self._version, keys=keys, **bound)
        applied = (self._ask(engine, do="apply", keys=copied["keys"], **bound) for engine in engines)
        return copied, list(await asyncio.gather(*applied))

    async def _ask(self, role: RoleProcess, **work: Any) -> dict[str, Any]:
        role.tell(**work)
        return await role.answer(self._deadline_s + ANSWER_S)


async def measure_hosts(
    spec: ModelSpec, hosts: int, gbps: float, rounds: int, engines: Sequence[int] = ENGINES
) -> dict[str, Any]:
    """The figures of all ways. Raises RigUnavailable where namespaces or their links are not permitted."""
    link = Link(gbps)
    size_bytes = CARRIER.itemsize * spec.parameters
    wire_s = size_bytes / link.bytes_per_s
    rates = {
        way.name: coding_rates(way.fraction, min(ELEMENTS, spec.parameters)) for way in WAYS if way.changes
    }
    phase(f"starting {hosts} hosts")
    taken: dict[tuple[int, str], list[HostRound]] = {(n, way.name): [] for n in engines for way in WAYS}
    with network(hosts, link) as rig:
        async with AsyncExitStack() as stack:
            deadline_s = ANSWER_S + SLACK * hosts * wire_s
            fleet = await PublishingHosts.start(stack, rig, spec, max(engines), deadline_s)
            # Connections, plans and pages; and a copy that changes lead on from.
            for way in WAYS:
                await fleet.publish(way, max(engines))
            for _ in counted("rounds", range(rounds)):
                for count in engines:
                    for way in WAYS:
                        taken[count, way.name].append(await fleet.publish(way, count))
    cases = [_figures(count, {way.name: taken[count, way.name] for way in WAYS}, wire_s) for count in engines]
    return {
        "compares": COMPARES,
        "hosts": hosts,
        "gbps": gbps,
        "mtu_bytes": MTU_BYTES,
        "rounds": rounds,
        "parameters": spec.parameters,
        "model_bytes": size_bytes,
        "wire_s": round(wire_s, 4),
        "whole_of_wire": max(case["whole_of_wire"] for case in cases),
        **{
            f"{way.name}_times_sooner": min(case[way.name]["times_sooner"] for case in cases)
            for way in WAYS
            if way.changes
        },
        "coding": rates,
        "engines": cases,
    }


def _figures(engines: int, taken: dict[str, list[HostRound]], wire_s: float) -> dict[str, Any]:
    """The figures of all ways with so many engines on each host."""
    figures: dict[str, Any] = {"per_host": engines}
    whole_s = statistics.median(each.seconds for each in taken["whole"])
    for name, rounds in taken.items():
        seconds = statistics.median(each.seconds for each in rounds)
        figures[name] = {
            "seconds": round(seconds, 4),
            "rounds_s": [round(each.seconds, 4) for each in rounds],
            "known_s": round(statistics.median(each.known_s for each in rounds), 4),
            "copied_s": round(statistics.median(each.copied_s for each in rounds), 4),
            "publisher_link_bytes": max(each.link_bytes for each in rounds),
            "times_sooner": round(whole_s / seconds, 2),
        }
        sys.stderr.write(f"{engines} engines a host, {name}: {seconds:.3f} s\n")
    return {**figures, "whole_of_wire": round(whole_s / wire_s, 2)}
