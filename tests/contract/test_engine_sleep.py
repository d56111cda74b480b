"""Checks sleep and wake of every engine: memory goes back to the system, and sampling continues exactly."""

import asyncio

import psutil
import pytest

from earl.errors import ReshapeRefused, WeightsIncomplete
from services.rollout.engines.contract.engine import KvOffer
from services.rollout.engines.process.client import EngineProcess
from tests.support import engines
from tests.support.engines import CONTEXT, MODELS, TRAITS, ask, assert_close, prompt, random_model, recompute

pytestmark = pytest.mark.asyncio(loop_scope="module")
run, model_dir, spec, weights = engines.run, engines.model_dir, engines.spec, engines.weights
own = engines.own
# A model of so many bytes, in float32, and of as many blocks as make a rank's share larger than any noise.
LARGE = {"hidden_size": 384, "intermediate_size": 768, "num_hidden_layers": 5}
LARGE_BYTES = 4 * 5 * (384 * 128 * 2 + 2 * 384 * 64 + 3 * 384 * 768)


@pytest.fixture(autouse=True)
def only_engines_that_sleep(spec):
    if not TRAITS[spec.engine].sleeps:
        pytest.skip(f"{spec.engine}: sleeps is False: it returns its memory on GPUs only")


async def load(engine: EngineProcess, weights, model=MODELS[0]) -> int:
    version, keys = await weights.publish(model)
    await engine.load_weights(version, keys)
    await weights.remove(keys)
    return version


async def test_sampling_continues_exactly_after_sleep(own, weights):
    engine = await own()
    whole = await engine.generate_all(ask(prompt(20), 150, seed=4))
    stream = engine.generate(ask(prompt(20), 150, seed=4, session="s"))
    chunks = [await anext(stream)]
    waiting = [asyncio.create_task(engine.generate_all(ask(prompt(9, n), 150))) for n in range(6)]
    await engine.stats()
    await engine.sleep()
    chunks += [chunk async for chunk in stream]
    assert chunks[-1].finish == "abort"
    assert {generation.finish for generation in await asyncio.gather(*waiting)} == {"abort"}
    ids = [token for chunk in chunks for token in chunk.ids]
    logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert 0 < len(ids) < 150
    stats = await engine.stats()
    assert (stats.asleep, stats.running, stats.retained, stats.kv_committed_tokens) == (True, 0, 0, 0)
    await engine.wake()
    version = await load(engine, weights)
    assert not (await engine.stats()).asleep
    rest = await engine.generate_all(ask(prompt(20) + ids, 150 - len(ids), seed=4, session="s"))
    assert ids + rest.ids == whole.ids and rest.reused_tokens == 0
    assert_close(logprobs + rest.logprobs, recompute(MODELS[0], prompt(20), whole.ids))
    assert set(rest.versions) == {version}


async def test_an_engine_that_sleeps_refuses_what_it_cannot_do(own, weights):
    engine = await own(sleeps=True)
    version, keys = await weights.publish(MODELS[1])
    for _ in range(2):  # it begins asleep
        with pytest.raises(WeightsIncomplete, match="no complete weights"):
            await engine.generate_all(ask(prompt(4)))
        with pytest.raises(WeightsIncomplete, match="sleeps"):
            await engine.load_weights(version, keys)
        with pytest.raises(ReshapeRefused, match="sleeps"):
            await engine.offer_kv("offer", {}, 1.0)
        with pytest.raises(WeightsIncomplete):
            await engine.take_kv(KvOffer(name="o", keys=[], version=1, sessions=[], size_bytes=0), 1.0)
        await engine.sleep()
    for _ in range(2):
        await engine.wake()
        with pytest.raises(WeightsIncomplete, match="no complete weights"):
            await engine.generate_all(ask(prompt(4)))
    await engine.load_weights(version, keys)
    await weights.remove(keys)
    generation = await engine.generate_all(ask(prompt(30), 40, seed=1))
    assert_close(generation.logprobs, recompute(MODELS[1], prompt(30), generation.ids))


def held_bytes(engine: EngineProcess) -> int:
    """Memory of the engine's processes that no other process shares."""
    return sum(psutil.Process(pid).memory_full_info().uss for pid in engine.pids)


async def test_a_sleeping_engine_holds_no_more_than_an_empty_one(own, tmp_path):
    random_model(0, **LARGE).save_pretrained(tmp_path)
    empty = await own(model_dir=str(tmp_path), sleeps=True)
    engine = await own(model_dir=str(tmp_path))
    await engine.generate_all(ask(prompt(CONTEXT - 4), 4))
    awake = held_bytes(engine)
    await engine.sleep()
    asleep, nothing = held_bytes(engine), held_bytes(empty)
    assert awake - asleep > LARGE_BYTES
    # Code that ran once, and heap that another block keeps in place.
    assert asleep - nothing < 0.25 * (awake - nothing)
    await engine.wake()
    assert held_bytes(engine) - asleep < LARGE_BYTES / 2  # on a CPU memory comes with the first write
