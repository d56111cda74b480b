"""The quarantine of (host, environment) pairs, which get no new sessions for a while; pure, time is an
argument.

`threshold` faults in a row start a quarantine of `duration_s`. After it the pair is on probation, with one
session at a time: one more fault starts another quarantine, twice as long, up to `MAX_FACTOR` times; one good
episode clears everything. A host that was started again is on probation at once: it may have been fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_FACTOR = 16
Key = tuple[str, str]


@dataclass(slots=True)
class _Record:
    faults: int = 0
    factor: int = 1
    until: float = 0.0
    reason: str = ""


class Quarantine:
    """Faults in a row by (host name, environment)."""

    def __init__(self, threshold: int, duration_s: float) -> None:
        self._threshold = threshold
        self._duration_s = duration_s
        self._records: dict[Key, _Record] = {}

    def fault(self, key: Key, now: float, reason: str = "") -> float:
        """Counts a fault; returns the seconds of the quarantine that it starts, 0 if it starts none."""
        record = self._records.setdefault(key, _Record())
        record.faults += 1
        record.reason = reason
        if record.faults < self._threshold or now < record.until:
            return 0.0
        duration_s = self._duration_s * record.factor
        record.until = now + duration_s
        record.factor = min(record.factor * 2, MAX_FACTOR)
        record.faults = self._threshold - 1
        return duration_s

    def success(self, key: Key) -> None:
        """Takes note of an episode that ended well."""
        self._records.pop(key, None)

    def faults(self, key: Key) -> int:
        """Number of consecutive faults."""
        record = self._records.get(key)
        return record.faults if record is not None else 0

    def held(self, key: Key, now: float) -> bool:
        """Returns whether the pair is in quarantine now."""
        record = self._records.get(key)
        return record is not None and now < record.until

    def on_probation(self, key: Key, now: float) -> bool:
        """Returns whether a quarantine of the pair is over and no good episode came since."""
        record = self._records.get(key)
        return record is not None and record.factor > 1 and now >= record.until

    def remaining(self, key: Key, now: float) -> tuple[float, str] | None:
        """The seconds that are left of a pair's quarantine, and its reason; None if it is in none."""
        record = self._records.get(key)
        return (record.until - now, record.reason) if record is not None and now < record.until else None

    def describe(self, key: Key, now: float) -> str:
        """A pair in quarantine: its host, for how long still, and why; "" for another."""
        remaining = self.remaining(key, now)
        if remaining is None:
            return ""
        left_s, reason = remaining
        return f"host {key[0]} is in quarantine for {left_s:.0f} s more: {reason}"

    def started_again(self, host: str, now: float) -> None:
        """Ends the quarantines of a host whose process is a new one."""
        for (name, _), record in self._records.items():
            if name == host and now < record.until:
                record.until = now

    def ends(self, now: float) -> bool:
        """Returns whether a quarantine has ended since it was last asked; it is then on probation."""
        ended = False
        for record in self._records.values():
            if record.until and record.until <= now:
                record.until = 0.0
                ended = True
        return ended
