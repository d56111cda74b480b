"""The selector predicts for GPUs by what workers say of them: over real gRPC, with a real bus and ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from earl.bus import Bus
from earl.bus.embedded import EmbeddedValkey
from earl.config.run import RunConfig
from earl.obs.metrics import read_lines
from earl.parallelism import Parallelism
from earl.rpc.access import OPEN
from earl.rpc.server import Server
from earl.scheduler_client import SchedulerClient
from earl.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from earl.worker_report import WorkerDevice
from services.scheduler.api.servicer import SERVICE, SchedulerServicer
from services.scheduler.scheduler import Scheduler
from tests.support.runs import tictactoe
from tests.support.selection import step_of

# Without fractions of memory: whether a layout fits is for the memory model to say.
PROFILE = """stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s
rollout,2,1,1,1,64,8,100
rollout,2,1,1,1,32768,64,50
rollout,1,2,1,1,64,8,60
rollout,1,2,1,1,32768,64,30
"""
# Qwen3-8B.
MODEL = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": False, "max_position_embeddings": 40960,
}  # fmt: skip
DP2 = Parallelism(2)


def on_gpus(directory: Path, share: bool) -> RunConfig:
    profile = directory / "table.csv"
    profile.write_text(PROFILE)
    return tictactoe(
        directory,
        model={"dtype": "bfloat16"},
        rollout={
            "device": "cuda", "engines": 2, "max_sequences": 16, "max_context_tokens": 32_768,
            "kv_tokens": 300_000,
        },
        trainer={"device": "cuda", "ranks": 2, "activation_checkpointing": True, "microbatch_tokens": 16384},
        scheduler={"profile": str(profile)},
        stack={"share": share},
    )  # fmt: skip


@asynccontextmanager
async def scheduler(config: RunConfig, run_dir: Path, url: str) -> AsyncIterator[tuple[Scheduler, str]]:
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(url, config.name)
        stack.push_async_callback(bus.close)
        server = Server("scheduler", "127.0.0.1:0", drain_s=0.0)
        opened = await Scheduler.open(config, run_dir, bus)
        server.add(add_SchedulerServiceServicer_to_server, SchedulerServicer(opened), SERVICE)
        stop = asyncio.Event()
        working = asyncio.create_task(opened.loop.run(stop))

        async def end() -> None:
            opened.loop.drain()
            stop.set()
            await working

        stack.push_async_callback(end)
        stack.push_async_callback(server.stop)
        yield opened, await server.start()


@asynccontextmanager
async def member(address: str, stage, devices: list[WorkerDevice]) -> AsyncIterator[SchedulerClient]:
    """A worker that has joined and said in a heartbeat what it computes on."""
    client = SchedulerClient(
        address, OPEN, stage=stage, name=stage, incarnation=1, capacity=2, parallelism=DP2, heartbeat_s=5.0
    )
    try:
        await client.join("127.0.0.1:9")
        client.devices = devices
        await client.heartbeat(running=0, version=0, gauges={}, spans=[], transfers=[])
        yield client
    finally:
        await client.close()


def fractions(opened: Scheduler, run_dir: Path, step: int) -> dict[int, Any]:
    """The predicted fraction of memory of both layouts, by their tp, in the decision after a step."""
    observed = step_of(20_000.0, longest=26_000.0)
    opened.loop.parallelism.committed(step, observed, now=float(step), last=True)
    *_, line = read_lines(run_dir / "decisions.jsonl")
    return {each["parallelism"]["tp"]: each["memory_fraction"] for each in line["candidates"]}


def cards(*numbers: int) -> list[WorkerDevice]:
    return [WorkerDevice("cuda", f"GPU-{number}", number, 80 << 30, 79 << 30) for number in numbers]


async def test_devices_that_workers_report_bound_what_the_selector_chooses(tmp_path: Path) -> None:
    config = on_gpus(tmp_path, share=True)
    run_dir = tmp_path / "run"
    (run_dir / "model").mkdir(parents=True)
    (run_dir / "model" / "config.json").write_text(json.dumps(MODEL))
    valkey = EmbeddedValkey()
    try:
        url = await valkey.start(run_dir / "valkey")
        async with scheduler(config, run_dir, url) as (opened, address):
            # Nobody has said anything: nothing is known of GPUs.
            assert fractions(opened, run_dir, 1) == {1: None, 2: None}
            async with member(address, "rollout", cards(0, 1)):
                alone = fractions(opened, run_dir, 2)
                # 15.3 GiB of weights, 41 GiB of KV on each; half of the weights with tp2.
                assert 0.7 < alone[1] < 0.8 and 0.6 < alone[2] < alone[1]
                async with member(address, "trainer", cards(1, 2)):
                    shared = fractions(opened, run_dir, 3)
                    # GPU 1 has a rank of the trainer beside its engine, which takes more than is left.
                    assert shared[1] > 1 and shared[2] > 1
            await opened.loop.settled()
        # The next scheduler has the workers' records, and with them their devices.
        async with scheduler(config, run_dir, url) as (opened, _):
            assert fractions(opened, run_dir, 4) == shared
    finally:
        await valkey.stop()
