"""Records a run outside its ledger: workers' reports, figures of its steps, its files.

No decision of the ledger rests on it, and a scheduler that starts again begins it again; its files
are appended to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from earl.config.run import RunConfig
from earl.draft_figures import step_figures
from earl.parallelism import ROLLOUT
from earl.recorded_episodes import RecordedTurn
from earl.transcript import TranscriptTurn
from services.scheduler.batches import batch_plan
from services.scheduler.batches.columns import ColumnRegistry
from services.scheduler.files.endings import Endings
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.files.recorded import EpisodeRecorder
from services.scheduler.files.samples import SampleFile
from services.scheduler.ledger import phases
from services.scheduler.ledger.evaluation import FINAL
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.monitor.workers import WorkerFleet
from services.scheduler.monitor.workload import Monitor, StepFigures
from services.scheduler.state.mixture import batch_part_at, epoch_at
from services.scheduler.state.run import CommittedBatch
from services.scheduler.state.tickets import MAY_TRAIN, Attempt, EpisodeResult, Purpose, Reason, Ticket


class RunRecorder:
    """Writes a run's files below its directory; times are seconds since the run began, now_s is
    monotonic."""

    def __init__(
        self, config: RunConfig, run_dir: Path, imitated: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """imitated: figures of the recorded episodes that the warm-up imitates, for each line of metrics."""
        self._imitated = imitated
        self._episodes = EpisodeRecorder(config, run_dir)
        self.monitor = Monitor()
        self.fleet = WorkerFleet()
        self.report = RunReport(run_dir)
        self._samples = SampleFile(run_dir / "samples.jsonl")
        self.endings = Endings(run_dir)
        self._masks_truncated = config.scheduler.truncated == "mask"
        self._frozen = config.frozen
        self._device_slots = config.rollout.max_sequences / config.rollout.tp
        self._closes_early = bool(config.scheduler.early_close)
        # Tickets that were closed early until the last step; and since then the tokens of those, by ticket,
        # whose episodes ended all the same.
        self._closed_before = 0
        self._closed_tokens: dict[int, int] = {}

    def ended(self, result: EpisodeResult, environment: str) -> None:
        """An attempt at an episode ended, whether it may be trained or comes to nothing."""
        self.endings.count(result, environment)

    def accepted(
        self,
        ledger: Ledger,
        ticket: Ticket | None,
        result: EpisodeResult,
        transcript: Sequence[TranscriptTurn],
        turns: Sequence[RecordedTurn] = (),
    ) -> None:
        """Records an accepted attempt. ticket: None if it was accepted before; nothing is recorded then.

        turns: in token ids, where the ticket asked for them.
        """
        if ticket is None:
            return
        self._episodes.accepted(ticket, result, turns)
        if ticket.transcript:
            trains = ticket.purpose is Purpose.TRAIN
            epoch = epoch_at(ledger.rules, ticket.index) if trains else None
            self._samples.observe(
                phases.training_steps(ledger),
                ticket,
                result,
                transcript,
                epoch,
                ticket.opponent(self._frozen),
            )
        part = batch_part_at(ledger.rules, ticket.purpose, ticket.index)
        self.monitor.observe(result.total_tokens, result.turn_tokens, part)

    def refused(self, ticket: Ticket | None, attempt: Attempt, result: EpisodeResult) -> None:
        """Records the length of an episode whose group was closed before its report came."""
        if ticket is None or ticket.reason != Reason.CLOSED_EARLY or attempt.fence != ticket.fence:
            return
        if result.ending in MAY_TRAIN:
            self._closed_tokens[ticket.id] = result.total_tokens

    def committed(
        self, ledger: Ledger, columns: ColumnRegistry, committed: CommittedBatch, *,
        step: int, phase: str, version: int, trainer: Mapping[str, float], elapsed_s: float, now_s: float,
    ) -> StepFigures:  # fmt: skip
        """A batch is trained: writes its line; what the step was."""
        counters = self.monitor.counters
        tokens = [result.total_tokens for result in committed.results]
        replayed = [result.total_tokens for result in committed.replays]
        read_for = ledger.rules.reference_for
        labelled = zip(tokens, committed.environments, strict=True)
        observed = self.monitor.step(
            workers=ledger.tables.workers.values(),
            device_slots=self._device_slots,
            batch_tokens=tokens,
            reference_tokens=[count for count, label in labelled if read_for is None or label in read_for],
            trainer=trainer,
            now_s=now_s,
            replayed_tokens=replayed,
        )
        self.report.step(
            step=step,
            phase=phase,
            version=version,
            time_s=elapsed_s,
            trajectories={
                **batch_plan.summary(committed, masks_truncated=self._masks_truncated, frozen=self._frozen),
                **self._closed_early(ledger),
                **ledger.replay.figures(),
                **(ledger.planned.take_figures() if ledger.planned is not None else {}),
                **self._imitated,
            },
            trainer={**trainer, **counters.totals, **step_figures(counters.take()), **ledger.lengths.figures},
            observed=observed,
            length_tokens=tokens,
            transfers=self.fleet.moved(),
            ledger={"issued": ledger.tables.run.next_ticket - 1, **ledger.tables.counts()},
            stages=columns.progress(),
        )
        self._samples.trained(step, committed.batch.tickets, ledger.rules.transcripts)
        return observed

    def _closed_early(self, ledger: Ledger) -> dict[str, float]:
        """The figures of what was closed early since the last step."""
        if not self._closes_early:
            return {}
        closed, tokens = ledger.attempts.closed_early, self._closed_tokens.values()
        figures = {"closed_early": float(closed - self._closed_before)}
        if tokens:
            figures["closed_length_mean"] = sum(tokens) / len(tokens)
        self._closed_before, self._closed_tokens = closed, {}
        return figures

    def write(self, ledger: Ledger, elapsed_s: float, now_s: float) -> None:
        """Writes what is due: evaluations that have ended, and how episodes ended. now_s: monotonic."""
        rollout = [each.parallelism for each in ledger.tables.workers.values() if each.stage_name == ROLLOUT]
        self.monitor.devices(sum(map(math.prod, rollout)), now_s)
        self.evaluated(ledger, elapsed_s)
        self.endings.write(elapsed_s)

    def evaluated(self, ledger: Ledger, elapsed_s: float) -> None:
        """Writes evaluations that have ended, and the episodes of one that records."""
        self.report.evaluations(ledger.tables.evaluations.values(), elapsed_s)
        self._episodes.write(ledger.tables.evaluations.get(FINAL))

    def close(self, elapsed_s: float) -> None:
        self.report.close()
        self._samples.close()
        self._episodes.close()
        self.endings.close(elapsed_s)
