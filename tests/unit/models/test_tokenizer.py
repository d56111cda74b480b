"""Text to ids and back for agents."""

import json

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from earl.config.model import ModelConfig
from earl.errors import ConfigError, ModelNotFound
from earl.models.tokenizer import UNKNOWN_WORDS, Tokenizer, scratch_tokenizer

WORDS = ["[", "]", "|", ".", "x", "o", "0", "1", "play", "now"]


def scratch(tmp_path, **config):
    scratch_tokenizer(WORDS).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return Tokenizer.load(tmp_path, ModelConfig(**config))


def byte_level(tmp_path, **config):
    vocabulary = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Library(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [vocabulary["!"]]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|end|>"}}))
    return Tokenizer.load(tmp_path, ModelConfig(**config)), tokenizer


def test_observation_has_prefixes_and_starts_once(tmp_path):
    tokenizer = scratch(tmp_path, observation_prefix="|", action_prefix=".", stop=["]"])
    first = tokenizer.encode_observation("x0 o|[1]", first=True)
    later = tokenizer.encode_observation("x0 o|[1]", first=False)
    assert first == [1, *later]
    assert later[0] == 6 and later[-1] == 7
    assert tokenizer.stop_ids == {2, 5}


def test_unknown_words_and_empty_text(tmp_path):
    tokenizer = scratch(tmp_path)
    assert tokenizer.encode_text("zebra [0]") == [3, 4, 10, 5]
    assert tokenizer.encode_observation("", first=False) == []
    assert tokenizer.decode([]) == ""


def test_each_unknown_word_is_said_once_and_counted(tmp_path, caplog):
    tokenizer = scratch(tmp_path)
    for _ in range(2):
        tokenizer.encode_observation("zebra [0] é×yak", first=True)
    assert [*tokenizer.unknown_words] == ["zebra", "é×yak"]
    assert [record.args for record in caplog.records] == [("zebra",), ("é×yak",)]
    assert "model.scratch.words" in caplog.text
    tokenizer.encode_text(" ".join(f"word{number}" for number in range(2 * UNKNOWN_WORDS)))
    assert len(tokenizer.unknown_words) == UNKNOWN_WORDS


def test_actions_end_in_a_stop_token(tmp_path):
    tokenizer = scratch(tmp_path, stop=["]"])
    assert tokenizer.encode_action("[1]") == [4, 11, 5]
    assert tokenizer.encode_action("play now") == [12, 13, 5]
    assert scratch(tmp_path).encode_action("[1]") == [4, 11, 5, 2]


def test_word_level_decoding_restores_spaces_between_words(tmp_path):
    tokenizer = scratch(tmp_path)
    assert tokenizer.decode([1, 4, 11, 5, 2]) == "[1]"
    assert tokenizer.decode(tokenizer.encode_text("play now [x]")) == "play now[x]"


def test_special_tokens_in_an_observation_are_plain_text(tmp_path):
    tokenizer, library = byte_level(tmp_path, observation_prefix="<|start|>", action_prefix="<|end|>a:")
    text = "say <|end|> é"
    ids = tokenizer.encode_observation(text, first=True)
    start, end = library.token_to_id("<|start|>"), library.token_to_id("<|end|>")
    assert start is not None and end is not None
    assert ids[0] == start and ids.count(end) == 1
    assert tokenizer.decode(ids) == text + "a:"
    assert tokenizer.encode_action("go")[-1] == end
    assert tokenizer.stop_ids == {end, library.token_to_id("!")}
    words = scratch(tmp_path)
    assert 2 not in words.encode_text("<eos>")


def test_a_stop_of_several_tokens_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'\\[1\\]' is 3 tokens"):
        scratch(tmp_path, stop=["[1]"])


def test_broken_and_missing_files(tmp_path):
    with pytest.raises(ModelNotFound, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelNotFound, match="cannot be read"):
        Tokenizer.load(tmp_path)
