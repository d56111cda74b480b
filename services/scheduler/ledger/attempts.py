"""Tickets one by one: who takes part, who holds which attempt, and what became of it.

    issue ─► pending ─lease─► leased ─complete─► ready  (training, warm-up: a batch takes it from here)
                ▲               │       └──────► evaluated
                └─ expired, failed, worker gone; at most `attempts` tries, then dropped(reason)

Pure: time is an argument (monotonic seconds). What an operation refuses raises LedgerError (or
UnknownWorker, WorkerReplaced) and has changed nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from msgspec.structs import replace

from earl.errors import UnknownWorker, WorkerReplaced
from services.scheduler.ledger.evaluation import baseline
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.ledger.transcripts import asked
from services.scheduler.state.records import (
    LIVE,
    Attempt,
    BatchCommitted,
    EpisodeEnding,
    EvaluationDone,
    EvaluationRecord,
    Issue,
    Lives,
    Purpose,
    Reason,
    Result,
    Ticket,
    TicketState,
    TicketVerdict,
    TrajectoryReady,
    WorkerJoined,
    WorkerLeft,
    WorkerRecord,
)
from services.scheduler.state.rules import Rules
from services.scheduler.state.seeds import env_seed, sample_seeds

# Incarnations of one name that are remembered.
LIVES = 16
# Heartbeats that a member may miss before it counts as gone.
MISSED = 3
MAY_TRAIN = frozenset({EpisodeEnding.OK, EpisodeEnding.TRUNCATED})


class TicketLedger:
    """Transitions of single tickets over one tables."""

    def __init__(self, rules: Rules, tables: LedgerTables | None = None) -> None:
        self.rules = rules
        self.tables = tables or LedgerTables()
        # Tickets in a row that used up their attempts, and why an attempt failed last.
        self.given_up = 0
        self.last_fault = ""

    # --- membership -------------------------------------------------------------------------

    @property
    def heartbeat_s(self) -> float:
        """How often each worker is to say how it is: all together `heartbeats_per_s` times a second at most.

        Nomad's max_heartbeats_per_second bounds a cluster's beats in this way.
        """
        wanted_s = min(self.rules.heartbeat_s, self.rules.membership_s / MISSED)
        return max(wanted_s, len(self.tables.members) / self.rules.heartbeats_per_s)

    @property
    def membership_s(self) -> float:
        """How long a worker may be silent."""
        return max(self.rules.membership_s, MISSED * self.heartbeat_s)

    def join(self, member: WorkerRecord, now: float) -> None:
        """A worker takes part. An older incarnation of its name loses leases and arena at once.

        Raises WorkerReplaced if this is the older one: frozen for a while, it is awake again.
        """
        tables = self.tables
        self._refuse_replaced(member.name, member.incarnation)
        lives = tables.lives.get(member.name, Lives()).incarnations
        if member.incarnation not in lives:
            tables.lives[member.name] = Lives((*lives, member.incarnation)[-LIVES:])
        known = tables.members.get(member.name)
        if known is not None and known.incarnation != member.incarnation:
            self.leave(member.name, f"replaced by incarnation {member.incarnation:x}")
            known = None
            if member.name == tables.run.trainer:
                # Its weights lay in the memory of the one that is gone.
                tables.run.published, tables.run.weight_keys = 0, []
        if known is None:
            tables.state(WorkerJoined(member))
        else:
            member = replace(member, version=known.version)
            if known.epoch:
                # How a switch has cut it since it joined first.
                member = replace(member, parallelism=known.parallelism, epoch=known.epoch)
        tables.members[member.name] = member
        if self.membership_s > tables.run.silent_s:
            tables.run.silent_s = self.membership_s
        tables.member_until.prolong(member.name, now + self.membership_s)

    def seen(self, name: str, incarnation: int, now: float, version: int | None = None) -> WorkerRecord:
        """A sign of life. Raises UnknownWorker, WorkerReplaced unless this incarnation is a member."""
        member = self.member(name, incarnation)
        self.tables.member_until.prolong(name, now + self.membership_s)
        if version is not None and version != member.version:
            member = replace(member, version=version)
            self.tables.members.set_unstored(name, member)
        return member

    def leave(self, name: str, reason: str, *, drained: bool = False) -> None:
        """Ends a membership: what the worker ran is tried again, and what lay in its arena is lost.

        drained: it goes because it was told to, which is no attempt that failed.
        """
        tables = self.tables
        member = tables.members.pop(name, None)
        if member is None:
            return
        tables.member_until.drop(name)
        for number in sorted(tables.held.get((name, member.incarnation), ())):
            ticket = tables.tickets.get(number)
            if ticket is None or ticket.state not in LIVE:
                continue  # fell with its group meanwhile
            if ticket.state is not TicketState.PLANNED:
                (self.retry if drained else self.fail)(ticket)
            elif tables.batch is not None and number not in tables.batch.lost:
                # The trainer may have read it already: only its next call tells.
                tables.batch.lost.append(number)
        tables.state(WorkerLeft(member, reason))

    def expire(self, now: float) -> None:
        """Ends memberships and leases whose time is over."""
        tables = self.tables
        for name in tables.member_until.take_due(now):
            self.leave(name, f"silent for {self.membership_s:g} s")
        for number in tables.lease_until.take_due(now):
            ticket = tables.tickets[number]
            if ticket.state is TicketState.LEASED:  # it may have fallen with its group just now
                self.fail(ticket)

    # --- tickets ----------------------------------------------------------------------------

    def issue(self, purpose: Purpose, size: int, min_version: int, temperature: float, *,
              index: int, evaluation: str = "") -> int:  # fmt: skip
        """A new group of `size` pending tickets; its id. index: its place in the schedule of its purpose."""
        run, seed = self.tables.run, self.rules.seed
        take = run.takes.get(purpose, {}).get(index, 0)
        group = run.next_group
        run.next_group += 1
        first = run.next_ticket
        run.next_ticket += size
        self.tables.issue(
            Issue(
                group=group,
                purpose=purpose,
                index=index,
                first=first,
                env_seed=env_seed(seed, purpose, index, take),
                sample_seeds=sample_seeds(seed, purpose, index, size, take),
                min_version=min_version,
                temperature=temperature,
                evaluation=evaluation,
                transcripts=[
                    first + member
                    for member in range(size)
                    if self._transcript(purpose, index, member, evaluation)
                ],
            )
        )
        return group

    def lease(self, name: str, incarnation: int, credit: int, now: float) -> list[Ticket]:
        """Up to `credit` pending tickets, oldest first, now leased to this worker until now + lease_s."""
        member = self.seen(name, incarnation, now)
        tables, run = self.tables, self.tables.run
        if run.version and member.version > run.version:
            return []  # holds weights of an abandoned future; it must load the current ones first
        leased: list[Ticket] = []
        while len(leased) < credit and tables.pending:
            ticket = tables.tickets.get(heapq.heappop(tables.pending))
            if ticket is None or ticket.state is not TicketState.PENDING:
                continue
            tables.touch(ticket)
            run.fence += 1
            ticket.fence = run.fence
            ticket.attempt += 1
            ticket.floor = max(ticket.min_version, member.version)
            ticket.worker, ticket.incarnation = name, incarnation
            tables.move(ticket, TicketState.LEASED)
            tables.lease_since[ticket.id] = now
            tables.lease_until.set(ticket.id, now + self.rules.lease_s)
            leased.append(ticket)
        return leased

    def renew(self, name: str, incarnation: int, attempts: Sequence[Attempt], now: float) -> list[Attempt]:
        """Prolongs leases by lease_s, up to episode_s after they began; the attempts that are lost."""
        self.seen(name, incarnation, now)
        lost = []
        for attempt in attempts:
            if self._refusal(name, incarnation, attempt):
                lost.append(attempt)
                continue
            end = self.tables.lease_since[attempt.ticket_id] + self.rules.episode_s + self.rules.lease_s
            self.tables.lease_until.set(attempt.ticket_id, min(now + self.rules.lease_s, end))
        return lost

    def complete(
        self, name: str, incarnation: int, attempt: Attempt, result: Result
    ) -> tuple[TicketVerdict, str]:
        """Takes one finished attempt. A repeated report of an accepted one is accepted again."""
        reason = self._refusal(name, incarnation, attempt)
        ticket = self.tables.tickets.get(attempt.ticket_id)
        if ticket is None or reason:
            if ticket is not None and self._accepted(ticket, attempt):
                return TicketVerdict.ACCEPTED, ""
            return TicketVerdict.REFUSED, reason
        fault = self._fault(ticket, result)
        if fault:
            self.last_fault = fault
            self.tables.touch(ticket)
            ticket.broken |= result.ending is EpisodeEnding.ENV_ERROR or not math.isfinite(result.reward)
            self.fail(ticket)
            return TicketVerdict.RETRIED, fault
        self.given_up = 0
        self.tables.touch(ticket)
        ticket.result = result
        if ticket.purpose is Purpose.EVALUATE:
            self._evaluated(ticket, result)
            return TicketVerdict.ACCEPTED, ""
        ticket.floor = result.oldest_version if result.trained_tokens else ticket.floor
        self.tables.move(ticket, TicketState.READY)
        self.tables.state(TrajectoryReady(ticket.id, ticket.attempt, name, ticket.purpose, result))
        return TicketVerdict.ACCEPTED, ""

    def drop_group(self, purpose: Purpose, group: int, reason: Reason) -> None:
        """Drops every live member of a group; trajectories among them are freed with the next commit."""
        tables = self.tables
        for number in list(tables.groups[purpose].get(group, ())):
            ticket = tables.tickets[number]
            self._forget_columns(ticket)
            tables.move(ticket, TicketState.DROPPED, reason)
        self.free(self.rules.batch_groups * self.rules.group_size)

    # --- within -----------------------------------------------------------------------------

    def member(self, name: str, incarnation: int) -> WorkerRecord:
        self._refuse_replaced(name, incarnation)
        member = self.tables.members.get(name)
        if member is None or member.incarnation != incarnation:
            raise UnknownWorker(
                f"worker {name} ({incarnation:x}) is not a member of this run", "join (again)"
            )
        return member

    def _refuse_replaced(self, name: str, incarnation: int) -> None:
        known = self.tables.lives.get(name)
        if known is not None and incarnation in known.incarnations[:-1]:
            raise WorkerReplaced(
                f"worker {name} ({incarnation:x}) was replaced by ({known.incarnations[-1]:x})",
                "end this process: the newer one goes on, and nothing of this one is wanted any more",
            )

    def _transcript(self, purpose: Purpose, index: int, member: int, evaluation: str) -> bool:
        rules, judged = self.rules, self.tables.evaluations.get(evaluation)
        return asked(
            purpose, index, member, batch_groups=rules.batch_groups, group_size=rules.group_size,
            episodes=judged.episodes if judged else 0, wanted=rules.transcripts,
        )  # fmt: skip

    def _refusal(self, name: str, incarnation: int, attempt: Attempt) -> str:
        """Why this attempt is not the caller's to renew or complete; empty if it is."""
        ticket = self.tables.tickets.get(attempt.ticket_id)
        if ticket is None:
            known = 0 < attempt.ticket_id < self.tables.run.next_ticket
            return f"ticket {attempt.ticket_id} is {'closed' if known else 'unknown'}"
        if (ticket.worker, ticket.incarnation) != (name, incarnation):
            return f"ticket {ticket.id} is not leased to {name} ({incarnation:x})"
        if attempt.fence != ticket.fence or attempt.attempt != ticket.attempt:
            return f"fence {attempt.fence} is not the current {ticket.fence}"
        if ticket.state is not TicketState.LEASED:
            return f"ticket {ticket.id} is {ticket.state}{f' ({ticket.reason})' if ticket.reason else ''}"
        return ""

    def _accepted(self, ticket: Ticket, attempt: Attempt) -> bool:
        done = (TicketState.READY, TicketState.PLANNED, TicketState.TRAINED, TicketState.EVALUATED)
        return ticket.state in done and (ticket.attempt, ticket.fence) == (attempt.attempt, attempt.fence)

    def _fault(self, ticket: Ticket, result: Result) -> str:
        """Why a result cannot be used; empty if it can."""
        if result.ending not in MAY_TRAIN:
            return f"{result.ending}: {result.message}"
        if not math.isfinite(result.reward):
            return f"reward is {result.reward}: an environment's reward must be finite"
        sampled = {result.oldest_version, result.newest_version} if result.trained_tokens else set()
        exact = self.rules.deterministic and ticket.purpose is not Purpose.WARMUP
        if exact and sampled - {ticket.min_version}:
            return f"versions {sorted(sampled)} sampled it, not {ticket.min_version} alone"
        if ticket.purpose is Purpose.EVALUATE:
            return ""
        if not result.descriptor_key or result.total_tokens < 1:
            return f"no columns: key {result.descriptor_key!r}, {result.total_tokens} tokens"
        if result.trained_tokens and result.newest_version > self.tables.run.version > 0:
            return f"version {result.newest_version} was rolled back to {self.tables.run.version}"
        return ""

    def fail(self, ticket: Ticket) -> None:
        """An attempt came to nothing: the ticket is tried again, or its group is given up.

        A group that is given up leaves its place to a substitute, another instance. In a deterministic
        run only the instance itself can bring that about (its environment is broken there, whenever it
        is played); what chance did to the attempts is tried again for as long as anything succeeds.
        """
        tables = self.tables
        tables.touch(ticket)
        ticket.failures += 1
        if ticket.failures < self.rules.attempts:
            self.retry(ticket)
            return
        self.given_up += 1
        if self.rules.deterministic and not ticket.broken:
            ticket.failures = 0
            self.retry(ticket)
        elif ticket.purpose is Purpose.EVALUATE:
            self._evaluation_failed(ticket)
        else:
            takes = tables.run.takes.setdefault(ticket.purpose, {})
            takes[ticket.index] = takes.get(ticket.index, 0) + 1
            self.drop_group(ticket.purpose, ticket.group, Reason.GROUP_INCOMPLETE)

    def retry(self, ticket: Ticket) -> None:
        """Back to pending. It must not become staler than promised: `floor` never sinks."""
        self._forget_columns(ticket)
        self.tables.move(ticket, TicketState.PENDING)
        if ticket.purpose is not Purpose.WARMUP:  # which samples from no version
            ticket.min_version = max(ticket.min_version, ticket.floor)
        ticket.worker, ticket.incarnation = "", 0

    def _forget_columns(self, ticket: Ticket) -> None:
        """The trajectory will not be trained: its worker may free it with the next commit."""
        if ticket.result is not None:
            self.tables.touch(ticket)
            if ticket.result.descriptor_key:
                self.tables.freed.append(ticket.result.descriptor_key)
            ticket.result = None

    def free(self, limit: int, batch_id: int = 0, version: int = 0) -> None:
        """States that the arenas may forget what was trained or dropped, if it is more than `limit`.

        One fact for all workers, though each holds a part: an event a worker would be as many in every step's
        write, and the ranks of a reference stage need to hear of all.
        """
        tables = self.tables
        if batch_id or len(tables.freed) > limit:
            tables.state(BatchCommitted(batch_id, version or tables.run.version, tuple(tables.freed)))
            tables.freed = []

    def _evaluated(self, ticket: Ticket, result: Result) -> None:
        judged = self.tables.evaluations[ticket.evaluation].with_result(ticket.index, result)
        self.tables.move(ticket, TicketState.EVALUATED)
        ticket.result = None
        self._judged(judged)

    def _evaluation_failed(self, ticket: Ticket) -> None:
        judged = self.tables.evaluations[ticket.evaluation].with_failure()
        self.tables.move(ticket, TicketState.DROPPED, Reason.EVALUATION_FAILED)
        self._judged(judged)

    def _judged(self, judged: EvaluationRecord) -> None:
        self.tables.evaluations[judged.name] = judged
        if judged.finished:
            self.tables.state(EvaluationDone(judged, baseline(judged, self.tables.evaluations.values())))
