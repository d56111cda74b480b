"""stack.share = "alternate" on a CPU: the memory of engines and trainer together, in each of the two turns.

The proportional set sizes of the engine's and the trainer's process are measured every few milliseconds; to
which turn a measurement belongs is read from the run's own timeline afterwards.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from earl.models.spec import load_spec
from earl.rpc.client import Client
from earl.v1 import scheduler_pb2
from earl.v1.scheduler_pb2_grpc import SchedulerServiceStub
from tests.support.runs import tictactoe
from tests.support.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 3
ENGINE = "services.rollout.engines.process"
INTERVAL_S = 0.01
# Above the sum of the parts, as a share of it.
ALLOWED = 0.1
LARGE = {"hidden_size": 512, "intermediate_size": 1536, "layers": 7, "heads": 8, "kv_heads": 4}


def pss_bytes(pid: int) -> int:
    """Proportional set size without shared memory: arenas, where published versions and trajectories lie in
    either turn, and whose pages would count for whoever has mapped them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    return 1024 * (sizes["Pss"] - sizes["Pss_Shmem"])


@dataclass
class Measured:
    """The memory of one run. rows: (Unix nanoseconds, engine, trainer) in bytes. spans: of the timeline, by
    what was done."""

    rows: list[tuple[int, int, int]] = field(default_factory=list)
    spans: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    # Of both before anything was played: the engine has never been awake, the trainer has published once.
    began: tuple[int, int] = (0, 0)
    # Of the model in float32.
    model_bytes: int = 0

    def during(self, what: str) -> list[tuple[int, int]]:
        """(engine, trainer) while the run did this, and nothing of the other kind."""
        other = "generate" if what == "training" else "training"
        return [
            (engine, trainer)
            for at_ns, engine, trainer in self.rows
            if any(start <= at_ns <= end for start, end in self.spans[what])
            and not any(start <= at_ns <= end for start, end in self.spans[other])
        ]


async def measured(directory: Path, **sections: Any) -> Measured:
    config = tictactoe(
        directory,
        warmup={"batches": 0},
        evaluation={"episodes": 0},
        scheduler={"selector": "static", "steps": STEPS, "batch_groups": 8},
        **sections,
    )
    result, stop = Measured(), threading.Event()
    async with Stack(config, as_launched=True) as stack:
        await stack.up("valkey", "model", "scheduler", "gateway", "rollout-0", "trainer")
        children = psutil.Process(stack.processes["rollout-0"].pid).children(recursive=True)
        (engine,) = [child for child in children if ENGINE in child.cmdline()]
        pids = engine.pid, stack.processes["trainer"].pid

        def watch() -> None:
            while not stop.wait(INTERVAL_S):
                try:
                    result.rows.append((time.time_ns(), pss_bytes(pids[0]), pss_bytes(pids[1])))
                except OSError:
                    return  # a process has ended

        result.began = pss_bytes(pids[0]), pss_bytes(pids[1])
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            await stack.up("env-0")
            await asyncio.gather(stack.ended("trainer", 240.0), stack.ended("rollout-0", 240.0))
        finally:
            stop.set()
            watching.join()
        client = Client(stack.scheduler, SchedulerServiceStub)
        request = scheduler_pb2.GetStatusRequest()
        ledger = (await client.call("GetStatus", request, deadline_s=30.0)).ledger
        await client.close()
        live = ledger.pending + ledger.leased + ledger.ready + ledger.planned
        assert ledger.issued == ledger.trained + sum(ledger.dropped.values()) + live
        assert ledger.trained == STEPS * 32
    spans = [json.loads(line) for line in (stack.directory / "timeline.jsonl").read_text().splitlines()]
    result.model_bytes = load_spec(stack.directory / "model").size_bytes("float32")
    for what in ("training", "generate"):
        result.spans[what] = [(s["start_ns"], s["end_ns"]) for s in spans if s["what"] == what]
    return result


TURNS = {"stack": {"share": "alternate"}}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """A run in which nobody sleeps."""
    return asyncio.run(measured(tmp_path_factory.mktemp("together"), model={"scratch": LARGE}))


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    """An engine's process and a rank with next to nothing in them: a model of a few thousand parameters."""
    return asyncio.run(measured(tmp_path_factory.mktemp("empty"), **TURNS)).began


@pytest.mark.parametrize("offloads", [False, True])
def test_two_turns_take_the_larger_of_both_not_the_sum(together, empty, offloads, tmp_path):
    offload_dir = str(tmp_path) if offloads else ""
    run = asyncio.run(
        measured(tmp_path, **TURNS, model={"scratch": LARGE}, trainer={"offload_dir": offload_dir})
    )
    engine = max(engine for engine, _ in together.during("generate"))
    trainer = max(trainer for _, trainer in together.during("training"))
    empty_engine, empty_rank = empty
    # Parameters and two moments.
    state = 0 if offloads else 3 * run.model_bytes
    stepping, sampling = trainer + empty_engine, engine + empty_rank + state
    assert max(map(sum, run.during("training"))) <= (1 + ALLOWED) * stepping < engine + trainer
    assert max(map(sum, run.during("generate"))) <= (1 + ALLOWED) * sampling
    if offloads:
        assert (1 + ALLOWED) * sampling < engine + trainer
