"""A served policy as a stage of one rank uses it, against a real server of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from earl.dispatch.layout.box import Box
from earl.errors import ConfigError, ServiceUnavailable
from earl.models.create import create_models
from earl.models.spec import SPECIALS, load_spec
from earl.served import client
from services.trainer.ranks.io_thread import IoThread
from services.trainer.ranks.requests import StageRequests
from services.trainer.reference.origin import Origin
from services.trainer.reference.policy import MaskedTrajectory, WorkAbandoned
from services.trainer.reference.served import ServedPolicy
from services.trainer.stage.rank_resources import RankResources
from tests.support.completions_server import CompletionsServer, completions_server, expected
from tests.support.runs import WORDS, tictactoe

TOKENS = [*SPECIALS, *WORDS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompletionsServer]:
    with completions_server(tmp_path_factory.mktemp("server"), TOKENS) as made:
        yield made


class Stage:
    """The parts of a rank that a served policy needs, as a run on this machine has them."""

    def __init__(self, directory: Path, url: str) -> None:
        self.config = tictactoe(directory, teacher={"url": url, "requests": 2})
        self.run_dir, self.io, self.requests = directory / "run", IoThread(), StageRequests()
        create_models(self.run_dir, self.config)

    def policy(self) -> ServedPolicy:
        origin = Origin.of(self.config, self.run_dir, "teacher")
        assert origin.given and origin.kept
        made = ServedPolicy(cast(RankResources, self), load_spec(origin.model))
        made.fill(origin.directory)
        return made


@pytest.fixture
def stage(tmp_path: Path, server: CompletionsServer) -> Iterator[Stage]:
    made = Stage(tmp_path, server.url())
    yield made
    made.io.close()


def sequences(count: int = 5) -> list[MaskedTrajectory]:
    """The last of them has no trained token, the others end with tokens that are not trained."""
    rng = np.random.default_rng(1)
    made = []
    for number in range(count):
        tokens = rng.integers(0, len(TOKENS), 12).astype(np.int32)
        mask = (rng.random(12) < 0.5).astype(np.uint8)
        mask[[0, 10, 11]] = 0
        mask[5] = 1
        made.append(MaskedTrajectory(f"t/{number}", tokens, mask * (number < count - 1)))
    return made


def logprobs(policy: ServedPolicy, given: list[MaskedTrajectory]) -> np.ndarray:
    total = sum(len(each.tokens) for each in given)
    into = np.full(total, np.nan, np.float32)
    policy.logprobs(given, Box((0,), (total,)), into)
    return into


def test_trained_tokens_have_the_servers_log_probs_and_others_0(stage: Stage, server: CompletionsServer):
    given, policy = sequences(), stage.policy()
    before = len(server.requests())
    values = logprobs(policy, given)
    wished = [expected(len(TOKENS), each.tokens.tolist()) * each.loss_mask for each in given]
    np.testing.assert_allclose(values, np.concatenate(wished), atol=1e-6)
    # The check, once; then one request each up to the last trained token, none where nothing is trained.
    check, *prompts = (request["prompt"] for request in server.requests()[before:])
    assert set(check) == set(range(len(TOKENS)))
    ends = [int(np.flatnonzero(each.loss_mask)[-1]) + 1 for each in given[:-1]]
    assert sorted(map(len, prompts)) == sorted(ends)
    logprobs(policy, given)
    assert len(server.requests()) == before + 1 + 2 * len(prompts)
    policy.close()


def test_another_teacher_in_its_place_is_refused(stage: Stage, server: CompletionsServer):
    record = stage.run_dir / "teacher" / "served.json"
    record.write_text(record.read_text().replace('"table"', '"another"'))
    with pytest.raises(ConfigError, match="serves 'table', and the run's teacher was 'another'"):
        logprobs(stage.policy(), sequences())


def test_a_server_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.0)
    with completions_server(tmp_path, TOKENS) as server:
        stage = Stage(tmp_path, server.url())
        policy = stage.policy()
        logprobs(policy, sequences())
    with pytest.raises(ServiceUnavailable, match=f"{server.url()}/completions cannot be reached"):
        logprobs(policy, sequences())
    stage.io.close()


@pytest.mark.parametrize("ends", ["stop", "run_ended"])
def test_a_process_that_is_to_end_gives_its_lease_up(stage: Stage, server: CompletionsServer, ends: str):
    policy = stage.policy()
    fields: dict[str, Any] = {"_checked": True, "_client": client.ServedModelClient(slow(policy, server))}
    for name, value in fields.items():
        setattr(policy, name, value)
    timer = threading.Timer(0.1, getattr(stage.requests, ends).set)
    timer.start()
    with pytest.raises(WorkAbandoned):
        logprobs(policy, sequences())
    timer.join()


def slow(policy: ServedPolicy, server: CompletionsServer):
    """The endpoint of a server that does not answer."""
    return type(policy._endpoint)(server.url("slow"), 2)
