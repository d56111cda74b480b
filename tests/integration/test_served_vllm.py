"""A teacher that vLLM serves: its column is that of the same model here. `make test-vllm` runs it."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from earl.config.model import ScratchModel
from earl.config.run import RunConfig
from earl.dispatch.layout.box import Box
from earl.errors import ConfigError, ServiceUnavailable, Unauthenticated
from earl.models.create import create_models, write_scratch
from earl.models.parallel import TensorParallel
from earl.models.spec import load_spec
from earl.served.client import ServedModelClient
from earl.served.endpoint import ServedEndpoint
from services.rollout.engines.process.interpreter import interpreter_of
from services.trainer.checkpoint.export import write
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.requests import StageRequests
from services.trainer.reference.policy import FrozenPolicy, MaskedTrajectory, ReferencePolicy
from services.trainer.reference.served import ServedPolicy
from services.trainer.stage.rank_resources import RankResources
from tests.support import engines
from tests.support.runs import WORDS, tictactoe

pytestmark = pytest.mark.skipif(
    "vllm" not in engines.SELECTED, reason="needs vLLM's environment: make test-vllm"
)

# Heads of 32: the smallest that vLLM's attention on CPUs takes.
SIZES = ScratchModel(
    hidden_size=64, intermediate_size=96, layers=2, heads=2, kv_heads=2, max_positions=256, rope_theta=100.0,
    embedding_std=0.3, words=WORDS,
)  # fmt: skip
# Both compute in float32, with other kernels.
TOLERANCE = 2e-4
NAME, TOKEN = "large", secrets.token_urlsafe(32)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The teacher, as `earl export` writes it."""
    run = tmp_path_factory.mktemp("teacher") / "run"
    config = tictactoe(run.parent, model={"scratch": SIZES.model_dump()})
    write_scratch(run / "model", SIZES, 5, "float32")
    (run / "run.json").write_text(config.model_dump_json())
    write(run, run.parent / "exported", 1, "float32")
    return run.parent / "exported"


@contextmanager
def vllm(model: Path, log: Path, *options: str) -> Iterator[str]:
    """The base of the API of a server of its own."""
    python = interpreter_of(engines.EngineSpec(name="served", engine="vllm", model_dir=str(model)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1",
        "--port", str(port), "--served-model-name", NAME, "--dtype", "float32", "--enforce-eager", *options,
    ]  # fmt: skip
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **settings}, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def until_served(io: IoThread, url: str, log: Path) -> None:
    """Waits until the server answers."""

    async def cards() -> None:
        async with ServedModelClient(ServedEndpoint(url, token=TOKEN), tries=40) as client:
            await client.cards()

    try:
        io.run(cards(), 600.0)
    except ServiceUnavailable:
        pytest.fail(log.read_text()[-4000:])


class Stage:
    """The parts of a rank that a served policy needs."""

    def __init__(self, config: RunConfig, run_dir: Path, io: IoThread) -> None:
        self.config, self.run_dir, self.io, self.requests = config, run_dir, io, StageRequests()


def trajectories(count: int = 12) -> list[MaskedTrajectory]:
    rng = np.random.default_rng(7)
    made = []
    for number in range(count):
        length = int(rng.integers(2, 128))
        mask = (rng.random(length) < 0.6).astype(np.uint8)
        mask[0], mask[-1] = 0, 1
        tokens = rng.integers(0, len(WORDS) + 4, length).astype(np.int32)
        made.append(MaskedTrajectory(f"t/{number}", tokens, mask))
    return made


def column(policy: FrozenPolicy, given: list[MaskedTrajectory]) -> np.ndarray:
    total = sum(len(each.tokens) for each in given)
    into = np.full(total, np.nan, np.float32)
    policy.logprobs(given, Box((0,), (total,)), into)
    return into


@pytest.mark.timeout(900)
def test_the_served_column_is_that_of_the_same_model_here(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    io, log = IoThread(), tmp_path / "vllm.log"
    with vllm(exported, log, "--max-model-len", "129", "--api-key", TOKEN) as url:
        until_served(io, url, log)
        config = tictactoe(tmp_path, model={"dtype": "float32"}, teacher={"url": url})
        with pytest.raises(Unauthenticated, match="set EARL_TEACHER_TOKEN"):
            create_models(tmp_path / "run", config)
        monkeypatch.setenv("EARL_TEACHER_TOKEN", TOKEN)
        create_models(tmp_path / "run", config)
        served = ServedPolicy(cast(RankResources, Stage(config, tmp_path / "run", io)), load_spec(exported))
        served.fill(tmp_path / "run" / "teacher")
        given = trajectories()
        values = column(served, given)
        served.close()
        assert_equal_to_the_model_here(exported, tmp_path, given, values)

        other = tictactoe(tmp_path, model={"scratch": {"words": [*WORDS[1:], "y"]}}, teacher={"url": url})
        with pytest.raises(
            ConfigError, match="another tokenizer than the trained model: token 4 is 'x' there"
        ):
            create_models(tmp_path / "other", other)
        longer = tictactoe(
            tmp_path,
            model={"scratch": {"max_positions": 256}},
            rollout={"max_context_tokens": 129},
            teacher={"url": url},
        )
        with pytest.raises(ConfigError, match="129 tokens of context at most"):
            create_models(tmp_path / "longer", longer)
    io.close()


def assert_equal_to_the_model_here(
    exported: Path, directory: Path, given: list[MaskedTrajectory], values: np.ndarray
) -> None:
    run = tictactoe(directory, model={"dtype": "float32"}, teacher={"path": str(exported)})
    local = ReferencePolicy(load_spec(exported), TensorParallel(), torch.device("cpu"), run, "teacher")
    local.fill(exported)
    expected = column(local, given)
    assert np.std(expected[expected < 0]) > 0.5
    np.testing.assert_allclose(values, expected, atol=TOLERANCE, rtol=0)
