"""Evaluations of policy versions, as they are stored."""

from __future__ import annotations

import math
import struct

import msgspec

from services.scheduler.state.tickets import EpisodeResult


class EvaluationRecord(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """One evaluation. Episodes are distinguished by their instance's index, 0 to episodes - 1.

    reward_data, win_data: little-endian float64 and float32 by index, NaN where none was done; empty
    before the first. metric_sums: over the episodes that were done. setting: what it was played under, for
    a resumed run may have other tasks or bounds; only evaluations of one setting are compared.
    """

    name: str
    version: int
    episodes: int
    done: int = 0
    failed: int = 0
    reward_data: bytes = b""
    win_data: bytes = b""
    metric_sums: dict[str, float] = {}
    setting: str = ""
    # The labels of a mixture: instance i is of the environment i % n. Empty in a run that has only one.
    environments: list[str] = []
    # By environment, the held-out tasks that its instances play in turns; 0 for endless ones.
    tasks: list[int] = []
    # The least that an episode may earn in each protected environment, by its label; and the part of its
    # first score that each may lose, as the run file had it when the evaluation began.
    protected: dict[str, float] = {}
    protected_loss: float = 0.0

    @property
    def finished(self) -> bool:
        return self.done + self.failed >= self.episodes

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the episodes done, and the fraction of episodes that failed."""
        means = {name: total / self.done for name, total in self.metric_sums.items()} if self.done else {}
        return {**means, "failed": self.failed / self.episodes if self.episodes else 0.0}

    def with_result(self, index: int, result: EpisodeResult) -> EvaluationRecord:
        """The evaluation after the episode of one more instance."""
        sums = {name: self.metric_sums.get(name, 0.0) + value for name, value in result.metrics.items()}
        return msgspec.structs.replace(
            self,
            done=self.done + 1,
            reward_data=_with(self.reward_data, "<d", self.episodes, index, result.reward),
            win_data=_with(self.win_data, "<f", self.episodes, index, result.win),
            metric_sums=self.metric_sums | sums,
        )

    def with_failure(self) -> EvaluationRecord:
        """The evaluation after one more instance that no attempt could play."""
        return msgspec.structs.replace(self, failed=self.failed + 1)


def _with(data: bytes, form: str, count: int, index: int, value: float) -> bytes:
    """`count` packed numbers, NaN unless set, of which the index-th becomes `value`."""
    packed = bytearray(data or struct.pack(form, math.nan) * count)
    struct.pack_into(form, packed, index * struct.calcsize(form), value)
    return bytes(packed)
