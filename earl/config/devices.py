"""The value of the keys `devices`: "auto", a number of devices, or their numbers in a text. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator

from earl.config.takes import Takes

TAKES = '"auto", how many devices, such as 4, or their numbers in a text, such as "0-3" or "0,2", none twice'
# No machine has as many; a typing error such as "0-10000000" is refused before it is counted.
MOST_DEVICES = 1024

_NUMBERS = re.compile(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*")


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The devices that a stage may use.

    count: so many, whichever are free. numbers: these, counted from 0. Neither: as many as the stage needs.
    """

    count: int = 0
    numbers: tuple[int, ...] = ()

    @classmethod
    def of(cls, value: int | str) -> DeviceChoice:
        """Parses a key's value. Raises ValueError for what it does not take."""
        if isinstance(value, str):
            return cls() if value == "auto" else cls(numbers=_numbers(value))
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_DEVICES:
            raise ValueError("no number of devices")
        return cls(count=value)

    @property
    def size(self) -> int:
        """The number of devices that the run file asks for; 0: as many as are needed."""
        return self.count or len(self.numbers)


def _numbers(text: str) -> tuple[int, ...]:
    text = text.replace(" ", "")
    if not _NUMBERS.fullmatch(text):
        raise ValueError("no list of device numbers")
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
        if int(last or first) < int(first):
            raise ValueError("a range that ends before it begins")
    if len(set(numbers)) != len(numbers) or len(numbers) > MOST_DEVICES:
        raise ValueError("a device that is named twice, or too many")
    return tuple(numbers)


def _checked(value: Any) -> int | str:
    DeviceChoice.of(value)
    return value


def shown_devices(numbers: tuple[int, ...]) -> str:
    """Device numbers as a run file writes them: "0-3,6"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


Devices = Annotated[int | str, PlainValidator(_checked), Takes(TAKES)]
