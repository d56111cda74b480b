"""The parts of the benchmark, each with its own processes.

steady  every worker begins a cycle at its time, for a load of `rate` tickets a second: rate,
        latency of each call, memory over many tickets
most    every worker repeats without pauses: the highest rate, with appendfsync always and everysec in turn
mixture a mixture of several environments without pauses, in turns with one environment
drill   workers die while they hold tickets, answers are lost: does every ticket exist exactly once?
script  the ledger's Lua script alone: how many transitions could be stored
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from benchmarks.control.processes import BenchProcesses, ControlLoad, started
from benchmarks.mixture_cost import in_turns
from benchmarks.record.progress import counted, phase
from earl.bus import Bus, EmbeddedValkey
from earl.errors import EarlError
from earl.v1 import scheduler_pb2
from services.scheduler.journal.redis_store import LedgerStore
from services.scheduler.state.stored import LedgerChanges, RecordChange, encode
from services.scheduler.state.tickets import Purpose, Ticket

WINDOW_S = 5.0
# Before anything is measured, and after a change.
SETTLE_S = 3.0
# Tickets after which memory must not grow any more: the streams are full, every structure has had its most.
FULL = 200_000
SCRIPT_CHANGES = 64
SCRIPT_TICKETS = 1_024


@dataclass(frozen=True, slots=True)
class Window:
    """An interval: its seconds, tickets closed in it, and processor time by kind of process."""

    seconds: float
    tickets: int
    closed: int
    cpu_s: dict[str, float]
    rss_mib: dict[str, float]

    @property
    def tickets_per_s(self) -> float:
        return self.tickets / self.seconds


class Windows:
    """Consecutive windows of one load."""

    def __init__(self, made: BenchProcesses) -> None:
        self._made = made
        self._last: tuple[float, int, dict[str, float]] | None = None

    async def next(self, seconds: float = WINDOW_S) -> Window:
        """The next window of so many seconds; it begins where the last one ended."""
        if self._last is None:
            self._last = await self._now()
        await asyncio.sleep(seconds)
        before, now = self._last, await self._now()
        self._last = now
        used = {name: round(now[2][name] - before[2][name], 2) for name in now[2]}
        return Window(now[0] - before[0], now[1] - before[1], now[1], used, self._made.rss_mib)

    async def _now(self) -> tuple[float, int, dict[str, float]]:
        ledger = (await self._made.status()).ledger
        return time.monotonic(), ledger.trained + ledger.evaluated, self._made.cpu_s


async def steady(
    directory: Path, load: ControlLoad, rate: float, tickets: int, profile: bool
) -> dict[str, Any]:
    """Figures of a steady rate until so many tickets are closed."""
    path = directory / "profile.json" if profile else None
    phase("steady: tickets", 0, tickets)
    async with started(directory, load, path) as made:
        began = time.monotonic()
        await made.play(period_s=load.workers * load.credit / rate, hold_s=load.hold_s, kill=0.0, repeat=0.0)
        await asyncio.sleep(SETTLE_S)
        await _latencies(made)
        windows, each = Windows(made), []
        while not each or each[-1].closed < tickets:
            each.append(await windows.next())
            phase("steady: tickets", min(each[-1].closed, tickets), tickets)
            if each[-1].tickets == 0:
                raise EarlError(
                    f"no ticket was closed within {WINDOW_S:g} s: {await made.status()}",
                    "ask for a lower --rate, or for fewer --workers",
                )
        rpcs = await _latencies(made)
        ended = await finish(made)
        seconds = time.monotonic() - began
    figures = {
        "tickets_per_s": round(statistics.median(window.tickets_per_s for window in each), 1),
        "tickets_per_s_least": round(min(window.tickets_per_s for window in each), 1),
        "lease_p50_ms": rpcs["LeaseTickets"]["p50_ms"],
        "lease_p99_ms": rpcs["LeaseTickets"]["p99_ms"],
        "rpcs": rpcs,
        "cpu_us_per_ticket": _cpu_us(each),
        "rss_mib": each[-1].rss_mib,
        "rss_growth_mib": growth(each),
        "rss_over_tickets": [[window.closed, window.rss_mib] for window in each[:: max(1, len(each) // 16)]],
        "seconds": round(seconds, 1),
        **ended,
    }
    if path is not None:
        figures["profile"] = json.loads(path.read_text())
    return figures


async def most(directory: Path, load: ControlLoad, seconds: float, rounds: int) -> dict[str, Any]:
    """The rate without pauses, with each of Valkey's two ways to store in turn."""
    phase("most: starting the processes")
    rates: dict[str, list[float]] = {"always": [], "everysec": []}
    async with started(directory, load) as made:
        await made.play(period_s=0.0, hold_s=0.0, kill=0.0, repeat=0.0)
        for number in counted("most: rounds", range(rounds)):
            order = ("always", "everysec") if number % 2 == 0 else ("everysec", "always")
            for fsync in order:
                await made.durability(fsync)
                await asyncio.sleep(SETTLE_S)
                rates[fsync].append((await Windows(made).next(seconds)).tickets_per_s)
        await made.durability("always")
        ended = await finish(made)
    return {
        "most_tickets_per_s": round(statistics.median(rates["always"]), 1),
        "most_tickets_per_s_everysec": round(statistics.median(rates["everysec"]), 1),
        "most_rounds": {name: [round(rate, 1) for rate in measured] for name, measured in rates.items()},
        "most_ledger": ended["ledger"],
    }


async def mixture(
    directory: Path, load: ControlLoad, environments: int, seconds: float, rounds: int
) -> dict[str, Any]:
    """The rate without pauses of a mixture of environments over that of one, in turns.

    Every measurement has its own processes, and its ledger is checked.
    """
    loads = {count: replace(load, environments=count) for count in (1, environments)}

    async def measured(count: int, number: int) -> float:
        async with started(directory / f"{number}-{count}", loads[count]) as made:
            await made.play(period_s=0.0, hold_s=0.0, kill=0.0, repeat=0.0)
            await asyncio.sleep(SETTLE_S)
            rate = (await Windows(made).next(seconds)).tickets_per_s
            await finish(made)
        return rate

    return await in_turns(measured, environments, rounds)


async def drill(
    directory: Path, load: ControlLoad, rate: float, seconds: float, kill: float, repeat: float
) -> dict[str, Any]:
    """kill: share of the workers that die in that time; repeat: of reports that are sent twice."""
    period_s = load.workers * load.credit / rate
    phase(f"drill of {seconds:g} s")
    async with started(directory, load) as made:
        await made.play(period_s=period_s, hold_s=load.hold_s, kill=kill * period_s / seconds, repeat=repeat)
        await asyncio.sleep(seconds)
        return {"drill": {"kill": kill, "repeat": repeat, "seconds": seconds, **await finish(made)}}


async def finish(made: BenchProcesses) -> dict[str, Any]:
    """Ends the load and compares the accounts of all processes.

    Raises EarlError if a ticket is lost or came twice, or if a report that was sent again was answered
    otherwise without a reason.
    """
    players = [await role.ask(do="stop") for role in made.players]
    differing = [item for player in players for item in player["otherwise"]]
    trained = await made.trainer.ask(do="stop", tickets=[item["ticket"] for item in differing])
    ledger = (await made.status()).ledger
    counts: dict[str, int] = {}
    for player in players:
        for name, count in player["counts"].items():
            counts[name] = counts.get(name, 0) + count
    checkpointed_s = {int(ticket): at_s for ticket, at_s in trained["checkpointed_s"].items()}
    wrong = _wrong(ledger, trained)
    wrong += answered_wrongly(differing, checkpointed_s, sum(ledger.dropped.values()))
    if wrong:
        raise EarlError(f"the ledger is not exact: {'; '.join(wrong)}", "this is a defect of EARL: report it")
    shown = {
        name: getattr(ledger, name)
        for name in ("issued", "trained", "evaluated", "pending", "leased", "ready", "planned")
    }
    return {
        "ledger": {**shown, "dropped": dict(ledger.dropped)},
        "exact": True,
        "batches": trained["batches"],
        "players": counts,
    }


def _wrong(ledger: scheduler_pb2.LedgerCounts, trained: dict[str, int]) -> list[str]:
    live = ledger.pending + ledger.leased + ledger.ready + ledger.planned
    closed = ledger.trained + ledger.evaluated + sum(ledger.dropped.values())
    wrong = []
    if ledger.issued != closed + live:
        wrong.append(f"{ledger.issued} were issued, {closed} are closed and {live} live")
    if ledger.trained != trained["trained"]:
        wrong.append(f"{ledger.trained} count as trained, the trainer has {trained['trained']}")
    if trained["twice"]:
        wrong.append(f"{trained['twice']} were given to the trainer twice")
    return wrong


def answered_wrongly(
    differing: Sequence[Mapping[str, Any]], checkpointed_s: Mapping[int, float], dropped: int
) -> list[str]:
    """Returns the faults of answers to reports that were sent twice, a line for each ticket.

    The ledger accepts a repeated report for as long as it knows the ticket. It forgets one that is closed
    for good: trained and recorded in a checkpoint, evaluated, or dropped with its group. Then a repetition is
    refused, and nobody needs the ticket's columns any more. A refusal before that would have the worker free
    columns that a planned batch will read.

    differing: as Players.stop returns them. checkpointed_s: when the checkpoint that holds a ticket was sent,
    on the same clock. dropped: tickets of groups that were given up; as many refusals cannot be judged.
    """
    wrong = []
    unjudged = dropped
    for item in differing:
        ticket, verdict = item["ticket"], item["verdict"]
        if verdict != "VERDICT_REFUSED":
            wrong.append(f"ticket {ticket} was accepted, and its repeated report answered {verdict}")
            continue
        if item["evaluation"] or checkpointed_s.get(ticket, math.inf) <= item["time_s"]:
            continue
        if unjudged > 0:
            unjudged -= 1
            continue
        wrong.append(f"ticket {ticket} was accepted, and its repeated report refused before it was closed")
    return wrong


async def script(directory: Path, seconds: float) -> dict[str, Any]:
    """The script on changes that were packed before, SCRIPT_CHANGES a call, one call after the other."""
    phase(f"the script alone, for {seconds:g} s")
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(directory), "bench-script", source="benchmark")
    try:
        store = LedgerStore(bus)
        await store.open()
        tickets = [
            Ticket(id=number, group=number // 16, purpose=Purpose.TRAIN, env_seed=number, sample_seed=number,
                   min_version=1, temperature=1.0)
            for number in range(SCRIPT_TICKETS)
        ]  # fmt: skip
        calls = 0
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            first = calls * SCRIPT_CHANGES % SCRIPT_TICKETS
            records = []
            for number, former in enumerate(tickets[first : first + SCRIPT_CHANGES], first):
                before = former.head if former.fence else ""
                ticket = tickets[number] = structs.replace(former, fence=former.fence + 1)
                records.append(RecordChange("ticket", str(ticket.id), before, encode(ticket)))
            await store.apply(LedgerChanges(tuple(records)))
            calls += 1
        return {"script_transitions_per_s": round(calls * SCRIPT_CHANGES / (time.monotonic() - began), 1)}
    finally:
        await bus.close()
        await valkey.stop()


async def _latencies(made: BenchProcesses) -> dict[str, Any]:
    """Returns by method the calls since the last time, and the worst quantiles of all processes, in ms."""
    answers = [
        await role.ask(do=do)
        for role, do in [*((player, "latencies") for player in made.players), (made.trainer, "say")]
    ]
    worst: dict[str, dict[str, float]] = {}
    for answer in answers:
        for name, figures in answer["rpcs"].items():
            before = worst.setdefault(name, dict.fromkeys(figures, 0))
            for figure, value in figures.items():
                worse = before[figure] + value if figure == "calls" else max(before[figure], value)
                before[figure] = round(worse, 3)
    return worst


def _cpu_us(each: list[Window]) -> dict[str, float]:
    tickets = sum(window.tickets for window in each)
    return {
        name: round(sum(window.cpu_s[name] for window in each) / tickets * 1e6, 1) for name in each[0].cpu_s
    }


def growth(each: list[Window]) -> dict[str, float] | None:
    """Between the medians of the first and the last windows after FULL tickets; None if those are too few."""
    full = [window for window in each if window.closed >= FULL]
    if len(full) < 2:
        return None
    some = max(1, len(full) // 5)
    return {
        name: round(
            statistics.median(window.rss_mib[name] for window in full[-some:])
            - statistics.median(window.rss_mib[name] for window in full[:some]),
            1,
        )
        for name in full[0].rss_mib
    }
