"""Steps on paced devices: the same tokens, each step counted, and memory that is the table's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from earl.config.paced import PacedConfig
from earl.errors import ContextTooLong, OutOfMemory
from earl.models.module import Decoder
from earl.models.parallel import TensorParallel
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest, Generation
from services.rollout.engines.torch.engine import TorchEngine
from services.rollout.engines.torch.model_runner import ModelRunner
from services.rollout.engines.torch.ranks import EngineRank, Followers
from services.rollout.pool.devices import PoolDevices

MODEL = ModelSpec("llama", 32, 2, 4, 2, 8, 48, 29)
HEAD = "stage,dp,tp,context_tokens,concurrency,tokens_per_device_s\n"
# Faster than any machine, so that every step is over pace.
FAST = HEAD + "rollout,1,1,8,1,1e9\nrollout,1,2,8,1,1e9\n"
SLOW = HEAD + "rollout,1,1,8,1,100\n"


def make(tmp_path: Path, text: str, **scales: float) -> TorchEngine:
    paced = ""
    if text:
        path = tmp_path / f"{abs(hash(text))}.csv"
        path.write_text(text)
        paced = PacedConfig(table=str(path), **scales).model_dump_json()
    spec = EngineSpec(name="unit", model_dir="", max_sequences=4, max_context_tokens=48, paced=paced)
    torch.manual_seed(0)
    decoder = Decoder(MODEL)
    rank = EngineRank.__new__(EngineRank)
    rank.runner = ModelRunner(MODEL, TensorParallel(), slots=4, context=48)
    tensors = dict(decoder.named_parameters())
    rank.runner.fill(lambda name, box: tensors[name].detach()[box.slices()])
    return TorchEngine(spec, rank, Followers([]))


def run(engine: TorchEngine, lengths: list[int], new: int = 6) -> dict[str, Any]:
    for number, length in enumerate(lengths):
        request = GenerateRequest(
            request_id=str(number), ids=[number + 1] * length, max_new_tokens=new, seed=number
        )
        engine.submit(request, stream=False)
    while engine.has_work:
        engine.step()
    kinds = (Generation, wire.RequestRefused)
    return {reply.request_id: reply for reply in engine.outbox if isinstance(reply, kinds)}


def test_paced_steps_sample_the_same_tokens(tmp_path):
    real, paced = (run(make(tmp_path, text), [3, 5, 9]) for text in ("", SLOW))
    assert {name: reply.ids for name, reply in real.items()} == {
        name: reply.ids for name, reply in paced.items()
    }


def test_every_step_is_counted_and_those_over_pace_too(tmp_path):
    fast, slow, real = make(tmp_path, FAST), make(tmp_path, SLOW), make(tmp_path, "")
    for engine in (fast, slow, real):
        run(engine, [3])
    first, again = fast.stats(), fast.stats()
    assert (first.paced_steps, first.late_steps) == (6, 6)
    assert (again.paced_steps, again.late_steps) == (0, 0)
    of_slow, of_real = slow.stats(), real.stats()
    # A step of one sequence takes 10 ms by the table.
    assert of_slow.paced_steps == 6 and of_slow.step_s >= 6 * 0.01
    assert (of_real.paced_steps, of_real.late_steps) == (0, 0)


def test_a_step_that_the_table_has_out_of_memory_ends_its_largest_sequence(tmp_path):
    engine = make(tmp_path, FAST + "rollout,1,1,6,2,oom\n")
    replies = run(engine, [3, 4])
    refused = [reply for reply in replies.values() if isinstance(reply, wire.RequestRefused)]
    assert [reply.request_id for reply in refused] == ["1"]
    error = refused[0].error.rebuild()
    assert isinstance(error, OutOfMemory) and "out of memory for 2 sequences" in error.message
    # The other one continues alone.
    assert isinstance(replies["0"], Generation) and len(replies["0"].ids) == 6


def test_a_sequence_that_the_devices_never_hold_waits_for_others(tmp_path):
    engine = make(tmp_path, FAST + "rollout,1,1,32,1,oom\n", context_scale=2)
    replies = run(engine, [9, 10])
    assert isinstance(replies["0"], Generation)
    refusal = replies["1"]
    assert isinstance(refusal, wire.RequestRefused)
    error = refusal.error.rebuild()
    assert isinstance(error, ContextTooLong) and "16 tokens exceed the 15 that tp1 holds" in error.message


def test_a_pool_has_the_layouts_of_its_table_and_waits_for_one_that_holds_more(tmp_path):
    base = make(tmp_path, FAST + "rollout,1,1,32,1,oom\n").spec
    pool = PoolDevices(base, 4, MODEL)
    assert [str(layout) for layout in pool.legal] == ["dp4", "dp2·tp2"]
    with pytest.raises(Exception, match="no rows of tp4 of rollout"):
        pool.check(Parallelism(1, 4))
    assert (pool.longest_context(1), pool.longest_context(2)) == (31, 48)
    assert pool.wider(1, 40) == [2]
    assert pool.wider(2, 49) == []
