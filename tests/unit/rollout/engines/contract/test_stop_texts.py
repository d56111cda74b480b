"""Stop texts are found at the token that completes them, whatever tokens spell them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from earl.errors import ModelNotFound
from earl.models.tokenizer import Tokenizer, scratch_tokenizer
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.contract.stop_texts import StopTexts, stop_texts_of

PIECES = ("a", "b", "ab", "ba", " ", " a", "é", "\n", "a\nb", "bé")


def decode(ids: list[int]) -> str:
    return "".join(PIECES[token] for token in ids)


def first_end(texts: list[str], ids: list[int]) -> int | None:
    """Tokens up to the one that completes a text, by the whole text so far."""
    lengths = (
        length for length in range(1, len(ids) + 1) if any(text in decode(ids[:length]) for text in texts)
    )
    return next(lengths, None)


@given(
    texts=st.lists(st.text("ab é\n", min_size=1, max_size=4), min_size=1, max_size=3),
    ids=st.lists(st.integers(0, len(PIECES) - 1), max_size=30),
    parts=st.lists(st.integers(1, 6), min_size=30, max_size=30),
)
def test_an_answer_ends_at_the_first_token_that_completes_a_text(texts, ids, parts):
    """Also where several tokens come at once, as those of a draft."""
    stops = StopTexts(texts, decode)
    length, end = 0, None
    while end is None and length < len(ids):
        new = min(parts.pop(), len(ids) - length)
        length += new
        end = stops.end(np.array(ids[:length]), new)
    assert end == first_end(texts, ids)


def test_only_tokens_that_may_complete_a_text_are_decoded_with_others():
    decoded: list[list[int]] = []

    def counted(ids: list[int]) -> str:
        decoded.append(ids)
        return decode(ids)

    stops = StopTexts(["\n"], counted)
    assert stops.end([0] * 9) is None and stops.end([0] * 10) is None and decoded == [[0]]
    assert stops.end([0, 8]) == 2 and decoded[1:] == [[8], [0, 8]]


def test_a_character_of_several_tokens_completes_a_text(tmp_path: Path):
    vocabulary = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    library = Library(models.BPE(vocab=vocabulary, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|end|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    stops = stop_texts_of(EngineSpec(name="e", model_dir=str(tmp_path), stop_texts=("x€", "]")))
    assert stops is not None
    tokenizer = Tokenizer.load(tmp_path)
    answer = tokenizer.encode_text("ab€ x€ y")
    # A special token is no part of the text.
    answer.insert(9, len(vocabulary))
    lengths = [length for length in range(1, len(answer) + 1) if stops.end(answer[:length]) is not None]
    whole = tokenizer.decode(answer[: lengths[0]])
    assert whole == "ab€ x€" and tokenizer.decode(answer[: lengths[0] - 1]) != whole


def test_words_are_told_apart_as_in_the_text_of_an_answer(tmp_path: Path):
    scratch_tokenizer(["go", "on", "."]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    stops = stop_texts_of(EngineSpec(name="e", model_dir=str(tmp_path), stop_texts=("go on.",)))
    assert stops is not None
    ids = Tokenizer.load(tmp_path).encode_text("on go on .")
    assert [stops.end(ids[:length]) for length in range(1, 5)] == [None, None, None, 4]


def test_a_model_without_a_tokenizer_has_no_stop_texts(tmp_path: Path):
    assert stop_texts_of(EngineSpec(name="e", model_dir=str(tmp_path))) is None
    with pytest.raises(ModelNotFound, match=r"no tokenizer\.json"):
        stop_texts_of(EngineSpec(name="e", model_dir=str(tmp_path), stop_texts=("x",)))
