"""A real scheduler process and rollout workers that answer its commands over real gRPC, or do not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.show.parallelism import app
from earl.config.environment import EnvironmentConfig
from earl.config.rollout import RolloutConfig
from earl.config.run import RunConfig
from earl.config.scheduler import EvaluationConfig, SchedulerConfig, SwitchConfig
from earl.config.trainer import TrainerConfig, WarmupConfig
from earl.errors import IllegalParallelism, LedgerError, ReshapeRefused, StaleEpoch
from earl.obs.metrics import read_lines
from earl.parallelism import Parallelism
from earl.rpc import Client
from earl.rpc.server import Server
from earl.v1 import common_pb2, rollout_pb2, scheduler_pb2
from earl.v1.rollout_pb2_grpc import RolloutServiceServicer, add_RolloutServiceServicer_to_server
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tests.support.stack import Stack, until

CALL_S = 20.0
ROLLOUT = common_pb2.STAGE_ROLLOUT
# Deadlines that pass before a worker that never answers would: of no other test. They may pass for the
# command that brings a worker back, too: then it is soon sent again.
HASTE = {
    "prepare_s": 0.2, "quiesce_s": 0.1, "switch_s": 0.1, "verify_s": 0.1, "recover_s": 0.1, "retry_s": 0.5
}  # fmt: skip
# Two devices a worker: cut from 16 tokens on.
PROFILE = """stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s,peak_memory_fraction
rollout,2,1,1,1,8,8,120,0.2
rollout,2,1,1,1,4096,8,20,0.9
rollout,1,2,1,1,8,8,60,0.1
rollout,1,2,1,1,4096,8,40,0.5
"""


class Worker(RolloutServiceServicer):
    """A rollout worker of two devices without engines: it is cut as it was told, or `does` something else."""

    def __init__(self, address: str, name: str, *, serves: bool = True, incarnation: int = 1) -> None:
        self.worker = common_pb2.Worker(name=name, incarnation=incarnation, stage=ROLLOUT)
        self.client = Client(address, SchedulerServiceStub)
        self.parallelism = Parallelism(dp=2)
        self.epoch = 0
        self.told: list[rollout_pb2.ReparallelizeRolloutRequest] = []
        self.known: dict[int, rollout_pb2.ReparallelizeRolloutResponse] = {}
        self.does: Callable[[rollout_pb2.ReparallelizeRolloutRequest], Awaitable[None]] | None = None
        self.server = Server(name, "127.0.0.1:0", drain_s=0.0) if serves else None
        self.blocked_tokens = 0.0
        self._beating: asyncio.Task | None = None

    async def start(self) -> None:
        if self.server is not None:
            self.server.add(add_RolloutServiceServicer_to_server, self, "earl.v1.RolloutService")
            self.worker.address = await self.server.start()
        await self.say("Join", capacity=16, parallelism=encoded(self.parallelism))
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self.server is not None:
            await self.server.stop()
        await self.client.close()

    async def say(self, method: str, **fields: Any) -> Any:
        request = getattr(scheduler_pb2, f"{method}Request")(worker=self.worker, **fields)
        return await self.client.call(method, request, deadline_s=CALL_S)

    async def _beat(self) -> None:
        while True:
            await self.say(
                "Heartbeat",
                parallelism=encoded(self.parallelism),
                epoch=self.epoch,
                gauges={"blocked_context_tokens": self.blocked_tokens},
            )
            await asyncio.sleep(0.05)

    async def ReparallelizeRollout(self, request, context):
        self.told.append(request)
        if request.epoch in self.known:
            return self.known[request.epoch]
        if request.epoch < max(self.known, default=0):
            raise StaleEpoch(f"epoch {request.epoch} is old")
        if self.does is not None:
            await self.does(request)
        before = self.parallelism
        self.parallelism, self.epoch = decoded(request.parallelism), request.epoch
        if self.parallelism.tp < 4 and before != self.parallelism:
            self.blocked_tokens = 0.0
        self.known[request.epoch] = response = rollout_pb2.ReparallelizeRolloutResponse(
            epoch=request.epoch,
            parallelism=request.parallelism,
            stall_s=0.25,
            sequences_continued=3,
            kv_moved_bytes=1 << 20,
            max_logprob_difference=1e-5,
        )
        if self.worker.name != "rollout-0":  # which knows no `figures`
            response.figures.CopyFrom(
                common_pb2.SwitchFigures(
                    stall_s=0.125, sequences_continued=3, moved_bytes=1 << 20, logprobs_compared=5
                )
            )
        return self.known[request.epoch]


def encoded(parallelism: Parallelism) -> common_pb2.Parallelism:
    return common_pb2.Parallelism(**parallelism.as_dict())


def decoded(parallelism: common_pb2.Parallelism) -> Parallelism:
    return Parallelism(parallelism.dp, parallelism.tp, parallelism.cp, parallelism.pp)


def config(directory: Path, **sections: Any) -> RunConfig:
    profile = directory / "table.csv"
    profile.write_text(PROFILE)
    scheduler = {"group_size": 2, "batch_groups": 2, "membership_s": 5.0, "profile": str(profile)}
    return RunConfig(
        name="r",
        runs_dir=str(directory),
        environment=EnvironmentConfig(name="game"),
        rollout=RolloutConfig(max_context_tokens=8192),
        scheduler=SchedulerConfig(**{**scheduler, **sections.get("scheduler", {})}),
        switch=SwitchConfig(**sections.get("switch", {})),
        warmup=WarmupConfig(batches=0),
        evaluation=EvaluationConfig(episodes=0),
        trainer=TrainerConfig(ranks=1),
    )


@pytest.fixture
async def stack(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with Stack(config(tmp_path, **getattr(request, "param", {}))) as stack:
        await stack.up("valkey", "scheduler")
        yield stack


@pytest.fixture
async def workers(stack: Stack) -> AsyncIterator[list[Worker]]:
    made = [Worker(stack.scheduler, f"rollout-{number}") for number in range(2)]
    for worker in made:
        await worker.start()
    yield made
    for worker in made:
        await worker.stop()


async def ask(one: Worker, wait_s: float = 10.0, **fields: Any) -> scheduler_pb2.SetParallelismResponse:
    request = scheduler_pb2.SetParallelismRequest(stage=ROLLOUT, wait_s=wait_s, **fields)
    return await one.client.call("SetParallelism", request, deadline_s=CALL_S)


async def rollout(one: Worker) -> scheduler_pb2.StageStatus:
    status = await one.client.call("GetStatus", scheduler_pb2.GetStatusRequest(), deadline_s=CALL_S)
    return next(stage for stage in status.stages if stage.stage == ROLLOUT)


async def wait_for(one: Worker, holds: Callable[[scheduler_pb2.StageStatus], bool]) -> None:
    async with asyncio.timeout(15):
        while not holds(await rollout(one)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


TP2 = common_pb2.Parallelism(tp=2)


async def test_what_is_asked_for_reaches_every_worker_and_is_told(
    stack: Stack, workers: list[Worker]
) -> None:
    bus = await stack.bus()
    after = await bus.last_id()
    answer = await ask(workers[0], parallelism=TP2, pin=True)
    assert answer.epoch == 1 and not answer.outcome.rolled_back
    assert (answer.outcome.stall_s, answer.outcome.sequences_continued) == (0.25, 6)
    assert [worker.parallelism for worker in workers] == [Parallelism(tp=2)] * 2
    told = workers[0].told[0]
    assert (told.prepare_s, told.quiesce_s, told.switch_s, told.verify_s) == (300, 120, 120, 60)
    assert told.logprob_tolerance == 0.05 and told.reason == "an operator asked for it"
    changed = await until(bus.follow(after), "parallelism_changed")
    assert (changed.stage, changed.epoch, changed.moved_bytes) == (ROLLOUT, 1, 2 << 20)
    assert decoded(changed.before) == Parallelism(dp=4) and decoded(changed.after) == Parallelism(2, 2)
    stage = await rollout(workers[0])
    assert decoded(stage.running) == Parallelism(2, 2) and stage.pinned and stage.epoch == 1
    assert not stage.HasField("switching") and stage.last.epoch == 1
    [line] = read_lines(stack.directory / "switches.jsonl")
    assert (line["by"], line["epoch"], line["stall_s"]) == ("operator", 1, 0.25) and not line["rolled_back"]
    assert (line["moved_bytes"], line["logprobs_compared"]) == (2 << 20, 5)
    assert stage.last.figures.logprobs_compared == changed.figures.logprobs_compared == 5
    spans = {line["what"] for line in read_lines(stack.directory / "timeline.jsonl")}
    assert spans == {"to dp2·tp2", "stall"}
    # It is cut so already: nobody is told again.
    answer = await ask(workers[0], parallelism=TP2)
    assert answer.epoch == 1 and not answer.HasField("outcome") and len(workers[0].told) == 1
    assert not (await rollout(workers[0])).pinned

    # What cannot be is refused by name.
    with pytest.raises(IllegalParallelism, match="on 4 devices of 2 workers; use dp4 or dp2·tp2"):
        await ask(workers[0], parallelism=common_pb2.Parallelism(tp=3))
    with pytest.raises(IllegalParallelism, match="cannot have dp3·tp2"):
        await ask(workers[0], parallelism=common_pb2.Parallelism(dp=3, tp=2))
    request = scheduler_pb2.SetParallelismRequest(stage=common_pb2.STAGE_TRAINER, parallelism=TP2)
    with pytest.raises(LedgerError, match=r"no worker of stage trainer .* it has rollout"):
        await workers[0].client.call("SetParallelism", request, deadline_s=CALL_S)
    # A worker that starts anew is cut as its stage.
    await workers[1].stop()
    again = workers[1] = Worker(stack.scheduler, "rollout-1", incarnation=2)
    await again.start()
    await wait_for(again, lambda one: one.HasField("running") and not one.HasField("switching"))
    assert again.parallelism == Parallelism(tp=2) and again.epoch == 2 and len(workers[0].told) == 1


async def test_where_one_does_not_obey_the_others_are_brought_back(
    stack: Stack, workers: list[Worker]
) -> None:
    async def refuse(request) -> None:
        raise ReshapeRefused("rollout-1 cannot do that", "leave it")

    for _ in range(2):
        workers[1].does = refuse
        answer = await ask(workers[0], parallelism=TP2)
        assert answer.outcome.rolled_back
        assert answer.outcome.message == "rollout-1: rollout-1 cannot do that; leave it"
        await are_brought_back(workers)
    assert stack.log("scheduler").count("rollout-1 cannot do that") == 1


@pytest.mark.parametrize("stack", [{"switch": HASTE}], indirect=True)
async def test_where_one_does_not_answer_the_others_are_brought_back(
    stack: Stack, workers: list[Worker]
) -> None:
    async def never(request) -> None:
        await asyncio.Event().wait()

    workers[1].does = never
    answer = await ask(workers[0], parallelism=TP2)
    # On a busy machine the other one may be late, too.
    assert answer.outcome.rolled_back and "no answer within 0.7 s" in answer.outcome.message
    await are_brought_back(workers)


async def are_brought_back(workers: list[Worker]) -> None:
    await wait_for(workers[0], lambda one: one.HasField("running") and not one.HasField("switching"))
    assert [worker.parallelism for worker in workers] == [Parallelism(dp=2)] * 2


async def test_a_worker_that_knows_no_such_call_is_harmless(stack: Stack) -> None:
    """One of before: it says nothing of its parallelism either."""
    old = Worker(stack.scheduler, "rollout-0", serves=False)
    server = Server("old", "127.0.0.1:0", drain_s=0.0)
    server.add(add_RolloutServiceServicer_to_server, RolloutServiceServicer(), "earl.v1.RolloutService")
    old.worker.address = await server.start()
    await old.say("Join", capacity=8, parallelism=encoded(old.parallelism))
    answer = await ask(old, parallelism=TP2)
    assert answer.outcome.rolled_back and "does not know how to change" in answer.outcome.message
    await old.say("Heartbeat", running=3)
    assert decoded((await rollout(old)).running) == Parallelism(dp=2)
    await server.stop()
    await old.client.close()


async def test_a_scheduler_killed_in_mid_switch_goes_on_with_it(stack: Stack, workers: list[Worker]) -> None:
    held, go = asyncio.Event(), asyncio.Event()

    async def hold(request) -> None:
        held.set()
        await go.wait()

    workers[1].does = hold
    answer = await ask(workers[0], wait_s=0.0, parallelism=TP2, pin=True)
    assert answer.epoch == 1 and not answer.HasField("outcome")
    await held.wait()
    with pytest.raises(LedgerError, match=r"switching from dp4 to dp2·tp2"):
        await ask(workers[0], parallelism=common_pb2.Parallelism(tp=1))
    await stack.kill("scheduler")
    await stack.start("scheduler")
    stage = await rollout(workers[0])
    assert stage.pinned and decoded(stage.switching.after) == Parallelism(2, 2)
    go.set()
    await wait_for(workers[0], lambda one: one.last.epoch == 1)
    assert not (await rollout(workers[0])).last.rolled_back
    assert [worker.parallelism for worker in workers] == [Parallelism(tp=2)] * 2
    assert {request.epoch for worker in workers for request in worker.told} == {1}


async def test_a_sequence_that_waits_for_room_is_given_some_at_once(
    stack: Stack, workers: list[Worker]
) -> None:
    """No step was ever committed: the run would wait for ever."""
    workers[0].blocked_tokens = 3000.0
    await wait_for(workers[0], lambda one: one.last.epoch == 1)
    last = (await rollout(workers[0])).last
    assert decoded(last.after) == Parallelism(2, 2) and "at once: no replica of dp" in last.reason
    assert [worker.parallelism for worker in workers] == [Parallelism(tp=2)] * 2
    # Where no layout is larger still, nothing is done.
    workers[0].blocked_tokens = 8000.0
    async with asyncio.timeout(15):
        while len(lines := list(read_lines(stack.directory / "decisions.jsonl"))) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert [(line["epoch"], line["held"]) for line in lines] == [(1, ""), (0, "no layout holds it")]
    assert lines[0]["verdict"]["urgent"] and len(workers[0].told) == 1


async def test_an_operator_shows_changes_and_pins(
    stack: Stack, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stack.directory.parent)
    monkeypatch.setattr("earl.cli.lib.completion.RUNS", Path("."))  # the one that goes on is found

    async def told(*arguments: str) -> Any:
        run = CliRunner().invoke
        return await asyncio.to_thread(run, app, list(arguments), standalone_mode=False)

    assert "rollout    dp4" in (await told()).output
    done = await told("set", "rollout", "tp=2", "--pin")
    assert done.output.startswith("rollout switched from dp4 to dp2·tp2 in ") and done.exception is None
    assert "6 sequences continued, 2.0 MiB moved, 5 log-probs compared (epoch 1)" in done.output
    assert "rollout    dp2·tp2, pinned" in (await told()).output
    assert (await told("set", "rollout", "tp=2")).output == "rollout has dp2·tp2 already\n"
    assert (await told("pin", "rollout")).output == "rollout is pinned: dp2·tp2\n"
    assert (await told("unpin", "rollout", "--run", str(stack.directory))).output == (
        "rollout is not pinned: dp2·tp2\n"
    )
    refused = await told("set", "rollout", "tp=3")
    assert isinstance(refused.exception, IllegalParallelism) and "use dp4 or dp2·tp2" in str(
        refused.exception
    )
    held, go = asyncio.Event(), asyncio.Event()

    async def hold(request) -> None:
        held.set()
        await go.wait()
        raise ReshapeRefused("no room", "")

    workers[1].does = hold
    under_way = json.loads((await told("set", "rollout", "tp=1", "--no-wait", "--json")).output)
    assert under_way["outcome"] is None and under_way["stage"]["switching"]["after"] == "dp4"
    await held.wait()
    go.set()
    await wait_for(workers[0], lambda one: one.HasField("running") and not one.HasField("switching"))
    back = await told("set", "rollout", "tp=1", "--json")
    assert isinstance(back.exception, ReshapeRefused) and "stayed dp2·tp2, rolled back from dp4" in str(
        back.exception
    )
    assert json.loads(back.output)["outcome"]["rolled_back"]
    shown = json.loads((await told("--json")).output)
    [stage] = [one for one in shown["stages"] if one["name"] == "rollout"]
    assert stage["last"]["message"] == "rollout-1: no room" and stage["epoch"] >= 4 and not stage["pinned"]
