"""Task instances from seeds, so that evaluation never meets what training saw.

EARL's evaluation seeds have bit 31 set, its training seeds have not. Different seeds may still draw the
same instance, so instances are divided too: a quarter of them, chosen by a hash of their text, belongs
to evaluation, the rest to training, and a seed draws until one of its own side comes.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import TypeVar

EVALUATION_BIT = 1 << 31
# One instance of so many is evaluation's.
SHARE = 4
# After so many draws a task has no instance of the wanted side (it has a handful in all): the last one
# is taken, whichever side it is of.
DRAWS = 128

Instance = TypeVar("Instance")


def is_evaluation(seed: int) -> bool:
    """Returns whether a seed is one of evaluation's."""
    return bool(seed & EVALUATION_BIT)


def belongs_to_evaluation(text: str) -> bool:
    """Returns whether the instance of this text is one of evaluation's."""
    return zlib.crc32(text.encode()) % SHARE == 0


def drawn(seed: int, make: Callable[[int], Instance], text: Callable[[Instance], str]) -> Instance:
    """The instance of `seed`: make(a number below 2**31), of the side that the seed is of.

    text: what tells two instances apart. Always the same for one seed.
    """
    numbers = random.Random(f"instance/{seed}")
    evaluation = is_evaluation(seed)
    instance = make(numbers.getrandbits(31))
    for _ in range(DRAWS - 1):
        if belongs_to_evaluation(text(instance)) is evaluation:
            break
        instance = make(numbers.getrandbits(31))
    return instance
