"""Recorded episodes: what a model played, as token ids, in a file that another model's warm-up imitates.

    {"format": "earl-episodes-1", "tokenizer": "5f…", "environments": {"ttt": "open_spiel/tic_tac_toe"}, …}
    {"index": 0, "environment": "ttt", "reward": 1.0, "turns": [[[1, 4, 9], [2, 7]], [[5], [8, 7]]]}
    …
    {"episodes": 1024, "reward_mean": 0.93, "sha256": "…"}

A turn is the ids that the policy read and the ids that it wrote; nothing is ever tokenised again. An episode
is the trajectory of one seat. The last line has the SHA-256 of all bytes before it.

Promise: a file is read whole or refused, within EPISODES, FILE_BYTES and TOKENS; it is JSON, and reading one
runs nothing of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from earl.errors import ConfigError

FORMAT = "earl-episodes-1"
# In a run's directory: the episodes that it has recorded, and those of another run that its warm-up imitates.
RECORDED, IMITATED = "episodes.jsonl", "imitated.jsonl"
# Bounds of a file: its episodes, its bytes, and the tokens of one episode.
EPISODES, FILE_BYTES, TOKENS = 65_536, 1 << 30, 1 << 21
MOST_ID = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """observed: ids that the policy read, at least one. acted: ids that it wrote then."""

    observed: Sequence[int]
    acted: Sequence[int]


@dataclass(frozen=True, slots=True)
class EpisodesHeader:
    """The origin of recorded episodes.

    tokenizer: fingerprint of what made their ids (earl.models.tokenizer.fingerprint). environments:
    registered name by label. prompts: the run file's keys that put text around an environment's, by key.
    policy: the model's directory, for people.
    """

    tokenizer: str
    environments: Mapping[str, str]
    prompts: Mapping[str, str] = field(default_factory=dict)
    policy: str = ""


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One trajectory as its line of the file. tokens: read and written together. line: JSON."""

    environment: str
    reward: float
    tokens: int
    line: str = field(repr=False)

    @classmethod
    def of(
        cls, index: int, environment: str, reward: float, turns: Sequence[RecordedTurn]
    ) -> RecordedEpisode:
        """The episode of an evaluation's index-th instance, without turns at its end that have no action."""
        while turns and not turns[-1].acted:
            turns = turns[:-1]
        pairs = [[list(turn.observed), list(turn.acted)] for turn in turns]
        value = {"index": index, "environment": environment, "reward": reward, "turns": pairs}
        tokens = sum(len(turn.observed) + len(turn.acted) for turn in turns)
        return cls(environment, reward, tokens, json.dumps(value, separators=(",", ":"), allow_nan=False))

    @property
    def turns(self) -> list[RecordedTurn]:
        return [RecordedTurn(observed, acted) for observed, acted in json.loads(self.line)["turns"]]


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """Recorded episodes as they were read. reward_mean: over all of them. sha256: of the file's lines."""

    path: Path
    header: EpisodesHeader
    episodes: Sequence[RecordedEpisode] = field(repr=False)
    reward_mean: float
    sha256: str

    def played_in(self, label: str, name: str) -> list[RecordedEpisode]:
        """The episodes of an environment: of its label, or else of its registered name under any label."""
        names = self.header.environments
        labels = {label} if names.get(label) == name else {key for key in names if names[key] == name}
        return [episode for episode in self.episodes if episode.environment in labels]


def write_episodes(path: Path, header: EpisodesHeader, episodes: Sequence[RecordedEpisode]) -> None:
    """Writes a file whole or not at all; only this user can read it. Raises OSError."""
    lines = [json.dumps({"format": FORMAT, **asdict(header)}), *(episode.line for episode in episodes)]
    content = "".join(f"{line}\n" for line in lines).encode()
    mean = math.fsum(episode.reward for episode in episodes) / max(1, len(episodes))
    digest = hashlib.sha256(content).hexdigest()
    last = json.dumps({"episodes": len(episodes), "reward_mean": mean, "sha256": digest})
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content + f"{last}\n".encode())
    scratch.replace(path)


def read_episodes(path: Path) -> EpisodeFile:
    """Reads and checks a file. Raises ConfigError, which says what is wrong with it."""
    content = _content(path)
    body, _, last = content.rstrip(b"\n").rpartition(b"\n")
    end = _object(path, "its last line", last)
    digest = hashlib.sha256(body + b"\n").hexdigest()
    if end.get("sha256") != digest:
        raise ConfigError(f"{path} is incomplete, or was changed", "record the episodes again")
    first, *lines = body.decode("utf-8", "replace").split("\n")
    header = _header(path, _object(path, "its first line", first))
    if not 0 < len(lines) <= EPISODES:
        raise ConfigError(f"{path} has {len(lines)} episodes", f"record 1 to {EPISODES:,} of them")
    episodes = [_episode(path, number, line, header) for number, line in enumerate(lines, 2)]
    mean = math.fsum(episode.reward for episode in episodes) / len(episodes)
    return EpisodeFile(path, header, episodes, mean, digest)


# --- within ---------------------------------------------------------------------------------


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > FILE_BYTES:
            raise ConfigError(f"{path} has {size:,} bytes, more than {FILE_BYTES:,}", "record fewer episodes")
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"recorded episodes {str(path)!r} do not exist",
            "record them: earl eval MODEL --evaluation.record true writes episodes.jsonl into its run",
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "give a file that can be") from None


def _object(path: Path, what: str, line: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {what} is no JSON object", "give a file that a recording has made")
    return value


def _header(path: Path, value: Mapping[str, Any]) -> EpisodesHeader:
    if value.get("format") != FORMAT:
        raise ConfigError(
            f"{path} has the format {value.get('format')!r}, not {FORMAT!r}", "record the episodes again"
        )
    environments, prompts = value.get("environments"), value.get("prompts")
    texts = [value.get("tokenizer"), value.get("policy")]
    for table in (environments, prompts):
        texts += [*table.keys(), *table.values()] if isinstance(table, dict) else [None]
    if not environments or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{path}: its first line lacks a key", "record the episodes again")
    return EpisodesHeader(str(texts[0]), environments, prompts or {}, str(texts[1]))


def _episode(path: Path, number: int, line: str, header: EpisodesHeader) -> RecordedEpisode:
    value = _object(path, f"line {number}", line)
    label: Any = value.get("environment")
    reward: Any = value.get("reward")
    turns: Any = value.get("turns")
    fault = ""
    if label not in header.environments:
        fault = f"the environment {label!r}, which its first line does not name"
    elif not isinstance(reward, int | float) or isinstance(reward, bool) or not math.isfinite(reward):
        fault = f"the reward {reward!r}"
    elif not isinstance(turns, list) or not turns or not all(map(_is_turn, turns)):
        fault = "no turns, or one that is no pair of lists of token ids"
    if fault:
        raise ConfigError(f"{path}: line {number} has {fault}", "record the episodes again")
    tokens = sum(len(ids) for turn in turns for ids in turn)
    if tokens > TOKENS:
        raise ConfigError(f"{path}: line {number} has {tokens:,} tokens", f"{TOKENS:,} are allowed")
    return RecordedEpisode(label, float(reward), tokens, line)


def _is_turn(turn: object) -> bool:
    """Returns whether it is a pair of what was read, at least one id, and what was written then."""
    if not (isinstance(turn, list) and len(turn) == 2 and all(isinstance(ids, list) for ids in turn)):
        return False
    return bool(turn[0]) and all(_are_ids(ids) for ids in turn)


def _are_ids(ids: Iterable[object]) -> bool:
    return all(type(number) is int and 0 <= number <= MOST_ID for number in ids)
