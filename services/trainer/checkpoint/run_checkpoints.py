"""The checkpoints of a run, as each of the trainer's ranks takes part in them.

    load ─► begin: of a version that has none ─► training goes on ─► poll, settle: written?
                                                       rank 0: recorded, best is marked ◄─┘

Methods are collectives but for `is_due`. Promise: a checkpoint is recorded with the scheduler once it is on
the disk, and never before.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from earl.config.run import RunConfig
from services.trainer.checkpoint import checkpoint
from services.trainer.checkpoint.manifest import TrainingProgress, config_hash
from services.trainer.checkpoint.retention import mark_best
from services.trainer.checkpoint.writer import CheckpointWriter, WrittenCheckpoint
from services.trainer.ranks.activity import SAVING, Activity
from services.trainer.ranks.process_group import Group
from services.trainer.step.step import Stepper

log = logging.getLogger(__name__)


class CheckpointRecorder(Protocol):
    """Tells the scheduler of checkpoints, on rank 0. best: version with the best evaluation, 0 if there is
    none; held: versions whose checkpoints must stay."""

    best: int
    held: frozenset[int]

    def record_checkpoint(self, progress: TrainingProgress, path: str) -> None: ...


class RunCheckpoints:
    """Loads, writes and records the checkpoints of one rank's run. recorder: on rank 0 only."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        group: Group,
        activity: Activity,
        recorder: CheckpointRecorder | None,
    ) -> None:
        self._config, self._run_dir = config, run_dir
        self._group, self._activity = group, activity
        self._recorder = recorder
        self._directory = run_dir / "checkpoints"
        self._writer = CheckpointWriter(self._directory, group, config.trainer.keep_checkpoints)
        # The version of the newest checkpoint, written or in flight.
        self._saved_version = 0

    def load(self, stepper: Stepper) -> TrainingProgress | None:
        """Fills the parameters: from the newest checkpoint, whose progress is returned, or from the model
        that the run starts from.

        Raises ModelNotFound, CheckpointError.
        """
        policy = stepper.policy
        if policy.lora is not None:
            # A checkpoint holds the adapters alone.
            policy.fill(self._run_dir / "model", self._config.seed)
        latest = checkpoint.latest(self._directory, stepper, self._group)
        if latest is None:
            policy.fill(self._run_dir / "model", self._config.seed)
            return None
        path, manifest = latest
        checkpoint.load(path, manifest, stepper)
        self._saved_version = manifest.progress.version
        if self._group.leads:
            log.info("resumed version %d from %s", manifest.progress.version, path)
            if manifest.config != config_hash(self._config):
                log.warning("%s was trained with other settings than the run file's", path)
        return manifest.progress

    def is_due(self, version: int) -> bool:
        """Returns whether so many versions have come since the last checkpoint as the run file has it."""
        every = self._config.trainer.checkpoint_every
        return bool(every) and version - max(1, self._saved_version) >= every

    def begin(
        self, stepper: Stepper, progress: TrainingProgress, readable: AbstractContextManager[None]
    ) -> None:
        """Begins to write a checkpoint of this version, unless there is one; that before is waited for.

        readable: the state can be read within it.
        """
        if progress.version == self._saved_version:
            return
        self.settle()
        with self._activity.phase(SAVING), readable:
            self._writer.begin(stepper, progress, config_hash(self._config))
        self._saved_version = progress.version

    def settle(self) -> None:
        """Waits for the checkpoint in flight, if there is one. Raises CheckpointError."""
        if not self._writer.in_flight:
            return
        with self._activity.phase(SAVING):
            written = self._writer.settle(self._held)
        self._record(written)

    def poll(self) -> None:
        """Records the checkpoint in flight if it was written meanwhile. Raises CheckpointError."""
        self._record(self._writer.poll(self._held))

    def mark_best(self) -> None:
        """Marks the checkpoint with the best evaluation, on rank 0."""
        if self._recorder is not None:
            mark_best(self._directory, self._recorder.best)

    def path(self, version: int) -> Path:
        """Returns the directory of a version's checkpoint."""
        return self._directory / f"step-{version}"

    def _record(self, written: WrittenCheckpoint | None) -> None:
        if written is not None and self._recorder is not None:
            self._recorder.record_checkpoint(written.progress, str(written.path))
            self.mark_best()

    @property
    def _held(self) -> frozenset[int]:
        return self._recorder.held if self._recorder is not None else frozenset()
