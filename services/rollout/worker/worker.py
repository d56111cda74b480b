"""One rollout worker: leases tickets by credit, plays them, reports them, follows the weights.

    lease loop ──► one task per episode (agent) ──► reporter ──► scheduler
        ▲ credit = free capacity                       │
        └──────────── reported ◄──────────────────────┘
    bus: WeightsPublished ──► weights ──► pool of engines      BatchCommitted ──► reporter.free
                 └──────────► frozen opponent, if there is one
    every third of a lease: renew; lost episodes are cancelled
    every heartbeat: load, gauges, busy spans, transfer totals; the answer may end the run

Promises: never more attempts held than capacity; nothing is leased before a host serves the
environment, nor while the arena is full or the engines sleep; the
first task that fails ends the worker with its error; leaving takes at most
drain_s, linger_s and a few seconds, and tickets that were not finished are pending again afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from earl.bus import Bus
from earl.bus.published import last_published
from earl.config.run import RunConfig
from earl.dispatch.publish.sequence_store import SequenceStore
from earl.env.base import Ending
from earl.errors import EarlError
from earl.scheduler_client import SchedulerClient
from earl.waiting import until_first
from services.rollout.pool.pool import EnginePool
from services.rollout.worker.actions import session_name
from services.rollout.worker.agent import EpisodeAgent
from services.rollout.worker.frozen_opponent import FrozenOpponent
from services.rollout.worker.gauges import Gauges, WorkerLoad
from services.rollout.worker.host_wait import HostWait
from services.rollout.worker.leases import Leases
from services.rollout.worker.pinned_weights import PinnedWeights
from services.rollout.worker.reporter import Reporter
from services.rollout.worker.sequence_moves import MovableSequences
from services.rollout.worker.ticket import EpisodeOutcome, EpisodeTicket
from services.rollout.worker.ticket_client import TicketClient
from services.rollout.worker.weight_follower import WeightFollower

log = logging.getLogger(__name__)

# A lease call waits this long for the first ticket; also how long leaving may wait for it to return.
LEASE_WAIT_S = 2.0
# Capacity that frees within this time is asked for in one call.
LEASE_WINDOW_S = 0.01
LEAVE_S = 2.0


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """The resources of a worker; service.py opens and closes it.

    rejoined: set whenever the scheduler had given this worker up and took it back. opponent: None unless the
    run trains against frozen versions. weights: pinned where tickets are (RunConfig.pinned). unserved: raises
    once the worker's arena cannot be read over the wire any more.
    """

    scheduler: SchedulerClient
    bus: Bus
    store: SequenceStore
    pool: EnginePool
    agent: EpisodeAgent
    gauges: Gauges
    weights: WeightFollower | PinnedWeights
    rejoined: asyncio.Event
    hosts: HostWait
    opponent: FrozenOpponent | None = None
    unserved: Callable[[], Coroutine[Any, Any, None]] | None = None


class RolloutWorker:
    """Leases tickets and plays them until it is stopped. leases: bounds the episodes at once."""

    def __init__(self, config: RunConfig, resources: WorkerResources, leases: Leases) -> None:
        self._config = config
        self._scheduler = resources.scheduler
        self._tickets = TicketClient(resources.scheduler)
        self._bus = resources.bus
        self._store = resources.store
        self._pool = resources.pool
        self._agent = resources.agent
        self._gauges = resources.gauges
        self.leases = leases
        self.reporter = Reporter(resources.store, self._tickets, self._reported)
        self._weights = resources.weights
        self._rejoined = resources.rejoined
        self._hosts = resources.hosts
        self._opponent = resources.opponent
        self._unserved = resources.unserved
        self._episodes: dict[EpisodeTicket, asyncio.Task[EpisodeOutcome]] = {}
        self._movable: MovableSequences | None = None
        if config.scheduler.length_order != "drawn":
            self._movable = MovableSequences(resources.pool.router, lambda: resources.gauges.engines)
        # Set whenever an attempt was given up or the arena got free space: credit may have grown.
        self._credit = asyncio.Event()
        # When the run began; devices may come and go since.
        self._devices = resources.pool.parallelism.devices
        self._empty = asyncio.Event()
        self._lease_call = asyncio.Lock()
        self._draining = self._leaving = False
        self._run_ended = asyncio.Event()

    @property
    def episodes(self) -> int:
        """Number of episodes in progress."""
        return len(self._episodes)

    # --- life ---------------------------------------------------------------------------------

    async def run(self, address: str, stop: asyncio.Event) -> None:
        """Joins as reachable at `address` and works until `stop` is set or the scheduler ends the run.

        Raises the first error of any part: ServiceUnavailable, BusUnavailable, ProcessFailed, ...
        """
        after = await self._bus.last_id()
        membership = await self._scheduler.join(address)
        published = await last_published(self._bus, until=after)
        version, keys = published or (membership.version, membership.weight_keys)
        if version:
            self._offer(version, keys)
        works = self._background(after)
        tasks = [asyncio.create_task(work, name=name) for name, work in works]
        try:
            await _until_first(tasks, stop.wait(), self._run_ended.wait())
            if not self._run_ended.is_set():
                await self._finish(tasks)
        finally:
            tasks += self._episodes.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self._run_ended.is_set():
            await self._leave()

    def _background(self, after: str) -> list[tuple[str, Coroutine]]:
        return [
            ("leases", self._lease()),
            ("reports", self.reporter.run()),
            ("renewals", self._renew()),
            ("heartbeats", self._heartbeat()),
            ("weights", self._weights.run()),
            ("bus", self._follow(after)),
            ("engines", self._pool.run()),
            ("forgotten", self._forget()),
            *([("opponent", self._opponent.run())] if self._opponent is not None else []),
            *([("arena", self._unserved())] if self._unserved is not None else []),
        ]

    async def drain(self, wait_s: float) -> int:
        """Leases no more and waits up to wait_s for the episodes that run; returns how many remain."""
        self._draining = True
        with contextlib.suppress(TimeoutError):  # the caller learns how many remain
            async with asyncio.timeout(wait_s):
                await self._drained()
        return len(self.leases)

    async def _finish(self, tasks: list[asyncio.Task]) -> None:
        """Plays and reports for drain_s, then serves what was published to the trainer for linger_s."""
        self._draining = self._leaving = True
        rollout = self._config.rollout
        for wait, wait_s in ((self._drained, rollout.drain_s), (self._read, rollout.linger_s)):
            await _until_first(tasks, wait(), timeout_s=wait_s)

    async def _leave(self) -> None:
        """Leaves: the scheduler gives the tickets that are still held to other workers at once."""
        try:
            await self._scheduler.leave("drained", LEAVE_S)
        except EarlError as error:
            log.warning("the scheduler was not told that this worker leaves: %s", error)

    async def _drained(self) -> None:
        async with self._lease_call:
            pass  # tickets of a call in flight are returned
        while self.leases:
            self._empty.clear()
            await self._empty.wait()

    async def _read(self) -> None:
        """Returns when the arena holds nothing that the trainer may still read."""
        while self.reporter.published:
            self._credit.clear()
            await self._credit.wait()

    # --- tickets ------------------------------------------------------------------------------

    async def _lease(self) -> None:
        await self._hosts.served()
        while True:
            if self._draining or self.reporter.blocked or self.leases.free == 0:
                self._credit.clear()
                await self._credit.wait()
                await asyncio.sleep(LEASE_WINDOW_S)
                continue
            await self._pool.wait_awake()
            await self._weights.wait_begun()
            async with self._lease_call:
                tickets, run_ends = await self._tickets.lease(
                    self.leases.free, LEASE_WAIT_S, self.leases.newest_fence
                )
                now_s = time.monotonic()
                for ticket in tickets:
                    self.leases.take(ticket, now_s)
                    self._begin(ticket)
            if run_ends:
                # The trainer still reads this worker's arena: a heartbeat's answer says when it may leave.
                self._draining = True

    def _begin(self, ticket: EpisodeTicket) -> None:
        if self._leaving:
            self.leases.give_up(ticket)  # leaving gives it back
            return
        if self._draining:
            self.reporter.add(ticket, _leaving_outcome())
            return
        self._prefer(ticket, ticket.engine)
        task = asyncio.create_task(self._agent.play(ticket))
        self._episodes[ticket] = task
        task.add_done_callback(lambda task: self._ended(ticket, task))

    def _ended(self, ticket: EpisodeTicket, task: asyncio.Task[EpisodeOutcome]) -> None:
        del self._episodes[ticket]
        self._prefer(ticket, None)
        if ticket not in self.leases:
            return  # the lease was lost: there is nobody to report to
        if task.cancelled():
            outcome = _leaving_outcome()
        elif (error := task.exception()) is not None:
            log.error("the episode of ticket %d failed", ticket.ticket_id, exc_info=error)
            outcome = EpisodeOutcome(Ending.INFRA_ERROR, message=f"{type(error).__name__}: {error}")
        else:
            outcome = task.result()
        self._gauges.ended(outcome)
        self.reporter.add(ticket, outcome)

    def _prefer(self, ticket: EpisodeTicket, engine: int | None) -> None:
        """Lets the contexts of an episode begin at the engine that it is planned for."""
        for seat in ticket.seats:
            self._pool.router.prefer(session_name(seat), engine)

    def _reported(self, ticket: EpisodeTicket) -> None:
        self.leases.give_up(ticket)
        self._credit.set()
        if not self.leases:
            self._empty.set()

    async def _renew(self) -> None:
        # Where groups are closed early, leases end in every step.
        level = logging.INFO if self._config.scheduler.early_close else logging.WARNING
        while True:
            now_s = time.monotonic()
            due = self.leases.due(now_s)
            if due:
                for ticket in self.leases.lost(await self._tickets.renew(due)):
                    log.log(
                        level, "the lease of ticket %d attempt %d was lost", ticket.ticket_id, ticket.attempt
                    )
                    self._reported(ticket)
                    task = self._episodes.get(ticket)
                    if task is not None:
                        task.cancel("lease lost")
            next_s = self.leases.next_due_s()
            pause_s = 0.5 if next_s is None else next_s - time.monotonic()
            await asyncio.sleep(min(max(pause_s, 0.05), 0.5))

    # --- bus and heartbeats -------------------------------------------------------------------

    async def _follow(self, after: str) -> None:
        async for _, event in self._bus.follow(after):
            fact = event.WhichOneof("fact")
            if fact == "weights_published":
                self._offer(event.weights_published.version, event.weights_published.descriptor_keys)
            elif fact == "batch_committed":
                await self.reporter.free(event.batch_committed.descriptor_keys)
                self._credit.set()

    def _offer(self, version: int, keys: Sequence[str]) -> None:
        if self._weights.offer(version, keys):
            # Tickets that are played here may be among those that were rolled back: their leases are lost.
            self.leases.make_due(time.monotonic())
        if self._opponent is not None:
            self._opponent.offer(version)

    async def _forget(self) -> None:
        """Frees, after a rejoin, everything that was published before: the scheduler does not count on it, so
        nobody will ever consume it."""
        while True:
            await self._rejoined.wait()
            self._rejoined.clear()
            log.warning("the scheduler had given this worker up: its leases and its arena count as lost")
            await self.reporter.free_all()
            self._credit.set()

    async def _heartbeat(self) -> None:
        while True:
            least_s = self._scheduler.heartbeat_s
            await self._gauges.refresh(timeout_s=least_s / 4)
            version = self._pool.version
            self.follow_devices()
            self._scheduler.set_parallelism(self._pool.parallelism, self._pool.epoch)
            self._scheduler.devices = self._gauges.devices() or self._scheduler.devices
            reply = await self._scheduler.heartbeat(
                running=len(self.leases),
                version=version,
                gauges=self._gauges.values(self.load(), time.monotonic()),
                spans=self._gauges.take_spans(time.time_ns()),
                transfers=self._gauges.transfers(),
                sequences=self._movable.report(self._episodes) if self._movable is not None else (),
            )
            if self._movable is not None:
                await self._movable.move(reply.moves)
            if reply.refused_context_tokens:
                self._pool.router.refuse(reply.refused_context_tokens)
            if reply.stop:
                self._run_ended.set()
                return
            due_s = time.monotonic() + reply.next_s
            # A new version is reported at once: what is leased next depends on it. So is a sequence that no
            # engine can hold; and a draining worker asks as often as if it were alone.
            while (left_s := due_s - time.monotonic()) > 0:
                await self._pool.wait_other(version, min(least_s, left_s))
                if self._draining or self._pool.router.blocked or self._pool.version != version:
                    break

    def follow_devices(self) -> None:
        """Takes as many episodes as the engines hold that the pool has now."""
        before = self.leases.capacity
        self.leases.scale(self._pool.parallelism.devices / self._devices)
        if self.leases.capacity > before:
            self._credit.set()

    def load(self) -> WorkerLoad:
        """Returns the worker's load."""
        arena = self._store.arena
        return WorkerLoad(
            running=len(self._episodes),
            unreported=len(self.leases) - len(self._episodes),
            arena_used_fraction=1.0 - arena.free_bytes / arena.capacity_bytes,
            arena_blocked=self.reporter.blocked,
            waits_for_host_s=self._hosts.seconds,
        )


def _leaving_outcome() -> EpisodeOutcome:
    message = "the worker is leaving; the episode is played elsewhere"
    return EpisodeOutcome(Ending.INFRA_ERROR, message=message)


async def _until_first(
    tasks: Sequence[asyncio.Task], *waits: Coroutine[Any, Any, Any], timeout_s: float | None = None
) -> None:
    """Returns when a task or a wait has ended, or after timeout_s; raises the error that it ended with."""
    await until_first(*tasks, *waits, timeout_s=timeout_s)
    for task in tasks:
        error = task.exception() if task.done() else None
        if error is None:
            continue
        if not isinstance(error, EarlError):
            log.error("%s failed", task.get_name(), exc_info=error)
        raise error
