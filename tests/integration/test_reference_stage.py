"""The reference stage as processes: its values, where they travel, and its deaths."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from earl.config.run import RunConfig
from earl.dispatch.layout.box import Box
from earl.dispatch.read.reader import Dispatcher, Read, Receipt
from earl.models.module import Decoder
from earl.models.spec import load_spec
from earl.models.weights import load_decoder
from earl.v1 import common_pb2, scheduler_pb2
from tests.support.rollout import PlayedRollout
from tests.support.runs import tictactoe
from tests.support.stack import Stack, until
from tests.support.trainer import PlayedTrainer, Sequence

TEMPERATURE = 0.8


def configuration(tmp_path: Path, dp: int, tp: int, warmup: int = 0) -> RunConfig:
    return tictactoe(
        tmp_path,
        trainer={"kl_coefficient": 0.1, "device": "cpu"},
        reference={"dp": dp, "tp": tp, "device": "cpu", "microbatch_tokens": 128},
        warmup={"batches": warmup},
        # The played rollout worker says nothing while it does not play.
        scheduler={"temperature": TEMPERATURE, "steps": 3, "membership_s": 60.0},
        evaluation={"episodes": 0},
    )


def direct(directory: Path, sequences: list[Sequence]) -> list[np.ndarray]:
    """Returns what the decoder of that directory itself gives, sequence by sequence."""
    torch.set_num_threads(1)
    decoder = Decoder(load_spec(directory))
    load_decoder(decoder, directory)
    found = []
    for one in sequences:
        tokens = torch.from_numpy(one.columns["tokens"].astype(np.int64))
        with torch.no_grad():
            hidden = decoder.forward_packed(tokens, torch.arange(len(tokens)), [len(tokens)])
            whole = torch.log_softmax(decoder.logits(hidden).float() / TEMPERATURE, -1)
        values = np.zeros(len(tokens), np.float32)
        values[1:] = whole[:-1].gather(-1, tokens[1:, None]).squeeze(-1).numpy()
        found.append(values * one.columns["loss_mask"])
    return found


async def referenced(reader: Dispatcher, sequences: list[Sequence]) -> tuple[list[np.ndarray], Receipt]:
    """The reference columns of these sequences, all in one read, as a trainer rank does it."""
    into = [np.full(one.item.total_tokens, np.nan, np.float32) for one in sequences]
    reads = [
        Read(reference_keys(one.item), "reference", box_of(one.item), array)
        for one, array in zip(sequences, into, strict=True)
    ]
    return into, await reader.read(reads, 10.0)


def reference_keys(item: scheduler_pb2.BatchItem) -> tuple[str, ...]:
    """Keys of its reference column; none without one."""
    return tuple(key for column in item.columns if column.role == "reference" for key in column.keys)


def box_of(item: scheduler_pb2.BatchItem) -> Box:
    (offset,) = (column.offset for column in item.columns if column.role == "reference")
    return Box((offset,), (offset + item.total_tokens,))


async def worker(trainer: PlayedTrainer) -> scheduler_pb2.WorkerStatus:
    status = await trainer.status()
    return next(one for one in status.workers if one.worker.stage == common_pb2.STAGE_REFERENCE)


@pytest.mark.parametrize(
    ("dp", "tp"),
    [(2, 2), pytest.param(2, 1, marks=pytest.mark.slow), pytest.param(1, 2, marks=pytest.mark.slow)],
)
async def test_ranks_give_the_decoders_log_probs_straight_to_the_trainers_reader(
    tmp_path: Path, dp: int, tp: int
) -> None:
    async with Stack(configuration(tmp_path, dp, tp)) as stack:
        await stack.up("valkey", "model", "scheduler", "reference")
        async with PlayedTrainer(stack) as trainer, PlayedRollout(stack) as rollout:
            await rollout.play(lambda status: status.ledger.ready >= 16)
            plan = await trainer.next_batch()
            assert plan is not None
            sequences = await trainer.read(plan)
            found, receipt = await referenced(trainer.reader, sequences)
            assert receipt.path == "shm"
            assert receipt.size_bytes == 4 * sum(one.item.total_tokens for one in sequences)
            for one, values, expected in zip(
                sequences, found, direct(stack.directory / "model", sequences), strict=True
            ):
                np.testing.assert_allclose(values, expected, atol=1e-5, err_msg=str(one.item.ticket_id))
            assert {len(reference_keys(one.item)) for one in sequences} == {tp}
            # The bytes lie in the ranks' own arenas: every rank's share of every, or of its own sequences.
            owners = {
                shard.region.arena.owner
                for one in sequences
                for descriptor in await trainer.registry.get(reference_keys(one.item))
                for shard in descriptor.tensors[0].shards
            }
            assert owners == {f"reference-{rank}" for rank in range(dp * tp)}
            # What was trained is freed.
            await trainer.commit(plan)
            keys = {key for one in sequences for key in reference_keys(one.item)}
            names = [f"{trainer.bus.prefix}descriptor:{key}" for key in keys]
            for _ in range(500):
                if not await trainer.bus.redis.exists(*names):
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError(f"still there: {names}")
            roles = {one.role: one for one in (await trainer.status()).roles}
            assert list(roles) == ["reference", "trainer"] and roles["trainer"].done == 16
            status = await worker(trainer)
            assert (status.parallelism.dp, status.parallelism.tp) == (dp, tp)
            assert await stack.terminate("reference") == 0, stack.log("reference")
        assert not list(stack.arenas.glob("reference-*"))


@pytest.mark.slow
async def test_what_warm_up_ended_with_is_kept_for_a_stage_that_starts_again(tmp_path: Path) -> None:
    async with Stack(configuration(tmp_path, 1, 1, warmup=1)) as stack:
        await stack.up("valkey", "model", "scheduler", "reference")
        async with PlayedTrainer(stack) as trainer, PlayedRollout(stack) as rollout:
            await rollout.play(lambda status: status.ledger.ready >= 16)
            warm = await trainer.next_batch()
            assert warm is not None and not any(item.columns for item in warm.ranks[0].items)
            for name, array in trainer.weights.items():
                # Not what the run began with.
                trainer.weights[name] = array + np.float32(0.01)
            await trainer.commit(warm)
            await rollout.play(lambda status: status.version == 2 and status.ledger.ready >= 16)
            plan = await trainer.next_batch()
            assert plan is not None and plan.version == 2
            sequences = await trainer.read(plan)
            found, _ = await referenced(trainer.reader, sequences)
            kept = stack.directory / "reference" / "step-2"
            for values, expected in zip(found, direct(kept, sequences), strict=True):
                np.testing.assert_allclose(values, expected, atol=1e-5)
            # It dies; the batch that was planned is computed again, and handed out again.
            await stack.kill("reference")
            for path in stack.arenas.glob("reference-*"):
                path.unlink()
            # Its version goes with the next ones: only the directory has it still.
            for name in trainer.weights:
                trainer.weights[name] = trainer.weights[name] * np.float32(2)
            await stack.start("reference")
            again = await trainer.next_batch()
            assert again is not None and again.batch_id == plan.batch_id
            assert [item.ticket_id for item in again.ranks[0].items] == [
                item.ticket_id for item in plan.ranks[0].items
            ]
            repeated, _ = await referenced(trainer.reader, await trainer.read(again))
            for values, before in zip(repeated, found, strict=True):
                np.testing.assert_array_equal(values, before)


@pytest.mark.slow
async def test_a_whole_run_survives_the_stages_death(tmp_path: Path) -> None:
    config = tictactoe(
        tmp_path,
        trainer={"kl_coefficient": 0.1, "lr": 1e-2, "entropy_coefficient": 0.05, "device": "cpu"},
        reference={"device": "cpu"},
        scheduler={"steps": 6, "staleness": 1},
        evaluation={"episodes": 0},
    )
    async with Stack(config) as stack:
        await stack.up("valkey")
        events = (await stack.bus()).follow("0-0")
        others = [name for name in stack.processes if name != "valkey"]
        async with asyncio.TaskGroup() as group:
            group.create_task(stack.up(*others))
            # Two batches were trained after warm-up's one.
            while (await until(events, "batch_committed", 60)).version < 4:
                pass
        await stack.kill("reference")
        await stack.start("reference")
        for name in ("trainer", "reference", "rollout-0"):
            assert await stack.ended(name, 60) == 0, stack.log(name)
        steps = [json.loads(line) for line in (stack.directory / "metrics.jsonl").open()]
        trained = [step for step in steps if step["phase"] == "train"]
        assert [step["step"] for step in trained] == list(range(1, 7))
        # The first batch's tokens are the reference policy's own.
        assert trained[0]["kl_reference"] == pytest.approx(0.0, abs=1e-6)
        assert all(step["kl_reference"] > 1e-5 for step in trained[1:])
        assert all(step["staleness_max"] <= 1 for step in trained)
        # What is left for later batches (at most one beside that of this step); at the end, nothing is.
        assert all(sum(step["stages"]["reference"].values()) <= 2 * 16 for step in steps)
        assert steps[-1]["stages"] == {"reference": {"waiting": 0, "leased": 0, "done": 0}}
        spans = [json.loads(line) for line in (stack.directory / "timeline.jsonl").open()]
        assert "computing" in {span["what"] for span in spans if span["who"] == "reference"}
