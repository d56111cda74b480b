"""The torch engine's memory and dtypes as its processes have them: the KV that is resident stays within its
bound while requests wait, are preempted and continue, and weights of another dtype are taken."""

import asyncio
import re
import resource
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from earl.errors import OutOfMemory
from services.rollout.engines.process.client import EngineProcess
from tests.support import engines
from tests.support.engines import DEVICE, MODELS, ask, assert_close, prompt, recompute

pytestmark = pytest.mark.asyncio(loop_scope="module")
run, model_dir, spec, weights = engines.run, engines.model_dir, engines.spec, engines.weights
own = engines.own

SEQUENCES, LENGTH, BOUND, NEW = 23, 1024, 4096, 200
# "Size:   23552 kB" and the like, of one mapping in /proc/PID/smaps, and its flags; nr: without reserve.
SIZES, FLAGS = (
    re.compile(r"^(Size|Rss): +(\d+) kB$", re.MULTILINE),
    re.compile(r"^VmFlags: (.*)$", re.MULTILINE),
)


def resident_bytes(pid: int, mapped_bytes: int) -> int:
    """Resident size of the rank's KV cache, the mapping of so many bytes that has no reserve: a forked
    process has heaps of its server's that may be as large."""
    resident_of: list[int] = []
    for mapping in re.split(r"(?<=\n)(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text()):
        sizes = {name: int(kib) << 10 for name, kib in SIZES.findall(mapping)}
        if sizes.get("Size") == mapped_bytes and "nr" in FLAGS.findall(mapping)[0].split():
            resident_of.append(sizes["Rss"])
    [resident] = resident_of
    return resident


async def test_resident_kv_stays_within_the_bound(own, spec):
    if DEVICE != "cpu":
        pytest.skip("a GPU's cache is allocated whole")
    bounded = await own(max_sequences=SEQUENCES, kv_tokens=BOUND)
    requests = [ask(prompt(200 + n, n), NEW, seed=n) for n in range(SEQUENCES)]
    tasks = [asyncio.create_task(bounded.generate_all(request)) for request in requests]
    token_bytes = (await bounded.stats()).kv_token_bytes
    most = 0
    while (stats := await bounded.stats()).running or stats.waiting:
        most = max(most, *(resident_bytes(pid, token_bytes * SEQUENCES * LENGTH) for pid in bounded.pids))
        assert stats.kv_used_tokens <= stats.kv_committed_tokens <= stats.kv_tokens == BOUND
    assert BOUND * token_bytes / 2 < most <= BOUND * token_bytes
    assert stats.preemptions > 0
    for request, task in zip(requests, tasks, strict=True):
        generation = await task
        assert len(generation.ids) == NEW and generation.finish == "length"
        if request is requests[-1]:  # the youngest, and so preempted
            assert_close(generation.logprobs, recompute(MODELS[0], request.ids, generation.ids))


async def test_a_step_that_finds_no_memory_costs_the_largest_request_alone(own, spec):
    if spec.tp > 1:
        pytest.skip("a rank of several that finds no memory ends, and the engine with it")
    if DEVICE != "cpu":
        pytest.skip("it bounds a processor's memory; of a card: `earl bench gpu`, out-of-memory")
    engine = await own(prefill_tokens=LENGTH)
    [pid] = engine.pids
    await engine.generate_all(ask(prompt(4), 4))
    long = prompt(LENGTH - 8, 1)
    # Messages still find room, activations of the long sequence do not.
    taken = psutil.Process(pid).memory_info().vms + (2 << 20)
    before = resource.prlimit(pid, resource.RLIMIT_AS, (taken, resource.RLIM_INFINITY))
    short = asyncio.create_task(engine.generate_all(ask(prompt(5), NEW)))
    with pytest.raises(OutOfMemory, match=rf"most of them of a sequence of {len(long)}: .*memory"):
        await engine.generate_all(ask(long, 4))
    assert (await short).finish == "length" and engine.pids == [pid]
    resource.prlimit(pid, resource.RLIMIT_AS, before)
    again = await engine.generate_all(ask(long, 4, temperature=0.0))
    assert_close(again.logprobs, recompute(MODELS[0], long, again.ids))


def rounded(dtype: torch.dtype) -> SimpleNamespace:
    """MODELS[1] as a trainer of that dtype publishes it: bfloat16 travels as uint16."""
    state = {name: tensor.to(dtype) for name, tensor in MODELS[1].state_dict().items()}
    if dtype == torch.bfloat16:
        state = {name: tensor.view(torch.uint16) for name, tensor in state.items()}
    return SimpleNamespace(state_dict=lambda: state)


async def generations(engine: EngineProcess, weights, dtype: torch.dtype) -> tuple[list[int], list[float]]:
    version, keys = await weights.publish(rounded(dtype))
    await engine.load_weights(version, keys)
    await weights.remove(keys)
    generation = await engine.generate_all(ask(prompt(40), 30, seed=3))
    return generation.ids, generation.logprobs


async def test_weights_of_the_other_dtype_are_taken(own, weights):
    for engine in (await own(dtype="bfloat16"), await own(dtype="float32")):
        wide, narrow = [
            await generations(engine, weights, dtype) for dtype in (torch.float32, torch.bfloat16)
        ]
        if engine.spec.dtype == "bfloat16":
            assert wide == narrow
        ids, logprobs = wide
        again = recompute(MODELS[1], prompt(40), ids).numpy()
        tolerance = 0.2 if engine.spec.dtype == "bfloat16" else 1e-4
        assert np.abs(np.array(logprobs) - again).max() < tolerance


async def test_deterministic_engines_agree_bit_for_bit(own):
    requests = [ask(prompt(20 + 13 * n, n), 24, seed=n) for n in range(8)]
    one = await own(deterministic=True)
    wanted = [await one.generate_all(request) for request in requests]
    other = await own(deterministic=True, kv_tokens=512, prefill_tokens=50)
    found = await asyncio.gather(*map(other.generate_all, requests))
    for a, b in zip(found, wanted, strict=True):
        assert (a.ids, a.logprobs) == (b.ids, b.logprobs)
