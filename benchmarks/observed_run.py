"""A whole run as a process of its own, sampled while it trains."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from benchmarks.children import process_error
from benchmarks.footprint import MARK, Place
from benchmarks.usage import Usage
from earl.config.load import Override

# For a run that was killed.
END_S = 10.0


class ObservedRun:
    """A run with a name and a directory that no other run has; it ends with its place.

    about: which run it is, for errors, after "the run". extra_pids: other processes whose processor time
    counts as the run's.
    """

    def __init__(
        self,
        run_file: Path,
        about: str,
        place: Place,
        overrides: Iterable[Override],
        extra_pids: Collection[int] = (),
    ) -> None:
        dotted = [text for key, value in overrides for text in (f"--{key}", value)]
        self._log = place.directory / "output.log"
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "earl.cli.main", "train", str(run_file), "--plain",
                    "--name", place.mark, "--runs-dir", str(place.directory), *dotted,
                ],
                env=os.environ | {MARK: place.mark}, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._about = about
        self.directory = place.directory / place.mark
        self.usage = Usage(self.directory, [self._process.pid, *extra_pids])

    def poll(self) -> bool:
        """Sample it; returns whether it is running. Raises ProcessFailed if it failed."""
        code = self._process.poll()
        self.usage.sample()
        if code:
            output = self._log.read_text(encoding="utf-8", errors="replace")
            raise process_error(f"the run {self._about}", code, output)
        return code is None

    def gone(self) -> None:
        """Waits for a process that was told to end, or has ended."""
        self._process.wait(END_S)
