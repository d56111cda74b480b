"""Reports over a real Valkey, a real arena and a gRPC scheduler whose verdicts the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from earl.bus import Bus, EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.publish.sequence_store import SequenceStore
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher, SequenceRead
from earl.dispatch.registry.registry import Registry
from earl.env.base import Ending
from earl.episode_contract import SAMPLED_COLUMNS
from earl.errors import DescriptorMissing
from earl.parallelism import Parallelism
from earl.rpc.access import OPEN
from earl.rpc.server import Server
from earl.scheduler_client import SchedulerClient
from earl.v1 import common_pb2, scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server
from services.rollout.episode import columns
from services.rollout.worker.reporter import Reporter
from services.rollout.worker.ticket import EpisodeOutcome, EpisodeTicket
from services.rollout.worker.ticket_client import TicketClient

KEY = "trajectories/rollout-0/1#{}/1"
TICKET = EpisodeTicket(
    ticket_id=1,
    attempt=1,
    fence=10,
    publish=True,
    scripted=False,
    environment="e",
    label="e",
    task_json="{}",
    env_seed=0,
    sample_seed=0,
    min_version=0,
    temperature=1.0,
    episode_s=60.0,
    lease_s=30.0,
    max_turns=9,
)


class Judge(SchedulerServiceServicer):
    """Accepts what is reported, but refuses the tickets in `refuse` and has those in `retry` played again.

    Answers only while `answers` is set.
    """

    def __init__(self) -> None:
        self.refuse: set[int] = set()
        self.retry: set[int] = set()
        self.called = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()
        self.calls: list[scheduler_pb2.CompleteTicketsRequest] = []

    async def CompleteTickets(self, request, context):
        self.calls.append(request)
        self.called.set()
        await self.answers.wait()
        answer = scheduler_pb2.CompleteTicketsResponse()
        for result in request.results:
            verdict, reason = self.judge(result.attempt.ticket_id)
            answer.items.add(attempt=result.attempt, verdict=verdict, reason=reason)
        return answer

    def judge(self, ticket_id: int) -> tuple[scheduler_pb2.Verdict, str]:
        if ticket_id in self.refuse:
            return scheduler_pb2.VERDICT_REFUSED, "fence"
        if ticket_id in self.retry:
            return scheduler_pb2.VERDICT_RETRIED, "reward is nan"
        return scheduler_pb2.VERDICT_ACCEPTED, ""


class Bench:
    """A reporter with everything that it stands on, and a reader of what it publishes."""

    def __init__(self, judge: Judge, store: SequenceStore, tickets: TicketClient, reader: Dispatcher) -> None:
        self.judge = judge
        self.store = store
        self.reporter = Reporter(store, tickets, lambda ticket: self.answered.put_nowait(ticket))
        self.reader = reader
        self.answered: asyncio.Queue[EpisodeTicket] = asyncio.Queue()

    async def reported(self, count: int) -> set[int]:
        """Ids of the next `count` tickets that the scheduler has answered for."""
        async with asyncio.timeout(10):
            return {(await self.answered.get()).ticket_id for _ in range(count)}


@asynccontextmanager
async def bench(directory: Path, arena_bytes: int = 1 << 20) -> AsyncIterator[Bench]:
    valkey, server, judge = EmbeddedValkey(), Server("judge", "127.0.0.1:0"), Judge()
    server.add(add_SchedulerServiceServicer_to_server, judge, "earl.v1.SchedulerService")
    bus = await Bus.connect(await valkey.start(directory / "valkey"), "reports")
    config = DataPlaneConfig()
    registry = Registry(bus.redis, bus.prefix, config.descriptor_lease_s)
    store = await TensorStore.open(
        registry, config, directory / "arenas", "rollout-0", incarnation=1, size_bytes=arena_bytes
    )
    reader = await Dispatcher.create(registry, config)
    address = await server.start()
    scheduler = SchedulerClient(
        address,
        OPEN,
        stage="rollout",
        name="rollout-0",
        incarnation=1,
        capacity=8,
        parallelism=Parallelism(),
        heartbeat_s=1.0,
        retry_s=10.0,
    )
    sequences = store.sequences(columns.registry_key("rollout-0", 1), list(SAMPLED_COLUMNS.items()))
    made = Bench(judge, sequences, TicketClient(scheduler), reader)
    task = asyncio.create_task(made.reporter.run())
    try:
        yield made
        assert not task.done(), task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await scheduler.close()
        await server.stop()
        await reader.close()
        await store.close()
        await bus.close()
        await valkey.stop()


def played(tokens: int = 3, ending: Ending = Ending.OK) -> EpisodeOutcome:
    outcome = EpisodeOutcome(ending, reward=1.0, metrics={"win": 1.0})
    outcome.columns.observe(list(range(tokens)), version=2)
    outcome.columns.act([7, 8], [-0.5, -0.25], [2, 3])
    return outcome


async def read(bench: Bench, key: str, name: str, dtype: type, length: int) -> list:
    into = np.zeros(length, dtype)
    read = SequenceRead([key], np.array([length]), {name: into})
    await bench.reader.read([read], deadline_s=10.0)
    return into.tolist()


async def test_what_finishes_together_is_reported_together_and_can_be_read(tmp_path):
    async with bench(tmp_path) as it:
        for number in range(1, 21):
            it.reporter.add(replace(TICKET, ticket_id=number), played())
        it.reporter.add(replace(TICKET, ticket_id=21, publish=False), played())
        it.reporter.add(
            replace(TICKET, ticket_id=22), EpisodeOutcome(Ending.INFRA_ERROR, message="lost\nhost")
        )
        assert await it.reported(22) == set(range(1, 23))
        assert len(it.judge.calls) == 1
        results = {result.attempt.ticket_id: result for result in it.judge.calls[0].results}
        assert len(results) == 22 and it.answered.empty()
        first = results[1]
        assert first.descriptor_key == KEY.format(1)
        assert (first.prompt_tokens, first.total_tokens, first.trained_tokens, first.turns) == (3, 5, 2, 1)
        assert (first.oldest_version, first.newest_version, list(first.turn_tokens)) == (2, 3, [5])
        assert (first.ending, first.reward, dict(first.metrics)) == (common_pb2.ENDING_OK, 1.0, {"win": 1.0})
        assert (results[21].descriptor_key, results[22].descriptor_key) == ("", "")
        assert (results[22].ending, results[22].message) == (common_pb2.ENDING_INFRA_ERROR, "lost host")
        assert await read(it, KEY.format(20), "tokens", np.int32, 5) == [0, 1, 2, 7, 8]
        assert await read(it, KEY.format(20), "loss_mask", np.uint8, 5) == [0, 0, 0, 1, 1]
        assert await read(it, KEY.format(20), "logprobs", np.float32, 5) == [0, 0, 0, -0.5, -0.25]
        assert await read(it, KEY.format(20), "versions", np.int32, 5) == [2, 2, 2, 2, 3]


async def test_trajectories_that_were_committed_or_not_accepted_leave_the_arena(tmp_path):
    async with bench(tmp_path) as it:
        it.judge.refuse, it.judge.retry = {2}, {4}
        for number in (1, 2, 3, 4):
            it.reporter.add(replace(TICKET, ticket_id=number), played())
        assert await it.reported(4) == {1, 2, 3, 4}
        assert sorted(it.store.names) == ["1/1", "3/1"]
        with pytest.raises(DescriptorMissing):
            await read(it, KEY.format(2), "tokens", np.int32, 5)
        await it.reporter.free([KEY.format(1), KEY.format(3), "trajectories/rollout-0/1#99/1"])
        assert it.store.names == []
        assert it.store.arena.free_bytes == it.store.arena.capacity_bytes


async def test_a_batch_that_is_committed_before_the_answer_arrives_leaves_the_arena(tmp_path):
    async with bench(tmp_path) as it:
        it.judge.answers.clear()
        it.reporter.add(TICKET, played())
        async with asyncio.timeout(10):
            await it.judge.called.wait()
        await it.reporter.free([KEY.format(1)])
        it.judge.answers.set()
        assert await it.reported(1) == {1}
        assert (it.store.names, it.reporter.published) == ([], set())


async def test_a_full_arena_holds_reports_back_until_a_batch_is_committed(tmp_path):
    async with bench(tmp_path, arena_bytes=1 << 16) as it:
        for number in range(1, 5):
            it.reporter.add(replace(TICKET, ticket_id=number), played(tokens=1300))
        it.reporter.add(replace(TICKET, ticket_id=9, publish=False), played(tokens=1300))
        # What needs no room is not held up.
        assert await it.reported(3) == {1, 2, 9}
        assert it.reporter.blocked and len(it.reporter) == 2
        await it.reporter.free([KEY.format(1), KEY.format(2)])
        assert await it.reported(2) == {3, 4}
        assert not it.reporter.blocked


async def test_an_arena_that_stays_full_fails_the_attempt_after_its_own_bound(tmp_path):
    async with bench(tmp_path, arena_bytes=1 << 16) as it:
        it.reporter.add(replace(TICKET, episode_s=0.05), played(tokens=100_000))
        assert await it.reported(1) == {1}
        (result,) = it.judge.calls[0].results
        assert result.ending == common_pb2.ENDING_INFRA_ERROR
        assert "arena full" in result.message
