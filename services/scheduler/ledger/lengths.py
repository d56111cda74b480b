"""Lengths of trajectories by task, as records, and what they predict; not with length_order = "drawn".

    group trained, or replaced for want of signal ─► record of its step ─► LengthHistory ─► prediction
                                                                           of each group that is issued

The history follows from the records, in the order of their steps, so a scheduler that starts again predicts
what the former one would have. Of STORED_EPISODES at most there are records, and a scheduler that starts
again knows of no earlier ones. A checkpoint that is restored takes the records of later steps back.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.scheduler.assign.history import LengthHistory, PredictionError
from services.scheduler.ledger.admission import training_step
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.group_lengths import GroupLengths, StepLengths
from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import Purpose, Ticket

# Trajectories of which there are records, some four bytes each.
STORED_EPISODES = 1 << 16


class TaskLengths:
    """Writes and reads the lengths of groups. Without longest_first there are none."""

    def __init__(self, rules: Rules, tables: LedgerTables) -> None:
        self._rules = rules
        self._tables = tables
        # None until it is asked for.
        self._history: LengthHistory | None = None

    @property
    def error(self) -> PredictionError:
        """The error of the predictions that recent groups were issued with."""
        return self._known().error if self._rules.longest_first else PredictionError()

    @property
    def figures(self) -> dict[str, float]:
        """The same, see PredictionError; empty before a group with a prediction has ended."""
        error = self.error
        if error.factor is None or error.covered is None:
            return {}
        return {"length_prediction_factor": error.factor, "length_prediction_covered": error.covered}

    def predict(self, environment: str, task: int) -> int:
        """The response's length in tokens that a group issued now may have; 0 if nothing tells.

        Its prompt is not known before it is played.
        """
        if not self._rules.longest_first:
            return 0
        return round(self._known().predict(environment, task, 0).tokens)

    def add_trained(self, version: int, tickets: Iterable[Ticket]) -> None:
        """The groups of a batch that was trained at a version; their results are still there."""
        self._add(training_step(self._rules, version), tickets)
        self._forget()

    def add_replaced(self, tickets: Iterable[Ticket]) -> None:
        """A group that is about to be dropped for want of signal."""
        self._add(training_step(self._rules, self._tables.run.version), tickets)

    def roll_back(self, version: int) -> None:
        """The batches that were trained at this version and later ones are given up."""
        first, table = training_step(self._rules, version), self._tables.lengths
        for step in [step for step in table if step >= first]:
            del table[step]
        self._history = None

    # --- within -----------------------------------------------------------------------------

    def _known(self) -> LengthHistory:
        if self._history is None:
            self._history = LengthHistory()
            for _, groups in sorted(self._tables.lengths.items()):
                _observe(self._history, groups)
        return self._history

    def _add(self, step: int, tickets: Iterable[Ticket]) -> None:
        if not self._rules.longest_first:
            return
        groups: dict[int, list[Ticket]] = {}
        for ticket in tickets:
            if ticket.purpose is Purpose.TRAIN and ticket.result is not None:
                groups.setdefault(ticket.group, []).append(ticket)
        ended = tuple(map(_lengths_of, groups.values()))
        if not ended:
            return
        known, table = self._known(), self._tables.lengths
        _observe(known, ended)
        table[step] = table.get(step, ()) + ended

    def _forget(self) -> None:
        """Deletes the records of the oldest steps beyond STORED_EPISODES."""
        table = self._tables.lengths
        stored = sum(len(group.responses) for groups in table.values() for group in groups)
        for step in sorted(table)[:-1]:
            if stored <= STORED_EPISODES:
                return
            stored -= sum(len(group.responses) for group in table[step])
            del table[step]


def _lengths_of(members: list[Ticket]) -> GroupLengths:
    results = [ticket.result for ticket in members if ticket.result is not None]
    first = members[0]
    return GroupLengths(
        first.environment,
        first.task,
        first.group,
        first.predicted_tokens,
        tuple(result.prompt_tokens for result in results),
        tuple(result.total_tokens - result.prompt_tokens for result in results),
    )


def _observe(history: LengthHistory, groups: StepLengths) -> None:
    for each in groups:
        for prompt, response in zip(each.prompts, each.responses, strict=True):
            history.observe(each.environment, each.task, each.group, prompt, response, each.predicted)
