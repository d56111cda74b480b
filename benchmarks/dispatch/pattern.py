"""The rows that each consumer reads: 4 producers, 4 consumers, data parallel 2 x context parallel 2. Pure.

    producers   0: rows 0..n     1: rows n..2n     2: rows 2n..3n     3: rows 3n..4n    (whole rows)
    consumers   0: left halves   1: right halves   2: left halves     3: right halves
                   of rows 0..2n, a pair              of rows 2n..4n, the other pair

Every consumer reads half rows of two producers: strided at the source, contiguous where they arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from earl.dispatch.layout.box import Box
from earl.errors import ConfigError

PRODUCERS = CONSUMERS = 4
COLUMNS = 16_384
DTYPE = np.dtype(np.int32)
ROW_BYTES = COLUMNS * DTYPE.itemsize
HALF = COLUMNS // 2
TENSOR = "column"
MIB = 1 << 20
_CHECKED_ROWS = 64


def key(producer: int, number: int) -> str:
    """The key of a producer's rows in a round."""
    return f"bench/{producer}/{number}"


def central_key(producer: int, number: int) -> str:
    """The key of the same rows once a controller holds them."""
    return f"central/{producer}/{number}"


def sources(consumer: int) -> tuple[int, int]:
    """The producers that a consumer reads, in the order of its rows."""
    return 2 * (consumer // 2), 2 * (consumer // 2) + 1


def readers(producer: int) -> tuple[int, int]:
    """The consumers that read a producer."""
    return sources(producer)


def half(consumer: int) -> slice:
    """The columns that a consumer reads."""
    return slice(HALF * (consumer % 2), HALF * (consumer % 2 + 1))


@dataclass(frozen=True, slots=True)
class Pattern:
    """The tensor's division over producers and consumers.

    rows: rows of every producer, COLUMNS int32 each. A consumer reads as many bytes.
    """

    rows: int

    @classmethod
    def of(cls, worker_mib: float) -> Pattern:
        """Raises ConfigError for less than one row."""
        rows = int(worker_mib * MIB) // ROW_BYTES
        if rows < 1:
            raise ConfigError(
                f"{worker_mib} MiB a worker is less than a row of {ROW_BYTES} bytes",
                f"give {ROW_BYTES / MIB:g} or more",
            )
        return cls(rows)

    @property
    def worker_bytes(self) -> int:
        return self.rows * ROW_BYTES

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the whole tensor, with all producers' rows."""
        return PRODUCERS * self.rows, COLUMNS

    def held(self, producer: int) -> Box:
        """Returns the part of the tensor that a producer holds."""
        return Box((producer * self.rows, 0), ((producer + 1) * self.rows, COLUMNS))

    def target_box(self, consumer: int) -> Box:
        """Returns the part of the tensor that a consumer reads."""
        first, last = sources(consumer)
        columns = half(consumer)
        return Box((first * self.rows, columns.start), ((last + 1) * self.rows, columns.stop))

    def part(self, consumer: int, producer: int) -> slice:
        """The rows of a consumer's target that come from a producer."""
        place = sources(consumer).index(producer)
        return slice(place * self.rows, (place + 1) * self.rows)


def _row_values(first: int, count: int, number: int) -> np.ndarray:
    """int32[count, 1]: values of the first column. Column c holds these plus c, wrapping."""
    rows = np.arange(first, first + count, dtype=np.uint64)
    mixed = rows * np.uint64(2_654_435_761) + np.uint64(number) * np.uint64(2_246_822_519)
    return mixed.astype(np.uint32).view(np.int32).reshape(-1, 1)


def fill(array: np.ndarray, box: Box, number: int) -> None:
    """Writes into `array` what `box` of the tensor holds in a round; every number gives other values."""
    columns = np.arange(box.start[1], box.stop[1], dtype=np.int32)
    np.add(_row_values(box.start[0], array.shape[0], number), columns, out=array)


def right(array: np.ndarray, box: Box, number: int) -> bool:
    """Returns whether `array` equals what `fill` writes for the same box and number, element by element."""
    columns = np.arange(box.start[1], box.stop[1], dtype=np.int32)
    for first in range(0, array.shape[0], _CHECKED_ROWS):
        rows = array[first : first + _CHECKED_ROWS]
        if not np.array_equal(rows, _row_values(box.start[0] + first, len(rows), number) + columns):
            return False
    return True
