"""`python -m benchmarks.control.profiled FILE …`: the scheduler, and in FILE where its processor time went.

The interpreter is interrupted every PERIOD_S of processor time; what stands on its stack then is counted, so
that shares are of what the process computed, and code in C counts for whoever called it.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

PERIOD_S = 0.002
# Functions that are listed.
MOST = 60


class StackSamples:
    """Samples of the main thread's stack: by the innermost function, and by every function on it."""

    def __init__(self) -> None:
        self.count = 0
        self._by_itself: Counter[str] = Counter()
        self._whole: Counter[str] = Counter()

    def take(self, number: int, frame: FrameType | None) -> None:
        """A signal handler."""
        self.count += 1
        names: list[str] = []
        while frame is not None:
            code = frame.f_code
            names.append(f"{'/'.join(code.co_filename.rsplit('/', 2)[-2:])}:{code.co_qualname}")
            frame = frame.f_back
        self._by_itself[names[0]] += 1
        self._whole.update(set(names))

    def shares(self) -> dict[str, dict[str, float]]:
        """Fractions of all samples, the largest first."""
        return {
            kind: {name: round(count / max(1, self.count), 4) for name, count in counts.most_common(MOST)}
            for kind, counts in (("own", self._by_itself), ("with_callees", self._whole))
        }


def main() -> None:
    from services.scheduler.__main__ import main as schedule

    path, samples = Path(sys.argv.pop(1)), StackSamples()
    signal.signal(signal.SIGPROF, samples.take)
    signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)
    try:
        schedule()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        path.write_text(json.dumps({"samples": samples.count, **samples.shares()}))


if __name__ == "__main__":
    main()
