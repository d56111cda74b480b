"""Remembered texts are the tokenizer's own answers, asked for once while they are short."""

from services.rollout.episode.tokenizer_cache import ACTION_TOKENS, TEXT_CHARACTERS, TokenizerCache


class Counting:
    system = ""
    opening = ""

    def __init__(self):
        self.calls = []

    def encode_observation(self, text, first, role="user", after=None):
        self.calls.append((text, role, after))
        return [int(first), *map(ord, text)]

    def encode_action(self, text):
        self.calls.append(text)
        return list(map(ord, text))

    def decode(self, ids):
        self.calls.append(ids)
        return "".join(map(chr, ids))


def test_short_texts_are_asked_once():
    codec = Counting()
    texts = TokenizerCache(codec)
    for _ in range(2):
        assert texts.encode_observation("ab", True) == [1, 97, 98]
        assert texts.encode_observation("ab", False, "tool", 3) == [0, 97, 98]
        assert texts.encode_action("ab") == [97, 98]
        assert texts.decode([97, 98]) == "ab"
    assert codec.calls == [("ab", "user", None), ("ab", "tool", 3), "ab", [97, 98]]


def test_long_texts_are_not_kept():
    codec = Counting()
    texts = TokenizerCache(codec)
    text = "a" * (TEXT_CHARACTERS + 1)
    for _ in range(2):
        texts.encode_observation(text, True)
        texts.encode_action(text)
        texts.decode([97] * (ACTION_TOKENS + 1))
    assert len(codec.calls) == 6
