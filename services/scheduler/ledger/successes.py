"""The successes of tasks that a curriculum goes by: the outcomes of each step's groups, as records.

A group counts with the batch that trains it. One that was replaced for want of signal counts in the step of
its place, or in the current one if that is later. A checkpoint that is restored takes trained groups of later
steps back; replaced ones stay, as does the number of substitutes at their places. Runs without a curriculum
have no such records.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from services.scheduler.ledger.admission import training_step
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.curriculum import RECENT, Curriculum, Successes
from services.scheduler.state.outcomes import GroupOutcome
from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import Purpose, Ticket

# (step, thousandths of successes, episodes) of a group.
_Played = tuple[int, int, int]


class TaskSuccesses:
    """Writes and reads the outcomes of groups. curriculum: draws tasks by them."""

    def __init__(self, rules: Rules, tables: LedgerTables) -> None:
        self._rules = rules
        self._tables = tables
        self._labels = {share.label for share in rules.mixture if share.curriculum}
        # By label and task, ascending by step; None until it is asked for.
        self._played: dict[tuple[str, int], list[_Played]] | None = None
        self.curriculum = Curriculum(self.before)

    def before(self, label: str, step: int, task: int) -> Successes:
        """The successes of a task's last groups in the steps before this one."""
        if self._played is None:
            self._played = {}
            for played_at, outcomes in self._tables.outcomes.items():
                self._enter(played_at, outcomes)
        played = self._played.get((label, task), ())
        recent = played[: bisect_left(played, (step,))][-RECENT:]
        return Successes(sum(group[1] for group in recent), sum(group[2] for group in recent))

    def add_trained(self, version: int, tickets: Iterable[Ticket]) -> None:
        """The groups of a batch that was trained at a version; their results are still there."""
        self._add(training_step(self._rules, version), tickets, trained=True)

    def add_replaced(self, tickets: Iterable[Ticket]) -> None:
        """A group that is about to be dropped for want of signal."""
        members = list(tickets)
        place = max(ticket.index for ticket in members) // self._rules.batch_groups
        current = training_step(self._rules, self._tables.run.version)
        self._add(max(place, current), members, trained=False)

    def roll_back(self, version: int) -> None:
        """The batches that were trained at this version and later ones are given up."""
        first, table = training_step(self._rules, version), self._tables.outcomes
        for step in [step for step in table if step >= first]:
            replaced = tuple(outcome for outcome in table[step] if not outcome.trained)
            if replaced:
                table[step] = replaced
            else:
                del table[step]
        self._played = None
        self.curriculum.forget()

    # --- within -----------------------------------------------------------------------------

    def _add(self, step: int, tickets: Iterable[Ticket], *, trained: bool) -> None:
        groups: dict[int, list[Ticket]] = {}
        for ticket in tickets:
            if ticket.purpose is Purpose.TRAIN and ticket.task >= 0 and ticket.environment in self._labels:
                groups.setdefault(ticket.group, []).append(ticket)
        outcomes = tuple(_outcome(members, trained) for members in groups.values())
        if outcomes:
            self._tables.outcomes[step] = self._tables.outcomes.get(step, ()) + outcomes
            if self._played is not None:
                self._enter(step, outcomes)

    def _enter(self, step: int, outcomes: Iterable[GroupOutcome]) -> None:
        assert self._played is not None
        for outcome in outcomes:
            played = self._played.setdefault((outcome.environment, outcome.task), [])
            insort(played, (step, outcome.thousandths, outcome.episodes))


def _outcome(members: list[Ticket], trained: bool) -> GroupOutcome:
    wins = [round(1000 * ticket.result.win) for ticket in members if ticket.result is not None]
    return GroupOutcome(members[0].environment, members[0].task, sum(wins), len(wins), trained)
