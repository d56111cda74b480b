"""episodes.jsonl: what the final evaluation's episodes read and wrote, for another run's warm-up.

    accepted ─► a line of .episodes.part.jsonl ─► the evaluation has ended ─► episodes.jsonl, whole

An episode's line is written before its acceptance is stored, so a scheduler that dies in between plays it
again, and the last line of an instance counts. Episodes that failed have none, nor has one that a full disk
took.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from earl.config.run import RunConfig
from earl.expendable import ExpendableFile
from earl.obs.metrics import LineFile, read_lines
from earl.recorded_episodes import (
    RECORDED,
    TOKENS,
    EpisodesHeader,
    RecordedEpisode,
    RecordedTurn,
    write_episodes,
)
from earl.stack.imitated import prompts_of
from services.scheduler.ledger.evaluation import FINAL
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.tickets import EpisodeResult, Ticket

log = logging.getLogger(__name__)

PART = ".episodes.part.jsonl"


class EpisodeRecorder:
    """Records one run's final evaluation; does nothing in a run without evaluation.record."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self._config, self._directory = config, run_dir
        self._labels = {"": config.mixture[0].label}
        self._recording = config.evaluation.record and not (run_dir / RECORDED).is_file()
        self._part = LineFile(run_dir / PART) if self._recording else None

    def accepted(self, ticket: Ticket, result: EpisodeResult, turns: Sequence[RecordedTurn]) -> None:
        """Takes an accepted episode."""
        if self._part is None or ticket.evaluation != FINAL:
            return
        label = self._labels.get(ticket.environment, ticket.environment)
        episode = RecordedEpisode.of(ticket.index, label, result.reward, turns)
        if not 0 < episode.tokens <= TOKENS:
            log.warning("the episode of ticket %d is not recorded: %d tokens", ticket.id, episode.tokens)
            return
        self._part.write(json.loads(episode.line))

    def write(self, evaluation: EvaluationRecord | None) -> None:
        """Writes the file once the evaluation has ended."""
        if self._part is None or evaluation is None or not evaluation.finished:
            return
        # Only a recording needs the tokenizer here.
        from earl.models.tokenizer import fingerprint

        self._part.close()
        self._part = None
        config, part = self._config, self._directory / PART
        latest = {line["index"]: line for line in read_lines(part)}
        episodes = [_episode(latest[index]) for index in sorted(latest)]
        header = EpisodesHeader(
            tokenizer=fingerprint(self._directory / "model", chat=config.model.chat),
            environments={entry.label: entry.name for entry in config.mixture},
            prompts=prompts_of(config),
            policy=config.model.path or config.name,
        )
        path = self._directory / RECORDED
        with ExpendableFile(path).written():
            write_episodes(path, header, episodes)
            part.unlink(missing_ok=True)
            log.info("%d episodes are recorded in %s", len(episodes), path)

    def close(self) -> None:
        if self._part is not None:
            self._part.close()


def _episode(line: dict) -> RecordedEpisode:
    turns = [RecordedTurn(observed, acted) for observed, acted in line["turns"]]
    return RecordedEpisode.of(line["index"], line["environment"], line["reward"], turns)
