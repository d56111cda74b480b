"""The reference desk: whose reference log-probs are wanted, who computes them, where they lie.

    trajectory ready ─► waiting ─take─► leased ─complete─► done ─► a batch may take it
                           ▲              │ the stage left, leased anew, or left it out
                           ├──────────────┘
                           └── recall: the trainer could not read what was done

Promise: what the ledger may still train is waiting, leased or done, each exactly once, and what it
may not is forgotten; a result counts once, under the fence of the lease that asked for it. Pure. It
is derived data: a restarted scheduler has an empty desk, and what it wants is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.scheduler.ledger import Ledger
from services.scheduler.records import Purpose, State


@dataclass(frozen=True, slots=True)
class Want:
    """One trajectory, by its attempt, and the registry key of its columns."""

    ticket_id: int
    attempt: int
    descriptor_key: str
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Column:
    """Where reference log-probs lie: from `offset` on in what these registry keys hold together."""

    keys: tuple[str, ...]
    offset: int = 0


Stage = tuple[str, int]


class ReferenceDesk:
    """One reference stage at a time: its columns are gone with its incarnation."""

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self.fence = 0
        self._waiting: dict[int, Want] = {}
        self._leased: dict[int, Want] = {}
        self._done: dict[int, tuple[Want, Column]] = {}

    @property
    def waiting_tokens(self) -> int:
        return sum(want.total_tokens for want in self._waiting.values())

    def follow(self, wants: Mapping[int, Want], stage_lives: bool) -> None:
        """Takes over what the ledger may train now. stage_lives: the known stage is still a member."""
        if self.stage is not None and not stage_lives:
            self._replace(None)
        for held in (self._waiting, self._leased):
            for number in [number for number, want in held.items() if wants.get(number) != want]:
                del held[number]
        for number in [number for number, (want, _) in self._done.items() if wants.get(number) != want]:
            del self._done[number]
        for number, want in wants.items():
            if number not in self._leased and number not in self._done:
                self._waiting[number] = want

    def take(self, stage: Stage, credit_tokens: int, first: Iterable[int] = ()) -> list[Want]:
        """The oldest that wait, of `credit_tokens` together at most, leased under a new `fence`.

        first: tickets that go before all others. What this stage held leased before waits again.
        """
        if stage != self.stage:
            self._replace(stage)
        self._return_leased()
        self.fence += 1
        urgent = set(first)
        for number in sorted(self._waiting, key=lambda number: (number not in urgent, number)):
            want = self._waiting[number]
            if want.total_tokens > credit_tokens:
                break  # not passed over: what is oldest must not starve
            credit_tokens -= want.total_tokens
            self._leased[number] = self._waiting.pop(number)
        return list(self._leased.values())

    def complete(
        self,
        stage: Stage,
        fence: int,
        results: Mapping[tuple[int, int], Column],
        lost: Iterable[tuple[int, int]],
    ) -> tuple[int, list[Want]]:
        """(results refused, leased trajectories whose columns are lost). Keys are (ticket, attempt).

        What was leased and is in neither waits again. Repeating a call refuses nothing.
        """
        refused = 0
        current = stage == self.stage and fence == self.fence
        for (number, attempt), column in results.items():
            want = self._leased.get(number)
            if current and want is not None and want.attempt == attempt and column.keys:
                self._done[number] = self._leased.pop(number), column
                continue
            done = self._done.get(number)
            repeated = current and done is not None and (done[0].attempt, done[1]) == (attempt, column)
            refused += not repeated
        if not current:
            return refused, []
        gone = [want for want in self._leased.values() if (want.ticket_id, want.attempt) in set(lost)]
        self._return_leased()
        return refused, gone

    def recall(self, numbers: Iterable[int]) -> None:
        """What is done of these is computed again: it could not be read."""
        for number in numbers:
            if number in self._done:
                self._waiting[number] = self._done.pop(number)[0]

    def columns(self, numbers: Iterable[int]) -> dict[int, Column]:
        """Where tickets' reference log-probs lie, of those that are done."""
        return {number: self._done[number][1] for number in numbers if number in self._done}

    @property
    def missing(self) -> set[int]:
        """Tickets that are wanted and not done."""
        return self._waiting.keys() | self._leased.keys()

    def _replace(self, stage: Stage | None) -> None:
        self.stage = stage
        self._return_leased()
        for number, (want, _) in self._done.items():
            self._waiting[number] = want
        self._done.clear()

    def _return_leased(self) -> None:
        self._waiting.update(self._leased)
        self._leased.clear()


def follow(desk: ReferenceDesk, ledger: Ledger) -> None:
    """Brings the desk to the ledger: wanted is each live training trajectory that has a token to train."""
    book = ledger.book
    wants: dict[int, Want] = {}
    for members in book.groups[Purpose.TRAIN].values():
        for number in members:
            ticket = book.tickets[number]
            result = ticket.result
            if ticket.state in (State.READY, State.PLANNED) and result is not None and result.trained_tokens:
                wants[number] = Want(number, ticket.attempt, result.descriptor_key, result.total_tokens)
    lives = False
    if desk.stage is not None:
        name, incarnation = desk.stage
        member = book.members.get(name)
        lives = member is not None and member.incarnation == incarnation
    desk.follow(wants, lives)


def held_back(desk: ReferenceDesk, ledger: Ledger) -> frozenset[int]:
    """Groups that no batch may take yet: a member's reference log-probs are missing."""
    tickets = ledger.book.tickets
    return frozenset(tickets[number].group for number in desk.missing if number in tickets)


def must_wait(desk: ReferenceDesk, ledger: Ledger) -> bool:
    """Whether the planned batch lacks reference log-probs that can still come."""
    batch = ledger.book.batch
    return batch is not None and not batch.lost and not desk.missing.isdisjoint(batch.tickets)


def lose(ledger: Ledger, gone: Iterable[Want]) -> None:
    """The columns of these trajectories cannot be read any more: their tickets are tried again."""
    book = ledger.book
    for want in gone:
        ticket = book.tickets.get(want.ticket_id)
        if ticket is None or ticket.attempt != want.attempt:
            continue
        if ticket.state is State.READY:
            ledger.fail(ticket)
        elif book.batch is not None and ticket.id in book.batch.tickets and ticket.id not in book.batch.lost:
            # The trainer may have read it already: only its next call tells.
            book.batch.lost.append(ticket.id)
            book.write("state", "batch")
