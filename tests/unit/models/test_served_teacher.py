"""The check of a served teacher against a real server of the protocol, before a run uses it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from earl.config.model import ScratchModel
from earl.config.run import RunConfig
from earl.errors import ConfigError, EarlError, ModelNotFound, ServiceUnavailable, UnusableReply
from earl.models.create import create_models, write_scratch
from earl.models.served_teacher import PROBED, probe_prompts, probe_texts, read_record
from earl.models.spec import SPECIALS
from earl.served import client
from tests.support.completions_server import NAME, CompletionsServer, completions_server
from tests.support.runs import WORDS, tictactoe

TOKENS = [*SPECIALS, *WORDS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompletionsServer]:
    with completions_server(tmp_path_factory.mktemp("server"), TOKENS) as made:
        yield made


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.0)


def run_of(directory: Path, url: str, **keys: Any) -> RunConfig:
    return tictactoe(directory, teacher={"url": url, **keys})


def test_a_teacher_is_recorded_and_not_asked_again(tmp_path: Path, server: CompletionsServer):
    config = run_of(tmp_path, server.url())
    create_models(tmp_path / "run", config)
    record = read_record(tmp_path / "run" / "teacher")
    assert (record.url, record.model) == (server.url(), NAME)
    asked = server.requests()
    # Each token of the vocabulary stood once after another.
    assert sorted(token for request in asked for token in request["prompt"][1:]) == list(range(len(TOKENS)))
    # The server of a run that is resumed may be gone: its teacher may have ended.
    create_models(tmp_path / "run", run_of(tmp_path, server.url(), served_model=NAME))
    assert server.requests() == asked
    create_models(tmp_path / "run", run_of(tmp_path, server.url("two"), served_model=NAME))
    assert read_record(tmp_path / "run" / "teacher").url == server.url("two")


@pytest.mark.parametrize(
    ("fault", "keys", "error", "message"),
    [
        ("two", {}, ConfigError, r"serves 2 models: table, other; set teacher\.served_model"),
        ("empty", {}, ConfigError, "serves 0 models: none"),
        ("", {"served_model": "x"}, ConfigError, r"served_model = 'x' is no model of .* which has: table"),
        (
            "words",
            {},
            ConfigError,
            "another tokenizer than the trained model: token 0 is 'y<pad>' there, and '<pad>'",
        ),
        ("untold", {}, ConfigError, "tells the text of 0 of 17 tokens"),
        ("logits", {}, ConfigError, "less than that of equally likely ones.*--logprobs-mode raw_logprobs"),
        ("tight", {}, ConfigError, r"128 tokens of context at most.*--max-model-len 129"),
        ("small", {}, UnusableReply, "Token id 16 is out of vocabulary"),
        ("positive", {}, UnusableReply, "0.5, above 0"),
        ("absent", {}, UnusableReply, "status 404"),
        ("closes", {}, ServiceUnavailable, "cannot be reached"),
    ],
)
def test_a_server_that_cannot_teach_the_run_is_refused(
    tmp_path: Path, server: CompletionsServer, fault: str, keys: dict[str, Any], error: type[EarlError],
    message: str,
):  # fmt: skip
    with pytest.raises(error, match=message) as refused:
        create_models(tmp_path / "run", run_of(tmp_path, server.url(fault), **keys))
    assert server.url(fault) in refused.value.message
    assert not (tmp_path / "run" / "teacher").exists()


def test_a_server_that_tells_no_bound_of_its_context_is_taken(tmp_path: Path, server: CompletionsServer):
    create_models(tmp_path / "run", run_of(tmp_path, server.url("boundless")))
    assert read_record(tmp_path / "run" / "teacher").model == NAME


def test_a_directory_of_another_teacher_is_kept(tmp_path: Path, server: CompletionsServer):
    write_scratch(
        tmp_path / "local", ScratchModel(words=WORDS, hidden_size=32, heads=2, kv_heads=2), 1, "float32"
    )
    create_models(tmp_path / "run", tictactoe(tmp_path, teacher={"path": str(tmp_path / "local")}))
    with pytest.raises(ConfigError, match="is a link to another teacher"):
        create_models(tmp_path / "run", run_of(tmp_path, server.url()))
    with pytest.raises(ModelNotFound, match="cannot be read"):
        read_record(tmp_path / "run" / "teacher")


def test_of_a_large_vocabulary_the_special_the_last_and_some_others_are_probed(tmp_path: Path):
    words = {f"t{number}": number for number in range(5_000)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = probe_texts(tmp_path)
    assert PROBED // 2 < len(texts) <= PROBED
    assert texts[5_000] == "<end>" and texts[4_999] == "t4999" and texts[0] == "t0"
    ids = sorted(texts)
    assert max(after - before for before, after in itertools.pairwise(ids)) < 11
    prompts = probe_prompts(ids, 256)
    assert max(map(len, prompts)) <= 256
    assert [token for prompt in prompts for token in prompt[1:]] == ids
