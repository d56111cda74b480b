"""A rollout worker that a test plays: leases tickets, makes up trajectories, follows the weights.

Trajectories are random tokens, so that only the trainer's and the scheduler's work is real.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import numpy as np

from earl.bus import Bus
from earl.dispatch.publish.tensor_store import TensorStore
from earl.dispatch.read.reader import Dispatcher
from earl.dispatch.registry.registry import Registry
from earl.episode_contract import SAMPLED_COLUMNS
from earl.rpc.client import Client
from earl.v1 import common_pb2, scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.rollout.episode.columns import registry_key
from tests.support.stack import Stack

NAME = "rollout-0"
CALL_S = 30.0
CAPACITY = 64


class PlayedRollout:
    """async with PlayedRollout(stack) as rollout: joined; `rollout.play(until)` serves tickets."""

    def __init__(self, stack: Stack, vocabulary: int = 4) -> None:
        self._stack = stack
        self._vocabulary = vocabulary
        # Version -> keys of what was published, as the bus said.
        self.published: dict[int, list[str]] = {}
        self.trained: list[int] = []
        self.version = 0
        self._held: list[scheduler_pb2.Ticket] = []

    async def __aenter__(self) -> PlayedRollout:
        stack, config = self._stack, self._stack.config.data_plane
        self.bus: Bus = await stack.bus()
        self.client = Client(stack.scheduler, SchedulerServiceStub)
        registry = Registry(self.bus.redis, self.bus.prefix, config.descriptor_lease_s)
        self.worker = common_pb2.Worker(
            name=NAME, incarnation=secrets.randbits(64), stage=common_pb2.STAGE_ROLLOUT
        )
        self.store = await TensorStore.open(
            registry, config, stack.arenas, NAME, incarnation=self.worker.incarnation, size_bytes=8 << 20
        )
        self.sequences = self.store.sequences(
            registry_key(NAME, self.worker.incarnation), list(SAMPLED_COLUMNS.items())
        )
        self.reader = await Dispatcher.create(registry, config)
        one = common_pb2.Parallelism(dp=1, tp=1, cp=1, pp=1)
        request = scheduler_pb2.JoinRequest(worker=self.worker, capacity=CAPACITY, parallelism=one)
        after = await self.bus.last_id()
        answer = await self.call("Join", request)
        self.version = answer.version
        if answer.version:
            self.published[answer.version] = list(answer.weight_keys)
        self._following = asyncio.create_task(self._follow(after))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self.reader.close()
        await self.store.close()
        await self.client.close()

    async def call(self, method: str, request):
        return await self.client.call(method, request, deadline_s=CALL_S)

    async def status(self) -> scheduler_pb2.GetStatusResponse:
        return await self.call("GetStatus", scheduler_pb2.GetStatusRequest())

    async def play(
        self, enough: Callable[[scheduler_pb2.GetStatusResponse], bool], limit_s: float = 60.0
    ) -> scheduler_pb2.GetStatusResponse:
        """Serve tickets until the scheduler's status is enough, or the run ends; the status.

        Like an engine, it samples from no version before that is published: what the run ends with waits for
        its last version, which a test can then still read.
        """
        async with asyncio.timeout(limit_s):
            while True:
                newest = max(self.published, default=0)
                status = await self.status()
                if enough(status):
                    return status
                await self._beat()
                request = scheduler_pb2.LeaseTicketsRequest(worker=self.worker, credit=CAPACITY, wait_s=0.1)
                answer = await self.call("LeaseTickets", request)
                self._held += answer.tickets
                ready = [ticket for ticket in self._held if ticket.min_version <= newest]
                self._held = [ticket for ticket in self._held if ticket.min_version > newest]
                if ready:
                    await self._complete(ready)

    async def _beat(self) -> None:
        request = scheduler_pb2.HeartbeatRequest(worker=self.worker, version=self.version)
        await self.call("Heartbeat", request)

    async def _complete(self, tickets: list[scheduler_pb2.Ticket]) -> None:
        request = scheduler_pb2.CompleteTicketsRequest(worker=self.worker)
        published: list[str] = []
        for ticket in tickets:
            rng = np.random.default_rng(ticket.ticket_id)
            length = int(rng.integers(6, 30))
            name = f"{ticket.ticket_id}/{ticket.attempt}"
            mask = np.zeros(length, np.uint8)
            mask[length // 2 :] = 1
            trains = ticket.purpose != common_pb2.PURPOSE_EVALUATE
            if trains:
                published.append(name)
                columns = self.sequences.reserve(name, length)
                columns["tokens"][:] = rng.integers(0, self._vocabulary, length)
                columns["loss_mask"][:] = mask
                columns["logprobs"][:] = -1.4 * mask
                columns["versions"][:] = self.version
                columns["turns"][:] = 0
            request.results.add(
                attempt=scheduler_pb2.AttemptRef(
                    ticket_id=ticket.ticket_id, attempt=ticket.attempt, fence=ticket.fence
                ),
                ending=common_pb2.ENDING_OK,
                reward=float(rng.integers(-1, 2)),
                prompt_tokens=length // 2,
                total_tokens=length,
                trained_tokens=int(mask.sum()),
                turns=1,
                oldest_version=self.version,
                newest_version=self.version,
                descriptor_key=self.sequences.key_of(name) if trains else "",
                metrics={"win": 1.0},
                turn_tokens=[length],
            )
        await self.sequences.publish(published)
        await self.call("CompleteTickets", request)

    async def _follow(self, after: str) -> None:
        async for _, event in self.bus.follow(after):
            fact = event.WhichOneof("fact")
            if fact == "weights_published":
                published = event.weights_published
                self.published[published.version] = list(published.descriptor_keys)
                self.version = published.version
            elif fact == "batch_committed":
                self.trained.append(event.batch_committed.version)
                keys = event.batch_committed.descriptor_keys
                await self.sequences.remove([name for key in keys if (name := self.sequences.name_of(key))])
