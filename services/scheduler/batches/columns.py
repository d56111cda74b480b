"""The columns that stages make of every trajectory: which are ready, where they lie, how far each role is.

    rollout ──► sampled columns are ready ──► waiting ─lease─► leased ─complete─► done: the column is ready
                                                 ▲               │ it left, leased again, or left this out
                                                 ├───────────────┘
                                                 └── the stage left, or the trainer could not read the column
    every role is done with all members of a group ──► a batch may take the group, whole

The idea is the transfer columns of MindSpeed RL (arXiv 2507.19017): what is known of samples apart from where
their bytes lie, a state of consumption for each consumer, groups never torn apart.

Promise: for each stage's role every trajectory is waiting, leased or done, exactly one of them; a result
counts once, under the fence of the lease that asked for it; what is forgotten is forgotten for all roles.
Roles do not depend on each other: each reads what the rollout workers sampled, and the trainer reads all.
A trajectory without a trained token is done at once, since its columns have no element, and so is one
that the role's stage is not to read. A role may end before the run does: then nothing lacks its column.
Pure. It is derived data: the registry of a restarted scheduler is empty, and stages make their columns again.
The trainer's own consumption is the ledger's, which outlives a crash.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from services.scheduler.state.workers import WorkerId


@dataclass(frozen=True, slots=True)
class TrajectoryRef:
    """One attempt's outcome: its group, the registry key of its sampled columns, its lengths in tokens.

    unread_by: roles whose stages have nothing to do with it, or no more: it is the same trajectory.
    """

    ticket_id: int
    attempt: int
    group: int
    descriptor_key: str
    total_tokens: int
    trained_tokens: int
    unread_by: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True, slots=True)
class Location:
    """The place of columns: from element `offset` on in what these registry keys hold together.

    score: in their place, of a role that makes a number of a whole trajectory.
    """

    keys: tuple[str, ...]
    offset: int = 0
    score: float | None = None

    @property
    def filled(self) -> bool:
        """Returns whether it leads to anything."""
        return bool(self.keys) or self.score is not None


# The location of columns without elements.
NOWHERE = Location(())


@dataclass(frozen=True, slots=True)
class ColumnLease:
    """Trajectories that a stage works on; `complete` names the fence. Empty: there was nothing to lease."""

    fence: int = 0
    trajectories: tuple[TrajectoryRef, ...] = ()


@dataclass(frozen=True, slots=True)
class ColumnProgress:
    """Trajectories by what a role has done with them."""

    waiting: int = 0
    leased: int = 0
    done: int = 0


class _Work:
    """One stage's role: its lease, what is done, and what may be leased now (`able`, with its tokens)."""

    def __init__(self) -> None:
        self.worker: WorkerId | None = None
        self.fence = 0
        self.leased: dict[int, TrajectoryRef] = {}
        self.done: dict[int, Location] = {}
        self.able: dict[int, TrajectoryRef] = {}
        self.able_tokens = 0
        # A heap with an entry for each that is able, and for some that no longer are.
        self._order: list[int] = []
        self._queued: set[int] = set()

    def judge(self, number: int, trajectory: TrajectoryRef | None) -> None:
        """Updates whether a trajectory may be leased. None: the trajectory is forgotten."""
        held = number in self.leased or number in self.done
        able = trajectory is not None and not held
        former = self.able.pop(number, None)
        if former is not None:
            self.able_tokens -= former.total_tokens
        if able and trajectory is not None:
            self.able[number] = trajectory
            self.able_tokens += trajectory.total_tokens
            if number not in self._queued:
                self._queued.add(number)
                heapq.heappush(self._order, number)

    def pick(self, credit_tokens: int, first: Iterable[int]) -> None:
        """Leases the oldest that are able, `first` before all others, of `credit_tokens` at most."""
        for number in sorted(self.able.keys() & set(first)):
            if self.able[number].total_tokens > credit_tokens:
                return  # not passed over, here and below: what is oldest must not starve
            credit_tokens -= self._hold(number)
        while self._order:
            number = self._order[0]
            if number in self.able:
                if self.able[number].total_tokens > credit_tokens:
                    return
                credit_tokens -= self._hold(number)
            heapq.heappop(self._order)
            self._queued.remove(number)

    def _hold(self, number: int) -> int:
        self.leased[number] = trajectory = self.able.pop(number)
        self.able_tokens -= trajectory.total_tokens
        return trajectory.total_tokens


class ColumnRegistry:
    """Trajectories by their tickets; at most one of a ticket's attempts is there at a time."""

    def __init__(self, roles: Iterable[str] = ()) -> None:
        """roles: those of the run's stages; the trainer needs the columns of all."""
        self._trajectories: dict[int, TrajectoryRef] = {}
        self._works = {role: _Work() for role in roles}
        # Roles whose columns are needed no more.
        self.ended: set[str] = set()
        # Trajectories that lack a column which the trainer needs, and how many of each group do.
        self._lacking: set[int] = set()
        self._held_back: Counter[int] = Counter()

    # --- what there is ----------------------------------------------------------------------

    def put(self, trajectory: TrajectoryRef) -> None:
        """Takes note that a trajectory's sampled columns are ready.

        Another one of the same ticket is forgotten.
        """
        number = trajectory.ticket_id
        if self._trajectories.get(number) == trajectory:
            return
        self.forget(number)
        self._trajectories[number] = trajectory
        for role, work in self._works.items():
            if not trajectory.trained_tokens or role in trajectory.unread_by:
                work.done[number] = NOWHERE
        self._judge(number)

    def forget(self, number: int) -> None:
        """The trajectory is trained, dropped or played again: no role has anything to do with it any more."""
        trajectory = self._trajectories.get(number)
        if trajectory is None:
            return
        self._count(trajectory, lacks=False)
        del self._trajectories[number]
        for work in self._works.values():
            work.leased.pop(number, None)
            work.done.pop(number, None)
            work.judge(number, None)

    # --- stages -----------------------------------------------------------------------------

    @property
    def workers(self) -> dict[str, WorkerId | None]:
        """The worker that serves each role; None if none does."""
        return {name: work.worker for name, work in self._works.items()}

    def end(self, role: str) -> None:
        """No trajectory needs the role's column any more, now or later; nothing in a run without the role."""
        if self._works.pop(role, None) is None:
            return
        self.ended.add(role)
        for number in list(self._lacking):
            self._judge(number)

    def left(self, role: str) -> None:
        """The role's stage is gone, and with it the columns that it made."""
        self._replace(self._works[role], None)

    def lease(
        self, role: str, worker: WorkerId, fence: int, credit_tokens: int, first: Iterable[int] = ()
    ) -> ColumnLease:
        """The oldest that wait, of `credit_tokens` at most.

        first: tickets that go before all others. fence: greater than any before. The role's former lease
        ends: what it held waits again. Another worker than the last one takes the role over.
        """
        work = self._works[role]
        if worker != work.worker:
            self._replace(work, worker)
        self._return(work)
        work.pick(credit_tokens, first)
        if not work.leased:
            return ColumnLease()
        work.fence = fence
        return ColumnLease(fence, tuple(work.leased.values()))

    def complete(
        self,
        role: str,
        worker: WorkerId,
        fence: int,
        results: Mapping[tuple[int, int], Location],
        lost: Iterable[tuple[int, int]] = (),
    ) -> tuple[int, list[TrajectoryRef]]:
        """(results refused, leased trajectories whose sampled columns are lost). Keys: (ticket, attempt).

        A result names the place of the role's columns. What was leased and is in neither waits again.
        Repeating a call refuses nothing. A role that has ended has all results refused.
        """
        if role in self.ended:
            return len(results), []
        work = self._works[role]
        refused = 0
        current = worker == work.worker and fence == work.fence
        for (number, attempt), location in results.items():
            held = work.leased.get(number)
            if current and held is not None and held.attempt == attempt and location.filled:
                del work.leased[number]
                work.done[number] = location
                self._judge(number)
                continue
            known = self._trajectories.get(number)
            repeated = known is not None and known.attempt == attempt and work.done.get(number) == location
            refused += not (current and repeated)
        if not current:
            return refused, []
        names = set(lost)
        gone = [held for held in work.leased.values() if (held.ticket_id, held.attempt) in names]
        self._return(work)
        return refused, gone

    def recall(self, numbers: Iterable[int]) -> None:
        """The trainer could not read these trajectories: what stages made of them for it is made again."""
        self._recall(self._works.values(), numbers)

    # --- questions --------------------------------------------------------------------------

    def locations(self, role: str, numbers: Iterable[int]) -> dict[int, Location]:
        """Locates a role's columns, for the tickets that have them ready; empty without such a stage."""
        done = self._works[role].done if role in self._works else {}
        return {number: done[number] for number in numbers if number in done}

    def lacks(self, number: int) -> bool:
        """Returns whether a column that the trainer needs of this trajectory has yet to be made."""
        return number in self._lacking

    @property
    def held_back(self) -> Collection[int]:
        """Groups that no batch may take: a member lacks a column. A view, always of now."""
        return self._held_back.keys()

    def waiting_tokens(self, role: str) -> int:
        """Tokens of the trajectories that the role may lease now; none once it has ended."""
        return self._works[role].able_tokens if role in self._works else 0

    def progress(self) -> dict[str, ColumnProgress]:
        """Returns how far each stage's role is with all trajectories that are there."""
        total = len(self._trajectories)
        return {
            name: ColumnProgress(total - len(work.leased) - len(work.done), len(work.leased), len(work.done))
            for name, work in self._works.items()
        }

    # --- within -----------------------------------------------------------------------------

    def _judge(self, number: int) -> None:
        """A column of this trajectory has come or gone, or a lease on it."""
        trajectory = self._trajectories[number]
        for work in self._works.values():
            work.judge(number, trajectory)
        self._count(trajectory, lacks=any(number not in work.done for work in self._works.values()))

    def _count(self, trajectory: TrajectoryRef, *, lacks: bool) -> None:
        number, group = trajectory.ticket_id, trajectory.group
        if lacks and number not in self._lacking:
            self._lacking.add(number)
            self._held_back[group] += 1
        elif not lacks and number in self._lacking:
            self._lacking.remove(number)
            self._held_back[group] -= 1
            if not self._held_back[group]:
                del self._held_back[group]

    def _replace(self, work: _Work, worker: WorkerId | None) -> None:
        work.worker = worker
        self._return(work)
        self._recall([work], list(work.done))

    def _return(self, work: _Work) -> None:
        """Ends the lease: what was leased waits again."""
        numbers = list(work.leased)
        work.leased.clear()
        for number in numbers:
            self._judge(number)

    def _recall(self, works: Collection[_Work], numbers: Iterable[int]) -> None:
        """Schedules lost columns to be computed again; an empty column cannot be lost."""
        for number in numbers:
            made = [work for work in works if work.done.get(number, NOWHERE).keys]
            for work in made:
                del work.done[number]
            if made:
                self._judge(number)
