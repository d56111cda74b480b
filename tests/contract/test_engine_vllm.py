"""vLLM alone: what the contract suite cannot reach from outside, and two ranks. `make test-vllm` runs it."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from earl.errors import ConfigError, EngineError, EngineLost, EngineNotInstalled, UnsupportedModel
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.process.client import EngineProcess
from services.rollout.engines.process.interpreter import interpreter_of
from tests.support import engines
from tests.support.engines import MODELS, ask, assert_close, assert_gone, prompt, recompute, whole_blocks

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif("vllm" not in engines.SELECTED, reason="needs vLLM's environment: make test-vllm"),
]
ROOT = Path(__file__).resolve().parents[2]
run, model_dir, weights = engines.run, engines.model_dir, engines.weights

# Runs in vLLM's environment, without a service: a load whose second half does not fit the model.
HALFWAY = """
import pathlib, sys, msgspec
from earl.errors import WeightsIncomplete
from services.rollout.engines.contract import wire
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest
from services.rollout.engines.vllm.engine import VllmEngine

spec = msgspec.json.decode(pathlib.Path(sys.argv[1]).read_bytes(), type=EngineSpec)
keys = sys.argv[3:]
engine = VllmEngine(spec)
stager = engine._core.model_executor.driver_worker.worker.earl_stager

take = stager.take

class CutVersion:
    def __init__(self, staged, broken):
        self.staged, self.broken, self.size_bytes = staged, broken, staged.size_bytes

    def tensors(self):
        for name, array, dtype in self.staged.tensors():
            yield name, array[:-1] if name == self.broken else array, dtype

def load(version):
    engine.drop()
    engine.load(version, version, keys, 30.0)
    while not engine.outbox:
        engine.collect()
    answer = engine.outbox.pop()
    assert answer.error is None, answer

def generate(name):
    engine.submit(GenerateRequest(request_id=name, ids=[1, 2, 3], max_new_tokens=4, temperature=0.0), False)
    while engine.has_work:
        engine.step()
    (reply,) = engine.outbox
    engine.outbox = []
    if isinstance(reply, wire.RequestRefused):
        assert reply.error.kind == "WeightsIncomplete", reply
        return None
    return reply.ids

version = int(sys.argv[2])
load(version)
engine.commit(version)
wanted = generate("whole")
assert wanted is not None and len(wanted) == 4
for broken in ("model.layers.1.mlp.down_proj.weight", "model.norm.weight", "model.embed_tokens.weight"):
    load(version)
    stager.take = lambda version: CutVersion(take(version), broken)
    try:
        engine.commit(version)
        raise SystemExit(f"{broken}: a load that does not fit was taken")
    except WeightsIncomplete as error:
        assert "could not apply" in str(error), error
    assert generate("refused") is None
    stager.take = take
    load(version)
    engine.commit(version)
    assert generate("again") == wanted
engine.close()
print("ok", flush=True)
"""


@pytest.fixture(scope="module")
def spec(model_dir, run) -> EngineSpec:
    url, name, config, _ = run
    return EngineSpec(
        name="under-test",
        model_dir=str(model_dir),
        engine="vllm",
        device="cpu",
        max_sequences=4,
        max_context_tokens=256,
        redis_url=url,
        run=name,
        data_plane=config.model_dump_json(),
        start_s=300.0,
    )


async def test_a_load_that_fails_half_way_is_mended_by_the_next(spec, weights, tmp_path):
    (tmp_path / "spec.json").write_bytes(msgspec.json.encode(spec))
    version, keys = await weights.publish(MODELS[1])
    command = [interpreter_of(spec), "-c", HALFWAY, str(tmp_path / "spec.json"), str(version), *keys]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    out, err = await process.communicate()
    assert out.decode().endswith("ok\n") and process.returncode == 0, err.decode()[-4000:]
    await weights.remove(keys)


async def test_two_ranks_read_their_own_slices_and_end_together(spec, weights):
    engine = EngineProcess(msgspec.structs.replace(spec, tp=2))
    await engine.start()
    try:
        ids = prompt(70)
        first = await engine.generate_all(ask(ids, 8, seed=3))
        assert_close(first.logprobs, recompute(MODELS[0], ids, first.ids))
        again = await engine.generate_all(ask(ids, 8, seed=3))
        assert again.ids == first.ids and again.reused_tokens == whole_blocks(engine, 69) == 64
        version, keys = await weights.publish(MODELS[1])
        report = await engine.load_weights(version, keys, 60.0)
        # Attention and MLP are read once, by halves; embeddings, head and norms by both ranks.
        sizes = {name: 4 * tensor.numel() for name, tensor in MODELS[1].state_dict().items()}
        halves = sum(size for name, size in sizes.items() if "_proj." in name)
        assert report.size_bytes == halves + 2 * (sum(sizes.values()) - halves)
        await weights.remove(keys)
        second = await engine.generate_all(ask(ids, 8, seed=3))
        assert second.reused_tokens == 0 and second.versions == [version] * 8
        assert_close(second.logprobs, recompute(MODELS[1], ids, second.ids))
        assert len(engine.pids) == 3
        await engine.pause()
        waiting = asyncio.create_task(engine.generate_all(ask(ids, 8)))
        await engine.stats()
        psutil.Process(engine.pids[2]).send_signal(signal.SIGKILL)
        # A worker's death is heard when the kernel has taken its memory apart; the engine's own, at once.
        async with asyncio.timeout(15):
            with pytest.raises(EngineLost, match="exit code 3"):
                await waiting
        await assert_gone(engine.pids)
    finally:
        await engine.stop()


async def test_what_cannot_be_says_why(spec, tmp_path):
    small = engines.random_model(0, head_dim=16)
    small.save_pretrained(tmp_path / "small")
    for changes, error, words in (
        ({"model_dir": str(tmp_path / "small")}, UnsupportedModel, "heads of size 16"),
        ({"deterministic": True}, ConfigError, "deterministic"),
        ({"python": sys.executable}, EngineError, "vLLM cannot be imported"),
        ({"python": str(tmp_path / "python")}, EngineNotInstalled, "is no executable"),
    ):
        engine = EngineProcess(msgspec.structs.replace(spec, **changes))
        with pytest.raises(error, match=words) as caught:
            await engine.start()
        assert caught.value.remedy
        await assert_gone(engine.pids)
