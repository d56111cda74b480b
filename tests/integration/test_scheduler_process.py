"""A real scheduler process, workers that speak real gRPC: killed in mid-run, it goes on where it stood."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from earl.bus import Bus
from earl.cli.lib.decisions import read_decisions
from earl.config.environment import EnvironmentConfig
from earl.config.run import RunConfig
from earl.config.scheduler import EvaluationConfig, SchedulerConfig
from earl.config.trainer import TrainerConfig, WarmupConfig
from earl.errors import EarlError, LedgerError, UnknownWorker, WorkerReplaced
from earl.parallelism import Parallelism
from earl.rpc import Client
from earl.stack.codec import decode_status
from earl.stack.status import StageState
from earl.v1 import common_pb2, scheduler_pb2
from earl.v1.events_pb2 import Event, WeightsPublished
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tests.support.stack import Stack

CALL_S = 20.0
# Two devices of rollout: cut or not, by the lengths that Player plays, and what is far longer.
PROFILE = """stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s,peak_memory_fraction
rollout,2,1,1,1,8,8,120,0.2
rollout,2,1,1,1,4096,8,20,0.9
rollout,1,2,1,1,8,8,60,0.1
rollout,1,2,1,1,4096,8,40,0.5
"""


def config(directory: Path, **scheduler) -> RunConfig:
    return RunConfig(
        name="r",
        runs_dir=str(directory),
        environment=EnvironmentConfig(name="game"),
        scheduler=SchedulerConfig(
            **{"group_size": 4, "batch_groups": 3, "steps": 6, "membership_s": 10.0, **scheduler}
        ),
        warmup=WarmupConfig(batches=2, batch_episodes=6),
        evaluation=EvaluationConfig(episodes=10, every_steps=3, every_episodes=4),
        trainer=TrainerConfig(ranks=2, checkpoint_every=2),
    )


class Speaker:
    """One worker's side of the scheduler's contract."""

    def __init__(self, address: str, name: str, stage: common_pb2.Stage, incarnation: int = 1) -> None:
        self.worker = common_pb2.Worker(name=name, incarnation=incarnation, stage=stage)
        self.client = Client(address, SchedulerServiceStub)

    async def call(self, method: str, **fields):
        request = getattr(scheduler_pb2, f"{method}Request")(**fields)
        return await self.client.call(method, request, deadline_s=CALL_S)

    async def say(self, method: str, **fields):
        return await self.call(method, worker=self.worker, **fields)


class Player(Speaker):
    """A rollout worker whose episodes take no time."""

    def __init__(self, address: str, name: str, incarnation: int = 1) -> None:
        super().__init__(address, name, common_pb2.STAGE_ROLLOUT, incarnation)
        self.version = 0
        self.seeds: dict[str, Counter] = {}
        self.refused = 0

    async def work(self) -> None:
        await self.say("Join", capacity=32)
        while True:
            leased = await self.say("LeaseTickets", credit=16, wait_s=0.5)
            gauges = {"memory_fraction": 0.25, "kv_tokens": 640.0, "kv_used_tokens": 96.0}
            beat = await self.say(
                "Heartbeat", running=len(leased.tickets), version=self.version, gauges=gauges
            )
            if beat.stop:
                return
            results = [self.result(ticket) for ticket in leased.tickets]
            if results:
                answer = await self.say("CompleteTickets", results=results)
                self.refused += sum(item.verdict == scheduler_pb2.VERDICT_REFUSED for item in answer.items)

    def result(self, ticket: scheduler_pb2.Ticket) -> scheduler_pb2.AttemptResult:
        self.version = max(self.version, ticket.min_version)
        won = ticket.ticket_id % 2 == 1
        if ticket.purpose == common_pb2.PURPOSE_EVALUATE:
            self.seeds.setdefault(ticket.evaluation, Counter())[ticket.env_seed] += 1
            won = ticket.evaluation == "final" or ticket.env_seed % 2 == 1
        said = [scheduler_pb2.TranscriptTurn(role="assistant", text="[1]", tokens=6)]
        return scheduler_pb2.AttemptResult(
            attempt=scheduler_pb2.AttemptRef(
                ticket_id=ticket.ticket_id, attempt=ticket.attempt, fence=ticket.fence
            ),
            ending=common_pb2.ENDING_OK,
            reward=1.0 if won else -1.0,
            total_tokens=12,
            trained_tokens=6,
            turns=2,
            turn_tokens=[6, 6],
            oldest_version=ticket.min_version,
            newest_version=ticket.min_version,
            descriptor_key=f"trajectory/{ticket.ticket_id}/{ticket.attempt}",
            metrics={"win": float(won), "illegal": 0.0},
            transcript=said if ticket.transcript else [],
        )


class Learner(Speaker):
    """A trainer whose steps take no time. trained: what is in its parameters, in order."""

    def __init__(self, address: str, bus: Bus, incarnation: int = 1) -> None:
        super().__init__(address, "trainer", common_pb2.STAGE_TRAINER, incarnation)
        self.bus = bus
        self.version = 1
        self.next_batch = 1
        self.trained: list[int] = []
        self.plans: list[scheduler_pb2.BatchPlan] = []
        self.committed = asyncio.Event()
        # What the last answer said of checkpoints: (best version, versions to keep).
        self.kept: tuple[int, list[int]] = (0, [])

    async def start(self) -> int:
        await self.say("Join", capacity=2)
        consumed = [scheduler_pb2.TicketRange(start=one, stop=one + 1) for one in sorted(self.trained)]
        answer = await self.say(
            "Reconcile", version=self.version, next_batch_id=self.next_batch, consumed=consumed
        )
        await self.publish()
        return answer.rolled_back

    async def publish(self) -> None:
        keys = [f"weights/{self.version}/trainer-0"]
        await self.bus.publish(
            Event(weights_published=WeightsPublished(version=self.version, descriptor_keys=keys))
        )

    async def work(self) -> None:
        await self.start()
        while await self.step():
            pass

    async def step(self) -> bool:
        answer = await self.say("NextBatch", ranks=2, wait_s=0.5)
        self.kept = answer.best_version, list(answer.keep_versions)
        if answer.stop:
            return False
        if answer.HasField("plan"):
            await self.train(answer.plan)
        return True

    async def train(self, plan: scheduler_pb2.BatchPlan) -> None:
        assert plan.version == self.version and len(plan.ranks) == 2
        self.plans.append(plan)
        numbers = [item.ticket_id for rank in plan.ranks for item in rank.items]
        assert not set(numbers) & set(self.trained), "trained twice"
        self.trained += numbers
        self.version, self.next_batch = plan.version + 1, plan.batch_id + 1
        await self.say("CommitBatch", batch_id=plan.batch_id, version=self.version, metrics={"loss": 0.5})
        self.committed.set()
        if plan.publish:
            await self.publish()
        if plan.checkpoint:
            consumed = [scheduler_pb2.TicketRange(start=one, stop=one + 1) for one in sorted(self.trained)]
            await self.say("RecordCheckpoint", version=self.version, path="x", consumed=consumed)


@pytest.fixture
async def stack(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    profile = tmp_path / "table.csv"
    profile.write_text(PROFILE)
    async with Stack(config(tmp_path, profile=str(profile), **getattr(request, "param", {}))) as stack:
        await stack.up("valkey", "scheduler")
        yield stack


def identity(status: scheduler_pb2.GetStatusResponse) -> None:
    one = status.ledger
    live = one.pending + one.leased + one.ready + one.planned
    assert one.issued == one.trained + one.evaluated + sum(one.dropped.values()) + live


async def test_a_scheduler_killed_in_mid_run_goes_on(stack: Stack) -> None:
    bus = await stack.bus()
    players = [Player(stack.scheduler, f"rollout-{number}") for number in range(2)]
    learner = Learner(stack.scheduler, bus)
    works = [asyncio.create_task(one.work()) for one in (*players, learner)]
    for _ in range(3):
        learner.committed.clear()
        committed = asyncio.create_task(learner.committed.wait())
        done, _ = await asyncio.wait([*works, committed], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        identity(await learner.call("GetStatus"))
        await stack.kill("scheduler")
        await stack.start("scheduler")
    await asyncio.gather(*works)
    status = await learner.call("GetStatus")
    identity(status)
    assert status.done and status.phase == "done" and status.message
    assert status.ledger.trained == len(learner.trained) == 2 * 6 + 6 * 12
    assert status.ledger.evaluated == 10 + 4 + 10
    assert [one.name for one in status.evaluations] == ["start", "step-3", "final"]
    assert all(one.done == one.episodes for one in status.evaluations)
    seeds = sum((one.seeds.get("start", Counter()) for one in players), Counter())
    assert set(seeds) == set(sum((one.seeds.get("final", Counter()) for one in players), Counter()))
    check_plans(learner.plans)
    check_evaluations(status, learner)
    check_files(stack.directory)
    check_decisions(stack.directory)
    assert await stack.terminate("scheduler") == 0
    # What ended just before a scheduler was killed is missing; the last one played the final evaluation.
    ends = [json.loads(line) for line in (stack.directory / "endings.jsonl").read_text().splitlines()]
    assert sum(line["ok"] for line in ends) >= 10 and not any(line["timeout"] for line in ends)


def check_decisions(directory: Path) -> None:
    """One for every step after a committed one, whoever was killed in between, and why."""
    [(stage, lines)] = read_decisions(directory).items()
    assert stage == "rollout" and [line.step for line in lines] == [2, 3, 4, 5, 6, 7]
    for line in lines:
        # A player that has not joined again yet is not in the pool.
        assert line.running in (Parallelism(1), Parallelism(2)) and line.devices == line.running.devices
        # Exactly, but for a scheduler that saw too few of them end: it goes by the sketch.
        lengths = [line.seen.mean_tokens, line.seen.p95_tokens, line.seen.max_tokens]
        assert lengths == pytest.approx([12, 12, 12], rel=0.01)
        assert 1 <= line.seen.concurrency <= line.seen.concurrency_most <= 64
        assert line.decision_ms > 0 and line.verdict.reason in line.sentence
    whole = [line for line in lines if line.devices == 2]
    for line in whole:
        assert line.verdict.after == Parallelism(dp=2)
        assert {one.parallelism for one in line.candidates} == {Parallelism(dp=2), Parallelism(tp=2)}
    assert any(line.seen.memory_fraction == 0.25 and line.seen.kv is not None for line in whole)


async def test_the_selector_is_part_of_the_status(stack: Stack) -> None:
    bus = await stack.bus()
    players = [Player(stack.scheduler, f"rollout-{number}") for number in range(2)]
    learner = Learner(stack.scheduler, bus)
    works = [asyncio.create_task(player.work()) for player in players]
    await learner.start()
    before = decode_status(await learner.call("GetStatus")).stages
    assert StageState("trainer", "tp1") in before and not any(one.chosen for one in before)
    while len(learner.plans) < 3:
        await learner.step()
    stages = {one.name: one for one in decode_status(await learner.call("GetStatus")).stages}
    assert stages.keys() == {"rollout", "trainer"}
    assert stages["rollout"].running == stages["rollout"].chosen == "dp2" and not stages["rollout"].differs
    assert stages["rollout"].sentence.startswith("rollout stays with dp2")
    await learner.call("StopRun", reason="enough")
    await asyncio.gather(*works)


def check_plans(plans: list[scheduler_pb2.BatchPlan]) -> None:
    objectives = [plan.objective for plan in plans]
    assert objectives == [scheduler_pb2.OBJECTIVE_IMITATE] * 2 + [scheduler_pb2.OBJECTIVE_POLICY_GRADIENT] * 6
    assert [plan.publish for plan in plans] == [False] + [True] * 7
    assert [plan.first_of_phase for plan in plans] == [True, False, True] + [False] * 5
    # Every second step, and the one that is evaluated.
    assert [plan.checkpoint for plan in plans] == [False, True, False, True, True, True, False, True]
    assert [plan.progress for plan in plans[2:]] == pytest.approx([number / 6 for number in range(6)])
    for plan in plans[2:]:
        groups: dict[int, list[float]] = {}
        for rank in plan.ranks:
            for item in rank.items:
                groups.setdefault(item.group_id, []).append(item.advantage)
        assert [len(advantages) for advantages in groups.values()] == [4, 4, 4]
        assert all(sum(advantages) == pytest.approx(0) for advantages in groups.values())


def check_evaluations(status: scheduler_pb2.GetStatusResponse, learner: Learner) -> None:
    start, _, final = status.evaluations
    assert not start.HasField("gain") and start.win_low < start.win_rate < start.win_high < 1.0
    assert (final.win_rate, final.win_high, final.gain_episodes) == (1.0, 1.0, 10)
    assert final.gain == pytest.approx(1.0 - start.mean_reward)
    assert final.gain_low < final.gain < final.gain_high
    assert status.best_version == 9 and learner.kept == (9, [9])


def check_files(directory: Path) -> None:
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = {(line["phase"], line["step"]): line for line in metrics}
    assert ("train", 6) in steps and steps["train", 6]["version"] == 9
    last = steps["train", 6]
    assert last["loss"] == 0.5 and last["episode_tokens"]["p50"] == pytest.approx(12, rel=0.02)
    assert last["staleness_max"] <= 1 and last["win_rate"] == 0.5
    evaluations = [json.loads(line) for line in (directory / "evaluations.jsonl").read_text().splitlines()]
    assert [line["name"] for line in evaluations] == ["start", "step-3", "final"]
    assert len(evaluations[1]["rewards"]) == 4 and evaluations[2]["gain_low"] < evaluations[2]["gain"]
    assert last["length_histogram"] == {"first": 14, "counts": [12], "per_octave": 4}
    assert last["length_max"] == 12
    samples = [json.loads(line) for line in (directory / "samples.jsonl").read_text().splitlines()]
    # What waited for its batch when the scheduler was killed is gone; evaluations are written at once.
    assert {line["evaluation"] for line in samples} == {"", "start", "step-3", "final"}
    assert {line["ticket"] for line in samples if line["evaluation"] == "final"} == {
        line["ticket"] for line in samples if line["step"] == 6 and line["evaluation"]
    }
    assert samples[0]["turns"] == [{"role": "assistant", "text": "[1]", "tokens": 6}]
    assert last["parallelism"]["trainer"] == {"dp": 1, "tp": 1, "cp": 1, "pp": 1}
    assert last["truncated_episodes"] == 0.0


async def test_a_worker_that_comes_back_loses_its_leases_at_once(stack: Stack) -> None:
    first, second = (Player(stack.scheduler, "rollout-0", incarnation) for incarnation in (1, 2))
    await first.say("Join", capacity=8)
    leased = (await first.say("LeaseTickets", credit=4, wait_s=5.0)).tickets
    await second.say("Join", capacity=8)
    with pytest.raises(WorkerReplaced):
        await first.say("CompleteTickets", results=[first.result(leased[0])])
    with pytest.raises(WorkerReplaced, match="replaced"):
        await first.say("Join", capacity=8)  # it was only frozen: its successor stays
    again = (await second.say("LeaseTickets", credit=4, wait_s=5.0)).tickets
    assert [(one.ticket_id, one.attempt) for one in again] == [(one.ticket_id, 2) for one in leased]
    assert min(one.fence for one in again) > max(one.fence for one in leased)
    late = await second.say("CompleteTickets", results=[second.result(leased[0]), second.result(again[0])])
    assert [item.verdict for item in late.items] == [
        scheduler_pb2.VERDICT_REFUSED,
        scheduler_pb2.VERDICT_ACCEPTED,
    ]
    assert "fence" in late.items[0].reason
    lost = await second.say("RenewLeases", attempts=[item.attempt for item in late.items])
    assert len(lost.lost) == 2  # one never was its own, the other is finished


async def test_leases_of_an_answer_that_a_worker_never_got_are_leased_anew(stack: Stack) -> None:
    """A scheduler that dies between a lease and its answer leaves such ones. Nobody waits for their end."""
    player = Player(stack.scheduler, "rollout-0")
    await player.say("Join", capacity=32)
    first = await player.say("LeaseTickets", credit=2, wait_s=CALL_S / 2, newest_fence=0)
    newest = max(ticket.fence for ticket in first.tickets)
    lost = await player.say("LeaseTickets", credit=3, wait_s=1.0, newest_fence=newest)
    again = await player.say("LeaseTickets", credit=3, wait_s=1.0, newest_fence=newest)
    assert [ticket.ticket_id for ticket in again.tickets] == [ticket.ticket_id for ticket in lost.tickets]
    assert {ticket.attempt for ticket in again.tickets} == {2}
    refs = [player.result(ticket).attempt for ticket in (*first.tickets, *lost.tickets, *again.tickets)]
    answer = await player.say("RenewLeases", attempts=refs)
    assert [(ref.ticket_id, ref.attempt) for ref in answer.lost] == [
        (ticket.ticket_id, 1) for ticket in lost.tickets
    ]


async def test_a_trainer_must_reconcile_and_is_rolled_back_to_its_manifest(stack: Stack) -> None:
    bus = await stack.bus()
    player, learner = Player(stack.scheduler, "rollout-0"), Learner(stack.scheduler, bus)
    playing = asyncio.create_task(player.work())
    await learner.say("Join", capacity=2)
    with pytest.raises(LedgerError, match="Reconcile"):
        await learner.say("NextBatch", ranks=2, wait_s=0.1)
    await learner.start()
    while len(learner.plans) < 5:
        assert await learner.step()
    saved, version, next_batch = list(learner.trained), learner.version, learner.next_batch
    while len(learner.plans) < 6:
        assert await learner.step()
    again = Learner(stack.scheduler, bus, incarnation=2)
    again.trained, again.version, again.next_batch = saved, version, next_batch
    assert await again.start() == 12
    player.version = version  # its engines load what was published last
    with pytest.raises(EarlError):
        await learner.say("CommitBatch", batch_id=learner.next_batch - 1, version=learner.version)
    status = await again.call("GetStatus")
    assert status.version == version and status.ledger.dropped["rolled_back"] >= 12
    identity(status)
    while await again.step():
        pass
    await playing
    status = await again.call("GetStatus")
    identity(status)
    assert status.done and status.ledger.trained == len(again.trained) == 84


async def test_stopping_ends_everyone_and_a_later_scheduler_goes_on(stack: Stack) -> None:
    bus = await stack.bus()
    player, learner = Player(stack.scheduler, "rollout-0"), Learner(stack.scheduler, bus)
    playing = asyncio.create_task(player.work())
    await learner.start()
    while not learner.plans:
        await learner.step()
    await learner.call("StopRun", reason="enough")
    assert not await learner.step()
    await playing
    status = await learner.call("GetStatus")
    assert status.done and status.message == "enough" and status.phase != "done"
    assert (await learner.say("LeaseTickets", credit=1, wait_s=5.0)).stop
    assert await stack.terminate("scheduler") == 0
    await stack.start("scheduler")
    again = Player(stack.scheduler, "rollout-0", incarnation=2)
    works = [asyncio.create_task(one.work()) for one in (again, learner)]
    await asyncio.gather(*works)
    status = await learner.call("GetStatus")
    identity(status)
    assert status.phase == "done" and len(learner.trained) == 84


@pytest.mark.parametrize("stack", [{"membership_s": 2.0}], indirect=True)
async def test_a_silent_worker_leaves(stack: Stack) -> None:
    bus = await stack.bus()
    after = await bus.last_id()
    player = Player(stack.scheduler, "rollout-0")
    await player.say("Join", capacity=8)
    await player.say("LeaseTickets", credit=4, wait_s=5.0)
    async with asyncio.timeout(20):
        async for _, event in bus.follow(after):
            if event.HasField("worker_left"):
                break
        else:
            raise AssertionError("the bus ended")
    assert event.worker_left.worker.name == "rollout-0" and "sent nothing" in event.worker_left.reason
    status = await player.call("GetStatus")
    assert status.ledger.leased == 0 and not status.workers
    with pytest.raises(UnknownWorker):
        await player.say("Heartbeat", version=0)


async def test_a_redis_that_is_not_there_is_one_line_and_exit_7(tmp_path: Path) -> None:
    run_json = tmp_path / "run.json"
    run_json.write_text(config(tmp_path).model_dump_json())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.scheduler", "--run", str(run_json),
        env={**os.environ, "EARL_REDIS_URL": "redis://:secret@127.0.0.1:1"}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 7
    [line] = [line for line in stderr.decode().splitlines() if line.startswith("earl: error:")]
    assert "redis://:***@127.0.0.1:1" in line and "bus.redis_url" in line
    assert process.returncode != -signal.SIGKILL
