"""From a plan's sequences to packed micro-batches, in arrays that are reused step after step.

    columns of this rank's sequences, end to end     tokens | loss_mask | logprobs | roles  [total tokens]
      └─ mini-batches: one optimizer step each, of all ranks' sequences alike
           └─ micro-batches: one forward pass each, at most `microbatch_tokens` long, sequences packed

Which mini-batch a sequence belongs to depends on the plan alone, never on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from earl.episode_contract import SAMPLED_COLUMNS, TURN_REWARDS
from earl.errors import TrainerError
from earl.models.parallel import ContextParallel, TensorParallel
from earl.parallelism import REFERENCE, TEACHER
from services.trainer.step.plan import ReplicaSequence, TrainingPlan
from services.trainer.step.prefix_packing import Bin, rows_of
from services.trainer.step.token_weights import token_weights

SAMPLED = tuple((name, np.dtype(SAMPLED_COLUMNS[name])) for name in ("tokens", "loss_mask", "logprobs"))
EARNED = (TURN_REWARDS, np.dtype(np.float32))
# Written by the stages of frozen policies, not by the rollout worker.
ROLES = (REFERENCE, TEACHER)
COLUMNS = (*SAMPLED, EARNED, *((role, np.dtype(np.float32)) for role in ROLES))


class Columns:
    """Receive buffers of one rank's sequences, end to end; grown when needed, never shrunk.

    turn_rewards: rollout workers publish what was earned after each turn, too.
    """

    def __init__(self, *, turn_rewards: bool = False) -> None:
        self._sampled = [name for name, _ in (*SAMPLED, *([EARNED] if turn_rewards else []))]
        self._arrays = {
            name: np.zeros(0, dtype) for name, dtype in COLUMNS if name in self._sampled or name in ROLES
        }
        self.items: tuple[ReplicaSequence, ...] = ()
        self.offsets = np.zeros(1, np.int64)

    def take(self, items: Sequence[ReplicaSequence]) -> None:
        """Allocates rows for these sequences; then fill `sampled` and each `of`.

        A sequence whose log-probs under a role are not wanted has zeros for them.
        """
        self.items = tuple(items)
        self.offsets = np.concatenate(([0], np.cumsum([item.total_tokens for item in items], dtype=np.int64)))
        total = int(self.offsets[-1])
        for name, held in self._arrays.items():
            if len(held) < total:
                self._arrays[name] = np.zeros(total + total // 4, held.dtype)
        for role in ROLES:
            self._arrays[role][:total] = 0.0

    @property
    def sampled(self) -> dict[str, np.ndarray]:
        """The columns that rollout workers publish, each [total tokens], to be filled."""
        total = self.offsets[-1]
        return {name: self._arrays[name][:total] for name in self._sampled}

    def of(self, index: int) -> dict[str, np.ndarray]:
        """The columns of one sequence, each [length], to be filled; those of roles only where wanted."""
        span = slice(self.offsets[index], self.offsets[index + 1])
        names = [*self._sampled, *self.items[index].roles]
        return {name: self._arrays[name][span] for name in names}

    def mask(self) -> None:
        """Takes the tokens of masked sequences out of the loss, once the columns are filled."""
        for index, item in enumerate(self.items):
            if item.masked:
                self._arrays["loss_mask"][self.offsets[index] : self.offsets[index + 1]] = 0

    @property
    def tokens(self) -> np.ndarray:
        """Every sequence's tokens: int32[total tokens]."""
        return self._arrays["tokens"][: self.offsets[-1]]

    @property
    def loss_mask(self) -> np.ndarray:
        """uint8[total tokens]: 1 where the token was sampled and is trained on."""
        return self._arrays["loss_mask"][: self.offsets[-1]]

    @property
    def logprobs(self) -> np.ndarray:
        """float32[total tokens]: log-probs under the sampler's distribution, 0 where the mask is 0."""
        return self._arrays["logprobs"][: self.offsets[-1]]

    @property
    def rewards(self) -> np.ndarray | None:
        """float32[total tokens]: what was earned after each turn, at its last trained token, 0 elsewhere;
        None in a run without rewards of turns."""
        return self._arrays[TURN_REWARDS][: self.offsets[-1]] if TURN_REWARDS in self._arrays else None

    @property
    def roles(self) -> dict[str, np.ndarray]:
        """float32[total tokens] by role: log-probs under its frozen policy, at the sampler's temperature, 0
        where the mask is 0; of the roles that the plan asks for."""
        planned = {role for item in self.items for role in item.roles}
        return {role: self._arrays[role][: self.offsets[-1]] for role in ROLES if role in planned}

    def trained_tokens(self) -> np.ndarray:
        """int64[sequences]: trained tokens of each."""
        if not self.items:
            return np.zeros(0, np.int64)
        return np.add.reduceat(self.loss_mask.astype(np.int64), self.offsets[:-1])

    def tokens_of(self, index: int) -> np.ndarray:
        """The tokens of one sequence: int32[length]."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def trained_from(self, index: int) -> int:
        """Position of a sequence's first trained token; it must have one."""
        return int(np.argmax(self.loss_mask[self.offsets[index] : self.offsets[index + 1]]))

    def validate(self, vocabulary: int) -> None:
        """Raises TrainerError naming the first trajectory whose columns cannot be trained on."""
        total = int(self.offsets[-1])
        if not total:
            return
        bad = (self.tokens < 0) | (self.tokens >= vocabulary) | ~np.isfinite(self.logprobs)
        bad |= self.loss_mask > 1
        for column in (*self.roles.values(), *([self.rewards] if self.rewards is not None else [])):
            bad |= ~np.isfinite(column)
        bad[self.offsets[:-1]] |= self.loss_mask[self.offsets[:-1]] != 0
        if not bad.any():
            return
        index = int(np.argmax(bad))
        i = int(np.searchsorted(self.offsets, index, side="right")) - 1
        raise TrainerError(
            f"{self.items[i].key}: position {index - int(self.offsets[i])} has token "
            f"{int(self.tokens[index])} (vocabulary {vocabulary}), mask {int(self.loss_mask[index])}, "
            f"log-prob {float(self.logprobs[index])}",
            "columns must hold known tokens, finite log-probs and rewards, and a mask of 0 or 1 that starts "
            "with 0",
        )


_PER_TARGET = (
    "targets", "behaviour", "weights", "protected_kl", "sequence", "column_places",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences packed end to end for one forward pass.

    tokens, positions: int64[T]. lengths: of each sequence; shared: of each, how many of its first tokens
    lie in the sequence before it; T is the sum of the differences. For each of the N trained tokens:
    source int64[N] (row that predicts it, none twice, ascending), targets int64[N], behaviour, weights,
    protected_kl float32[N] (its sequence's weight of the KL), sequence int64[N] (its place in lengths), and
    by role float32[N], its log-prob under a frozen policy whose stage computed it. column_places int64[N]:
    where it lies in the columns; empty if the one token that is there counts nothing.
    """

    tokens: np.ndarray
    positions: np.ndarray
    lengths: list[int]
    shared: list[int]
    source: np.ndarray
    targets: np.ndarray
    behaviour: np.ndarray
    weights: np.ndarray
    protected_kl: np.ndarray
    sequence: np.ndarray
    roles: dict[str, np.ndarray] = field(default_factory=dict)
    column_places: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def of(self, tensor: TensorParallel, context: ContextParallel) -> MicroBatch:
        """Returns one rank's part of the micro-batch: its rows, and its part of the tokens that they predict.

        lengths and shared stay those of all rows, which attention is computed on together.
        """
        if tensor.size * context.size == 1:
            return self
        whole, cp = self, context.size
        if len(self.tokens) < cp:
            # Every rank has a row: a sequence more, of which nothing is trained.
            whole = replace(
                self,
                tokens=np.concatenate((self.tokens, np.zeros(cp, np.int64))),
                positions=np.concatenate((self.positions, np.arange(cp))),
                lengths=[*self.lengths, cp],
                shared=[*self.shared, 0],
            )
        start, stop = context.rows(len(whole.tokens))
        first, last = np.searchsorted(whole.source, (start, stop)).tolist()
        count, ranks = last - first, tensor.size
        mine = slice(first + count * tensor.rank // ranks, first + count * (tensor.rank + 1) // ranks)
        rows = {"tokens": whole.tokens[start:stop], "positions": whole.positions[start:stop]}
        if not len(whole.column_places) or mine.start == mine.stop:
            return replace(EMPTY, **rows, lengths=whole.lengths, shared=whole.shared)
        return replace(
            whole,
            **rows,
            **{name: getattr(whole, name)[mine] for name in _PER_TARGET},
            source=whole.source[mine] - start,
            roles={role: values[mine] for role, values in whole.roles.items()},
        )


# A forward pass that counts nothing: keeps a rank in step with ranks that have more micro-batches. Its
# log-probs under frozen policies are so low that the KL to them, exp(frozen - policy), stays finite for any
# policy.
EMPTY = MicroBatch(
    np.zeros(1, np.int64),
    np.zeros(1, np.int64),
    [1],
    [0],
    np.zeros(1, np.int64),
    np.zeros(1, np.int64),
    *(np.zeros(1, np.float32) for _ in range(3)),
    sequence=np.zeros(1, np.int64),
    roles={role: np.full(1, -1e4, np.float32) for role in ROLES},
)


def minibatches(plan: TrainingPlan, rank: int, count: int, pass_index: int, seed: int) -> list[list[int]]:
    """Indices into the rank's items for each of `count` mini-batches, the same for any rank count.

    With one mini-batch the plan's order stays; with more, sequences are dealt out after a shuffle that
    depends on (seed, version, pass) alone, so that a resumed run deals them out alike.
    """
    items = plan.ranks[rank]
    if count == 1:
        return [list(range(len(items)))]
    total = len(plan.ticket_ids)
    dealt = np.random.Generator(np.random.Philox([seed, plan.version, pass_index])).permutation(total)
    mine = dealt[np.asarray([item.position for item in items], np.int64)] % count
    return [np.flatnonzero(mine == m).tolist() for m in range(count)]


def build(
    columns: Columns,
    packed: Bin,
    loss_mean: str,
    total_tokens: int,
    total_sequences: int,
    sequence_tokens: int = 0,
) -> MicroBatch:
    """The forward pass of a bin (indices into columns.items); totals: of the mini-batch over all ranks.

    loss_mean, sequence_tokens: as in token_weights.
    """
    offsets = columns.offsets
    slices = [slice(int(offsets[i]), int(offsets[i + 1])) for i in packed.chosen]
    lengths = [s.stop - s.start for s in slices]
    tokens = np.concatenate([columns.tokens[s] for s in slices]).astype(np.int64)
    mask = np.concatenate([columns.loss_mask[s] for s in slices])
    behaviour = np.concatenate([columns.logprobs[s] for s in slices])
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
    trained = np.flatnonzero(mask)
    counts = np.add.reduceat(mask.astype(np.int64), starts)
    rows = rows_of(lengths, packed.shared)
    return MicroBatch(
        tokens=tokens[rows.places],
        positions=rows.positions,
        lengths=lengths,
        shared=packed.shared,
        source=trained - 1 - np.repeat(starts - rows.first, counts),
        targets=tokens[trained],
        behaviour=behaviour[trained],
        weights=token_weights(counts.tolist(), loss_mean, total_tokens, total_sequences, sequence_tokens),
        protected_kl=np.repeat(
            np.asarray([columns.items[i].protected_kl for i in packed.chosen], np.float32), counts
        ),
        sequence=np.repeat(np.arange(len(lengths)), counts),
        roles={
            role: np.concatenate([values[s] for s in slices])[trained]
            for role, values in columns.roles.items()
        },
        column_places=trained + np.repeat(offsets[packed.chosen] - starts, counts),
    )
