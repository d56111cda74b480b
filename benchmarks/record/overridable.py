"""The command of a benchmark that takes keys of a run file."""

from __future__ import annotations

from benchmarks.record.execution import RecordedCommand
from earl.cli.run.launch import OverridableCommand


class RecordedOverridableCommand(RecordedCommand, OverridableCommand):
    """A recorded benchmark that takes `--section.key value` anywhere."""
