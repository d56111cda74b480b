"""A rollout worker among real processes: Valkey, scheduler, gateway, OpenSpiel host, torch engine.

The test plays the trainer. What the worker says in its columns must hold against what the scheduler
and the environment know.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import urllib.request

import numpy as np
import pytest

from earl.errors import ConfigError, IllegalParallelism, ProcessFailed, ServiceUnavailable, StaleEpoch
from earl.models.tokenizer import Tokenizer
from earl.rpc.client import Client
from earl.v1 import common_pb2, rollout_pb2, scheduler_pb2
from earl.v1.rollout_pb2_grpc import RolloutServiceStub
from services.rollout.service import PeerAddresses
from tests.support.preloaded import started_by
from tests.support.runs import tictactoe
from tests.support.stack import Stack, audited, until
from tests.support.trainer import PlayedTrainer, Sequence

SERVICES = ("valkey", "model", "scheduler", "gateway", "env-0")


def check_sequence(one: Sequence, tokenizer: Tokenizer, *, scripted: bool) -> None:
    """Masks, turns, versions and texts of one trajectory fit together."""
    tokens, mask = one.columns["tokens"], one.columns["loss_mask"] == 1
    logprobs, versions, turns = (one.columns[name] for name in ("logprobs", "versions", "turns"))
    assert turns[0] == 0 and set(np.diff(turns)) <= {0, 1}
    assert not mask[0] and mask[-1]
    assert np.all(logprobs[~mask] == 0)
    if scripted:
        assert np.all(logprobs == 0)
    else:
        assert np.all(logprobs[mask] < 0) and np.all(np.isfinite(logprobs))
    assert np.all(np.diff(versions) >= 0)
    for turn in range(turns[-1] + 1):
        here = turns == turn
        own = mask[here]
        # An observation, then an action: the mask rises once.
        assert np.count_nonzero(np.diff(own.astype(int)) == 1) == 1 and own[-1]
        board = tokenizer.decode(tokens[here & ~mask].tolist())
        if turn == 0:
            assert board == "0 1 2 3 4 5 6 7 8"
        if scripted:
            action = tokenizer.decode(tokens[here & mask].tolist())
            assert action[0] + action[-1] == "[]" and action[1:-1] in board.split()


@pytest.mark.parametrize("transport", ["shm", "ucx"])
async def test_a_worker_plays_what_it_leases_and_leaves_when_the_run_is_over(tmp_path, transport):
    stack = Stack(tictactoe(tmp_path, data_plane={"transport": transport}))
    async with stack:
        await stack.up(*SERVICES)
        tokenizer = Tokenizer.load(stack.directory / "model", stack.config.model)
        async with PlayedTrainer(stack) as trainer:
            worker = await stack.start("rollout-0")
            plans = []
            while (plan := await trainer.next_batch()) is not None:
                sequences = await trainer.read(plan)
                scripted = plan.objective == scheduler_pb2.OBJECTIVE_IMITATE
                for one in sequences:
                    check_sequence(one, tokenizer, scripted=scripted)
                    if not scripted:
                        trained = one.columns["versions"][one.columns["loss_mask"] == 1]
                        assert set(trained) == {plan.version}, "staleness is 0"
                assert len({one.item.ticket_id for one in sequences}) == len(sequences) == 16
                plans.append(plan)
                await trainer.commit(plan)
            assert [plan.objective for plan in plans] == [
                scheduler_pb2.OBJECTIVE_IMITATE,
                scheduler_pb2.OBJECTIVE_POLICY_GRADIENT,
                scheduler_pb2.OBJECTIVE_POLICY_GRADIENT,
            ]
            status = await trainer.status()
            ledger = status.ledger
            live = ledger.pending + ledger.leased + ledger.ready + ledger.planned
            assert ledger.issued == ledger.trained + ledger.evaluated + sum(ledger.dropped.values()) + live
            assert (ledger.trained, ledger.evaluated) == (48, 8)
            rollout = next(one for one in status.workers if one.worker.name == "rollout-0")
            assert rollout.worker.address == worker.address
            assert rollout.gauges["engines_live"] == 1
            assert {one.path for one in rollout.transfers} == {"ucx-tcp" if transport == "ucx" else "shm"}
        # The run is over: the scheduler lets the worker go, which leaves nothing behind.
        assert await stack.ended("rollout-0") == 0
        assert list(stack.arenas.glob("rollout-0-*")) == []


async def test_regions_of_committed_batches_are_used_again(tmp_path):
    """Eight batches through an arena that holds two: it works only if regions come back."""
    stack = Stack(
        tictactoe(
            tmp_path,
            model={"observation_prefix": " ".join(["x"] * 400), "scratch": {"max_positions": 4096}},
            rollout={"arena_bytes": 1 << 20, "max_context_tokens": 4096},
            warmup={"batches": 8},
        )
    )
    async with stack:
        await stack.up(*SERVICES)
        async with PlayedTrainer(stack) as trainer:
            await stack.start("rollout-0")
            moved_bytes = 0
            for _ in range(8):
                plan = await trainer.next_batch()
                assert plan is not None
                moved_bytes += sum(
                    array.nbytes for one in await trainer.read(plan) for array in one.columns.values()
                )
                await trainer.commit(plan)
            assert moved_bytes > 2 * stack.config.rollout.arena_bytes
            assert (await trainer.status()).ledger.dropped == {}


async def test_an_engine_that_dies_is_replaced_and_its_episodes_are_played_again(tmp_path):
    stack = Stack(
        tictactoe(
            tmp_path, rollout={"engine_restarts": 1}, warmup={"batches": 0}, scheduler={"attempts": 100}
        )
    )
    async with stack:
        await stack.up(*SERVICES)
        async with PlayedTrainer(stack) as trainer:
            worker = await stack.start("rollout-0")
            for _ in range(2):
                plan = await trainer.next_batch()
                assert plan is not None
                (engine,) = started_by(worker.pid)
                engine.kill()
                await trainer.commit(plan)
            assert await stack.ended("rollout-0") == ProcessFailed.exit_code
            assert any("engine-0 died 2 times" in line for line in worker.tail())
            assert list(stack.arenas.glob("rollout-0-*")) == []


async def test_a_scheduler_that_restarts_is_waited_for(tmp_path):
    stack = Stack(tictactoe(tmp_path, warmup={"batches": 2}))
    async with stack:
        await stack.up(*SERVICES)
        async with PlayedTrainer(stack) as trainer:
            await stack.start("rollout-0")
            plan = await trainer.next_batch()
            assert plan is not None
            await stack.kill("scheduler")
            await stack.start("scheduler")
            await trainer.join()
            await trainer.commit(plan)
            plan = await trainer.next_batch()
            assert plan is not None
            assert len(await trainer.read(plan)) == 16
            assert stack.processes["rollout-0"].running


def metrics_page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10.0) as answer:
        return answer.read().decode()


async def test_a_worker_says_how_it_is_as_often_as_the_scheduler_wants_it(tmp_path):
    rates = {"heartbeat_s": 0.01, "heartbeats_per_s": 0.02}
    stack = Stack(tictactoe(tmp_path, warmup={"batches": 2}, scheduler=rates))
    async with stack:
        await stack.up(*SERVICES)
        async with PlayedTrainer(stack, beat_s=1e6) as trainer:
            await stack.start("rollout-0")
            for _ in range(2):
                plan = await trainer.next_batch()
                assert plan is not None
                await trainer.commit(plan, publish=False)
            page = await asyncio.to_thread(metrics_page, stack.processes["scheduler"].metrics)
    asked = re.search(r'requests_total\{code="OK",method="[^"]*/Heartbeat"\} (\d+)', page)
    # One each as they joined: the next ones are wanted in 100 s.
    assert asked is not None and int(float(asked[1])) <= 3, page


@pytest.mark.slow
async def test_a_worker_that_was_given_up_starts_anew_with_an_empty_arena(tmp_path):
    stack = Stack(tictactoe(tmp_path, warmup={"batches": 3}, scheduler={"membership_s": 4.0}))
    async with stack:
        await stack.up(*SERVICES)
        async with PlayedTrainer(stack, beat_s=0.5) as trainer:
            worker = await stack.start("rollout-0")
            first = await trainer.next_batch()
            assert first is not None
            events = trainer.bus.follow("0-0")
            os.kill(worker.pid, signal.SIGSTOP)
            left = await until(events, "worker_left")
            assert left.worker.name == "rollout-0"
            os.kill(worker.pid, signal.SIGCONT)
            joined = await until(events, "worker_joined")
            assert joined.worker.incarnation == left.worker.incarnation
            for _ in range(3):
                plan = await trainer.next_batch()
                assert plan is not None
                assert len(await trainer.read(plan)) == 16
                await trainer.commit(plan, publish=False)
            # The last batch's regions go when its event arrives; the next heartbeat tells.
            async with asyncio.timeout(20):
                while (await rollout_status(trainer)).gauges["arena_used_fraction"] > 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert "given this worker up" in stack.log("rollout-0")


async def rollout_status(trainer: PlayedTrainer) -> scheduler_pb2.WorkerStatus:
    return next(one for one in (await trainer.status()).workers if one.worker.name == "rollout-0")


async def test_sigterm_hands_back_what_runs_and_leaves_nothing(tmp_path):
    stack = Stack(tictactoe(tmp_path, rollout={"drain_s": 0.0}, warmup={"batches": 0}))
    async with stack:
        await stack.up(*SERVICES)
        async with PlayedTrainer(stack) as trainer:
            worker = await stack.start("rollout-0")
            assert await trainer.next_batch() is not None
            children = started_by(worker.pid)
            assert children
            assert await stack.terminate("rollout-0") == 0
            assert list(stack.arenas.glob("rollout-0-*")) == []
            assert not any(child.is_running() for child in children)


async def test_engines_are_resharded_on_command_and_drain_stops_leasing(tmp_path):
    run = tictactoe(tmp_path, rollout={"engines": 2, "max_sequences": 8}, warmup={"batches": 0})
    stack = Stack(run)
    async with stack:
        await stack.up(*SERVICES)
        async with PlayedTrainer(stack) as trainer:
            worker = await stack.start("rollout-0")
            plan = await trainer.next_batch()
            assert plan is not None
            client = Client(worker.address, RolloutServiceStub)
            try:
                command = rollout_pb2.ReparallelizeRolloutRequest(
                    epoch=1, parallelism=common_pb2.Parallelism(dp=1, tp=2), prepare_s=60.0
                )
                done = await client.call("ReparallelizeRollout", command, deadline_s=120.0)
                assert not done.rolled_back and done.parallelism.tp == 2, done.message
                assert await client.call("ReparallelizeRollout", command, deadline_s=10.0) == done
                command.epoch = 0
                with pytest.raises(StaleEpoch):
                    await client.call("ReparallelizeRollout", command, deadline_s=10.0)
                command.parallelism.tp = 3
                with pytest.raises(IllegalParallelism):
                    await client.call("ReparallelizeRollout", command, deadline_s=10.0)
                await trainer.commit(plan)
                # What the new engine samples, with weights that were published after the switch too.
                plan = await trainer.next_batch()
                assert plan is not None and len(await trainer.read(plan)) == 16
                drained = await client.call(
                    "DrainRollout", rollout_pb2.DrainRolloutRequest(wait_s=20.0), deadline_s=30.0
                )
                assert drained.remaining == 0
                status = await client.call(
                    "GetRolloutStatus", rollout_pb2.GetRolloutStatusRequest(), deadline_s=10.0
                )
                assert status.worker.name == "rollout-0" and status.episodes == 0
                assert [engine.tp for engine in status.engines] == [2]
                assert (status.epoch, status.parallelism.dp, status.parallelism.tp) == (1, 1, 2)
                assert audited(stack.directory, "rollout-0") >= {
                    ("ReparallelizeRollout", "ok"),
                    ("ReparallelizeRollout", "StaleEpoch"),
                    ("ReparallelizeRollout", "IllegalParallelism"),
                    ("DrainRollout", "ok"),
                }
            finally:
                await client.close()


@pytest.mark.slow
async def test_a_scheduler_that_is_not_there_is_a_typed_error(tmp_path):
    stack = Stack(tictactoe(tmp_path, scheduler={"membership_s": 0.5}))
    async with stack:
        await stack.up("valkey", "model")
        process = await stack.start("rollout-0")
        assert await stack.ended("rollout-0") == ServiceUnavailable.exit_code
        assert any(line.startswith("earl: error: ") and stack.scheduler in line for line in process.tail())


@pytest.mark.parametrize("variable", ["EARL_SCHEDULER", "EARL_GATEWAY", "EARL_REDIS_URL"])
def test_a_missing_address_is_a_typed_error(monkeypatch, variable):
    for name in ("EARL_SCHEDULER", "EARL_GATEWAY", "EARL_REDIS_URL"):
        monkeypatch.setenv(name, "" if name == variable else "127.0.0.1:1")
    with pytest.raises(ConfigError, match=f"{variable} is not set"):
        PeerAddresses.from_environment()
