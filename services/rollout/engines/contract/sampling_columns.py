"""The settings by which rows of logits are sampled, as columns. No torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from earl.config.sampling_filters import SamplingFilters


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """The settings by which N rows are sampled, as columns [N].

    temperature float32, 0 for greedy; seed uint64; the four of SamplingFilters: repetition_penalty float32,
    top_k int64, top_p and min_p float64. filtered bool: one of those four has an effect on the row.
    """

    temperature: np.ndarray
    seed: np.ndarray
    repetition_penalty: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    filtered: np.ndarray

    @classmethod
    def of(cls, temperature: np.ndarray, seed: np.ndarray) -> SamplingColumns:
        """The columns of rows without filters. temperature [N] float32, seed [N] uint64."""
        rows, none = len(seed), SamplingFilters()
        return cls(
            temperature,
            seed,
            np.full(rows, none.repetition_penalty, dtype=np.float32),
            np.full(rows, none.top_k, dtype=np.int64),
            np.full(rows, none.top_p, dtype=np.float64),
            np.full(rows, none.min_p, dtype=np.float64),
            np.zeros(rows, dtype=np.bool_),
        )

    def put(self, row: int, temperature: float, seed: int, filters: SamplingFilters) -> None:
        """Sets all columns of a row. seed: taken modulo 2**64."""
        self.temperature[row] = temperature
        self.seed[row] = seed & 0xFFFF_FFFF_FFFF_FFFF
        self.put_filters(row, filters)

    def put_filters(self, row: int, filters: SamplingFilters) -> None:
        """Sets a row's filters, after its temperature: a greedy row takes the most probable token whatever
        the others are, and has the penalty alone."""
        if self.temperature[row] == 0:
            filters = SamplingFilters(repetition_penalty=filters.repetition_penalty)
        self.repetition_penalty[row] = filters.repetition_penalty
        self.top_k[row], self.top_p[row], self.min_p[row] = filters.top_k, filters.top_p, filters.min_p
        self.filtered[row] = bool(filters)

    def rows(self, index: np.ndarray | slice) -> SamplingColumns:
        """The columns of some rows, which may be repeated."""
        return SamplingColumns(
            self.temperature[index],
            self.seed[index],
            self.repetition_penalty[index],
            self.top_k[index],
            self.top_p[index],
            self.min_p[index],
            self.filtered[index],
        )

    @property
    def penalises(self) -> bool:
        """Returns whether a row has a repetition penalty, so that `sample` needs the contexts."""
        return bool(self.filtered.any()) and bool((self.repetition_penalty != 1).any())
