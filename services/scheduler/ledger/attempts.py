"""Tickets one by one, and match by match: who holds which attempt, and its outcome.

    issue ─► pending ─lease─► leased ─complete─► ready  (training, warm-up: a batch takes it from here)
                ▲               │       └──────► evaluated
                └─ expired, failed, worker gone; at most `attempts` tries, then dropped(reason)
    pending, leased ─ enough others of the group are ready ─► dropped(closed_early)

The tickets of a match (several seats of one episode are the policy's) are leased, completed, tried again
and dropped together, each in one transition: what is stored holds all of it or nothing.

Pure: time is an argument (monotonic seconds).
"""

from __future__ import annotations

from collections.abc import Sequence

from services.scheduler.ledger.evaluation import baseline
from services.scheduler.ledger.groups import can_spare, has_signal, is_full
from services.scheduler.ledger.lengths import TaskLengths
from services.scheduler.ledger.planned_leases import PlannedLeases
from services.scheduler.ledger.reports import fault_of, is_accepted, is_broken, refusal, unlike_match
from services.scheduler.ledger.successes import TaskSuccesses
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.ledger.transcripts import is_requested
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.facts import BatchCommitted, EvaluationDone, TrajectoryReady
from services.scheduler.state.mixture import batch_trajectories, instance_at, is_frozen_at, seats_at
from services.scheduler.state.rules import Rules
from services.scheduler.state.seeds import sample_seeds
from services.scheduler.state.tickets import (
    Attempt,
    EpisodeEnding,
    EpisodeResult,
    Issue,
    Purpose,
    Reason,
    Ticket,
    TicketState,
    TicketVerdict,
)
from services.scheduler.state.workers import WorkerRecord


class TicketAttempts:
    """Transitions of single tickets and of matches."""

    def __init__(
        self, rules: Rules, tables: LedgerTables, successes: TaskSuccesses, lengths: TaskLengths,
        planned: PlannedLeases | None = None,
    ) -> None:  # fmt: skip
        self.rules = rules
        self.tables = tables
        self.planned = planned
        self._successes = successes
        self._lengths = lengths
        # Tickets in a row that used up their attempts, the label of the last one's environment, and why an
        # attempt failed last.
        self.given_up = 0
        self.last_given_up = ""
        self.last_fault = ""
        # Tickets that were dropped as closed_early since this process began.
        self.closed_early = 0
        # Since when the time of episodes stands still; None while it does not.
        self._still_since: float | None = None

    def issue(self, purpose: Purpose, size: int, min_version: int, temperature: float, *,
              index: int, evaluation: str = "") -> int:  # fmt: skip
        """A new group of `size` pending tickets; its id. index: its place in the schedule of its purpose.

        size: a multiple of the seats that learn in an episode there; matches follow one another.
        """
        run, seed = self.tables.run, self.rules.seed
        take = run.takes.get(purpose, {}).get(index, 0)
        group = run.next_group
        run.next_group += 1
        first = run.next_ticket
        run.next_ticket += size
        instance = instance_at(self.rules, purpose, index, take, self._successes.curriculum)
        judged = self.tables.evaluations.get(evaluation)
        episodes = judged.episodes if judged else 0
        trains = purpose is Purpose.TRAIN
        self.tables.issue(
            Issue(
                group=group,
                purpose=purpose,
                index=index,
                first=first,
                env_seed=instance.env_seed,
                sample_seeds=sample_seeds(seed, purpose, index, size, take),
                min_version=min_version,
                temperature=temperature,
                evaluation=evaluation,
                environment=instance.environment,
                task=instance.task,
                transcripts=[
                    first + member
                    for member in range(size)
                    if is_requested(self.rules, purpose, index, member, episodes)
                ],
                seats=seats_at(self.rules, purpose, index),
                frozen=is_frozen_at(self.rules, purpose, index),
                predicted_tokens=self._lengths.predict(instance.environment, instance.task) if trains else 0,
            )
        )
        return group

    def lease(self, worker: WorkerRecord, credit: int, now: float) -> list[Ticket]:
        """The tickets of up to `credit` pending episodes, as planned or in their order (PendingTickets), now
        leased to this worker until now + lease_s. A match is one episode: one of its seats acts at a time."""
        tables, run = self.tables, self.tables.run
        if run.version and worker.version > run.version:
            return []  # holds weights of an abandoned future; it must load the current ones first
        leased: list[Ticket] = []
        pins = self.rules.deterministic  # its version is planned: nothing newer samples it
        plan = self.planned.of(worker, now) if self.planned is not None and tables.pending else None
        for ticket in tables.pending.deal(credit, lambda: self._share(worker), plan):
            for member in tables.match(ticket):
                run.fence += 1
                tables.move(
                    member,
                    TicketState.LEASED,
                    fence=run.fence,
                    attempt=member.attempt + 1,
                    floor=member.min_version if pins else max(member.min_version, worker.version),
                    worker=worker.name,
                    incarnation=worker.incarnation,
                )
                tables.lease_since[member.id] = now
                tables.lease_until.set(member.id, now + self.rules.lease_s)
                leased.append(member)
        return leased

    def _share(self, worker: WorkerRecord) -> float:
        """The worker's part of the episodes that all workers of its stage play at once."""
        fellows = [each for each in self.tables.workers.values() if each.stage == worker.stage]
        return max(1, worker.capacity) / max(1, worker.capacity, sum(each.capacity for each in fellows))

    def renew(self, worker: WorkerRecord, attempts: Sequence[Attempt], now: float) -> list[Attempt]:
        """Prolongs leases by lease_s, up to episode_s after they began; the attempts that are lost."""
        lost = []
        for attempt in attempts:
            if refusal(self.tables, worker.name, worker.incarnation, attempt):
                lost.append(attempt)
                continue
            since = self.tables.lease_since[attempt.ticket_id]
            if self._still_since is not None:
                since += now - max(since, self._still_since)
            end = since + self.rules.episode_s + self.rules.lease_s
            self.tables.lease_until.set(attempt.ticket_id, min(now + self.rules.lease_s, end))
        return lost

    def stand_still(self, still: bool, now: float) -> None:
        """The time of episodes stands still while engines sleep, or goes on."""
        if still:
            self._still_since = now if self._still_since is None else self._still_since
            return
        if self._still_since is not None:
            for number, since in self.tables.lease_since.items():
                self.tables.lease_since[number] = since + now - max(since, self._still_since)
        self._still_since = None

    def complete(
        self, name: str, incarnation: int, attempt: Attempt, result: EpisodeResult,
        others: Sequence[tuple[Attempt, EpisodeResult]] = (),
    ) -> tuple[TicketVerdict, str]:  # fmt: skip
        """Takes one finished attempt. A repeated report of an accepted one is accepted again.

        others: the reports of the other seats of its match, to which the answer applies as well.
        """
        reports = [(attempt, result), *others]
        refused = (refusal(self.tables, name, incarnation, each) for each, _ in reports)
        reason = next(filter(None, refused), "")
        ticket = self.tables.tickets.get(attempt.ticket_id)
        if ticket is None:
            return TicketVerdict.REFUSED, reason
        reason = reason or unlike_match(ticket, [each for each, _ in reports])
        if reason:
            repeated = all(is_accepted(self.tables, each) for each, _ in reports)
            return (TicketVerdict.ACCEPTED, "") if repeated else (TicketVerdict.REFUSED, reason)
        played = [(self.tables.tickets[each.ticket_id], outcome) for each, outcome in reports]
        newest = self.tables.run.version
        faults = [text for each, outcome in played if (text := fault_of(self.rules, each, outcome, newest))]
        if faults:
            self.last_fault = faults[0]
            broken = any(is_broken(outcome) for _, outcome in played)
            for member, _ in played:
                self.tables.change(member, broken=member.broken or broken)
            self.fail(ticket)
            return TicketVerdict.RETRIED, faults[0]
        if self.rules.drops_truncated and self._is_dropped(played):
            return TicketVerdict.ACCEPTED, ""
        self.given_up = 0
        if ticket.purpose is Purpose.EVALUATE:
            judged = self.tables.evaluations[ticket.evaluation].with_result(ticket.index, result)
            self._judge(ticket, judged, TicketState.EVALUATED)
            return TicketVerdict.ACCEPTED, ""
        for member, outcome in played:
            floor = outcome.oldest_version if outcome.trained_tokens else member.floor
            self.tables.move(member, TicketState.READY, result=outcome, floor=floor)
            ready = TrajectoryReady(
                member.id, member.attempt, name, member.purpose, outcome, member.environment, member.task,
                member.env_seed, member.seat,
            )  # fmt: skip
            self.tables.record_fact(ready)
        if is_full(self.rules, self.tables, ticket):
            self.close_group(ticket.group)
        else:
            self._resample(ticket)
        return TicketVerdict.ACCEPTED, ""

    def expire(self, now: float) -> None:
        """Ends leases that have expired."""
        for number in self.tables.lease_until.take_due(now):
            ticket = self.tables.tickets[number]
            if ticket.state is TicketState.LEASED:  # it may have fallen with its group just now
                self.fail(ticket)

    def drop_group(self, purpose: Purpose, group: int, reason: Reason) -> None:
        """Drops every live member of a group; trajectories among them are freed with the next commit."""
        tables = self.tables
        for number in list(tables.groups[purpose].get(group, ())):
            ticket = tables.tickets[number]
            self._forget_columns(ticket)
            tables.move(ticket, TicketState.DROPPED, reason)
        self.free(batch_trajectories(self.rules, Purpose.TRAIN, 0))

    def close_group(self, group: int) -> None:
        """Drops what of a group of training has not ended: it is trained with what is ready, or replaced."""
        members = [self.tables.tickets[number] for number in self.tables.groups[Purpose.TRAIN][group]]
        for ticket in members:
            if ticket.state in (TicketState.PENDING, TicketState.LEASED):
                self.tables.move(ticket, TicketState.DROPPED, Reason.CLOSED_EARLY)
                self.closed_early += 1
        self._resample(members[0])

    # --- within -----------------------------------------------------------------------------

    def fail(self, ticket: Ticket) -> None:
        """Fails an attempt: the ticket, or its match, is tried again, or its group is given up.

        A group that is given up leaves its place to a substitute, another instance. In a deterministic
        run only the instance itself can bring that about (its environment is broken there, whenever it
        is played); what chance did to the attempts is tried again for as long as anything succeeds.
        """
        tables = self.tables
        for member in tables.match(ticket):
            tables.change(member, failures=member.failures + 1)
        if ticket.failures < self.rules.attempts:
            self.retry(ticket)
            return
        self.given_up += 1
        self.last_given_up = ticket.environment
        if self.rules.deterministic and not ticket.broken:
            for member in tables.match(ticket):
                tables.change(member, failures=0)
            self.retry(ticket)
        elif ticket.purpose is Purpose.EVALUATE:
            judged = tables.evaluations[ticket.evaluation].with_failure()
            self._judge(ticket, judged, TicketState.DROPPED, Reason.EVALUATION_FAILED)
        else:
            self._leave_out(ticket, Reason.MEMBER_FAILED, Reason.GROUP_INCOMPLETE)

    def _is_dropped(self, played: Sequence[tuple[Ticket, EpisodeResult]]) -> bool:
        """Drops the tickets of a training episode that was truncated; returns whether it was."""
        ticket, result = played[0]
        if result.ending is not EpisodeEnding.TRUNCATED or ticket.purpose is not Purpose.TRAIN:
            return False
        self.given_up += 1
        self.last_given_up, self.last_fault = ticket.environment, f"truncated: {result.message}"
        for member, outcome in played:
            self.tables.change(member, result=outcome)
        self._leave_out(ticket, Reason.TRUNCATED, Reason.TRUNCATED)
        return True

    def _leave_out(self, ticket: Ticket, alone: Reason, whole: Reason) -> None:
        """Drops a ticket or match, alone if enough others of its group are left, otherwise with its group."""
        if can_spare(self.rules, self.tables, ticket):
            for member in self.tables.match(ticket):
                self._forget_columns(member)
                self.tables.move(member, TicketState.DROPPED, alone)
            self._resample(ticket)
        else:
            self._substitute(ticket, whole)

    def _substitute(self, ticket: Ticket, reason: Reason) -> None:
        """Drops the ticket's group: another instance gets its place."""
        takes = self.tables.run.takes.setdefault(ticket.purpose, {})
        takes[ticket.index] = takes.get(ticket.index, 0) + 1
        self.drop_group(ticket.purpose, ticket.group, reason)

    def _resample(self, ticket: Ticket) -> None:
        """Replaces the ticket's group if it is complete and the rewards of each seat are all equal.

        At most `resample` times at a place, whatever a substitute was for: so what is played at a place
        follows from the outcomes there alone.
        """
        tables = self.tables
        taken = tables.run.takes.get(ticket.purpose, {}).get(ticket.index, 0)
        if ticket.purpose is not Purpose.TRAIN or taken >= self.rules.resample:
            return
        if ticket.group in tables.whole[ticket.purpose]:
            members = [tables.tickets[number] for number in tables.groups[ticket.purpose][ticket.group]]
            if not has_signal(members):
                self._successes.add_replaced(members)
                self._lengths.add_replaced(members)
                self._substitute(ticket, Reason.NO_SIGNAL)

    def retry(self, ticket: Ticket) -> None:
        """Makes the ticket, or its match, pending again. It must not become staler than promised: `floor`
        never sinks."""
        match = self.tables.match(ticket)
        # A warm-up samples from no version.
        floors = [0 if ticket.purpose is Purpose.WARMUP else member.floor for member in match]
        least = max(ticket.min_version, *floors)
        for member in match:
            self._forget_columns(member)
            self.tables.move(member, TicketState.PENDING, min_version=least, worker="", incarnation=0)

    def _forget_columns(self, ticket: Ticket) -> None:
        """The trajectory will not be trained: its worker may free it with the next commit."""
        if ticket.result is not None:
            if ticket.result.descriptor_key:
                self.tables.freed.append(ticket.result.descriptor_key)
            self.tables.change(ticket, result=None)

    def free(self, limit: int, batch_id: int = 0, version: int = 0) -> None:
        """States that the arenas may forget what was trained or dropped, if it is more than `limit`.

        One fact for all workers, though each holds a part: an event a worker would be as many in every step's
        write, and the ranks of a reference stage need to know of all.
        """
        tables = self.tables
        if batch_id or len(tables.freed) > limit:
            tables.record_fact(BatchCommitted(batch_id, version or tables.run.version, tuple(tables.freed)))
            tables.freed = []

    def _judge(self, ticket: Ticket, judged: EvaluationRecord, state: TicketState, reason: str = "") -> None:
        """The ticket's episode is counted in `judged`, the evaluation after it."""
        self.tables.move(ticket, state, reason)
        self.tables.evaluations[judged.name] = judged
        if judged.finished:
            self.tables.record_fact(
                EvaluationDone(judged, baseline(judged, self.tables.evaluations.values()))
            )
