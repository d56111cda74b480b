"""A trajectory's token columns while its episode runs.

Promise: the columns always have one length, T; what the engine sampled is stored exactly as it was
sampled (ids, log-probs, versions, the stop token included); nothing is ever re-tokenised.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from earl.config.data_plane import GRAIN_BYTES
from earl.config.run import RunConfig
from earl.dispatch.memory.allocator import occupied, rounded
from earl.episode_contract import SAMPLED_COLUMNS, TURN_REWARDS, published_columns
from earl.recorded_episodes import RecordedTurn

LEAST_ARENA_BYTES = 64 << 20


def arena_bytes(config: RunConfig, context_tokens: int) -> int:
    """Bytes for all trajectories that may wait for the trainer, each of so many tokens.

    Those of staleness + 1 batches are outstanding, and one batch was just trained and not freed yet; one
    worker may have played them all.
    """
    scheduler = config.scheduler
    outstanding = (scheduler.staleness + 2) * config.batch_trajectories
    sequences = max(outstanding, 2 * config.warmup_trajectories)
    published = published_columns(turn_rewards=config.trainer.turn_rewards)
    sizes = (np.dtype(dtype).itemsize * context_tokens for dtype in published.values())
    longest = occupied(sum(map(rounded, sizes)))
    # A grain each: an arena's table has a slot for every grain.
    return max(LEAST_ARENA_BYTES, sequences * max(GRAIN_BYTES, longest))


def registry_key(name: str, incarnation: int) -> str:
    """The registry key of what one incarnation of a worker publishes."""
    return f"trajectories/{name}/{incarnation:x}"


def attempt_name(ticket_id: int, attempt: int) -> str:
    """The name of an attempt's columns among those of its worker."""
    return f"{ticket_id}/{attempt}"


@dataclass(slots=True, eq=False)
class TokenColumns:
    """tokens int32[T] · loss_mask uint8[T] · logprobs float32[T] (0 where the mask is 0) ·
    versions int32[T] (policy version at that token) · turns int32[T].

    Example of two turns: observation 3 tokens, action 2, observation 2, action 2:
    loss_mask = 0 0 0 1 1 0 0 1 1, turns = 0 0 0 0 0 1 1 1 1.

    In a run with trainer.turn_rewards also rewards float32[T]: what was earned after a turn, at the last
    token that its action had; after 1 and -1 above, rewards = 0 0 0 0 1 0 0 0 -1.
    """

    tokens: list[int] = field(default_factory=list)
    loss_mask: bytearray = field(default_factory=bytearray)
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))
    turns: array[int] = field(default_factory=lambda: array("i"))
    # Versions of the loss-masked tokens; 0 while there are none.
    oldest_version: int = 0
    newest_version: int = 0
    trained_tokens: int = 0
    prompt_tokens: int = 0
    # Tokens of each turn, observation and action.
    turn_tokens: list[int] = field(default_factory=list)
    # What was earned, by the position of the last trained token before it.
    earned: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def turns_taken(self) -> int:
        return len(self.turn_tokens)

    def sit_out(self, version: int) -> None:
        """Stands for the trajectory of a seat that never had a turn: one token, which no loss counts, because
        what is published has at least one."""
        self.tokens.append(0)
        self.loss_mask.append(0)
        self.logprobs.append(0.0)
        self.versions.append(version)
        self.turns.append(0)

    def observe(self, ids: Sequence[int], version: int) -> None:
        """Opens the next turn with the observation's ids, which are never trained on."""
        count = len(ids)
        if not self.turn_tokens:
            self.prompt_tokens = count
        self.turn_tokens.append(count)
        self.tokens += ids
        self.loss_mask += bytes(count)
        self.logprobs.frombytes(bytes(4 * count))
        self.versions.extend((version,) * count)
        self.turns.extend((len(self.turn_tokens) - 1,) * count)

    def act(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Closes the turn with sampled ids [n], their log-probs [n] and versions [n]; n >= 1."""
        count = len(ids)
        if not (count == len(logprobs) == len(versions)):
            raise ValueError(f"{count} ids, {len(logprobs)} log-probs, {len(versions)} versions")
        if count == 0:
            return
        self.tokens += ids
        self.loss_mask += b"\x01" * count
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)
        self.turns.extend((len(self.turn_tokens) - 1,) * count)
        oldest = min(versions)
        self.oldest_version = min(self.oldest_version, oldest) if self.trained_tokens else oldest
        self.newest_version = max(self.newest_version, max(versions))
        self.trained_tokens += count
        self.turn_tokens[-1] += count

    def act_scripted(self, ids: Sequence[int], version: int) -> None:
        """Closes the turn with ids that a script chose while `version` was current; log-probs are 0."""
        self.act(ids, [0.0] * len(ids), [version] * len(ids))

    def turns_read_and_written(self) -> list[RecordedTurn]:
        """The ids of each turn, without what a seat that never had a turn stands with."""
        turns: list[RecordedTurn] = []
        start = 0
        for count in self.turn_tokens:
            stop = start + count
            acted = stop - sum(self.loss_mask[start:stop])
            turns.append(RecordedTurn(self.tokens[start:acted], self.tokens[acted:stop]))
            start = stop
        return turns

    def earn(self, reward: float) -> None:
        """Takes note of a step's reward. What is earned before the first action is no turn's: it counts in
        the trajectory's reward alone."""
        if reward and self.trained_tokens:
            last = self.loss_mask.rfind(1)
            self.earned[last] = self.earned.get(last, 0.0) + reward

    def write(self, into: Mapping[str, np.ndarray]) -> None:
        """Copies the columns into arrays [T] of these names and dtypes, such as those of an arena."""
        into["tokens"][:] = self.tokens
        into["loss_mask"][:] = self.loss_mask
        into["logprobs"][:] = self.logprobs
        into["versions"][:] = self.versions
        into["turns"][:] = self.turns
        if TURN_REWARDS in into:
            into[TURN_REWARDS][:] = 0.0
            into[TURN_REWARDS][list(self.earned)] = list(self.earned.values())

    def arrays(self) -> dict[str, np.ndarray]:
        """The five columns, each [T], in arrays of their own."""
        arrays = {name: np.empty(len(self.tokens), dtype) for name, dtype in SAMPLED_COLUMNS.items()}
        self.write(arrays)
        return arrays
