"""The groups that later batches may train on again: which there are, which come next, and when they go.

    group trained ─► kept ─┬─ a batch takes it ─► replay tickets, one for each of its trajectories
                     ▲     │                        └─ trained: a use more ─► kept
                     └─────┴──────────────────────────────────────────────────┘
    evicted (Eviction): used, age, capacity, lost

Promise: what is kept at a version follows from the batches that made it. Each change names the version whose
batch brought it about, so a checkpoint that is restored takes back the changes of later batches, evictions
too. A record of an evicted group is deleted once no checkpoint that may be restored is older than its
eviction. Pure. Without replay.reuse there is nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from earl.ticket_ranges import RangeSet
from services.scheduler.ledger.groups import has_signal
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.replay_groups import Eviction, ReplayGroup
from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import Purpose, Ticket, TicketState


class ReplayMemory:
    """Keeps groups that were trained, and makes tickets that train on them again."""

    def __init__(self, rules: Rules, tables: LedgerTables) -> None:
        self._rules = rules
        self._tables = tables
        # By reason, since this process began.
        self._evicted: Counter[str] = Counter()

    # --- what there is ----------------------------------------------------------------------

    @property
    def kept(self) -> list[ReplayGroup]:
        """The groups that may be trained again, from the first that was trained to the last."""
        return sorted(
            (group for group in self._tables.replays.values() if not group.evicted),
            key=lambda group: group.order,
        )

    @property
    def sources(self) -> RangeSet:
        """The tickets whose columns must stay readable: of all records, for a roll-back may need them."""
        groups = self._tables.replays.values()
        return RangeSet.of(ticket.id for group in groups for ticket in group.tickets)

    def figures(self) -> dict[str, float]:
        """The groups that are kept, and those that were evicted since this was asked last, by reason."""
        if not self._rules.replay_reuse:
            return {}
        evicted, self._evicted = self._evicted, Counter()
        by_reason = {f"replay_evicted.{reason}": float(evicted[reason]) for reason in Eviction}
        return {"replay_groups": float(len(self.kept)), **by_reason}

    # --- a batch ----------------------------------------------------------------------------

    def issue(self, version: int) -> list[Ticket]:
        """Makes the replay tickets of the batch that is planned at a version; they are planned at once."""
        tickets = [ticket for group in self._choose(version) for ticket in self._tickets_of(group)]
        self._tables.admit(tickets)
        return tickets

    def train(self, version: int, played: Iterable[Ticket], replays: Iterable[Ticket]) -> None:
        """A batch was trained at a version: its groups are kept, each replayed one has a use more, and what
        may not be trained again is evicted. The results of `played` are still there."""
        if not self._rules.replay_reuse:
            self._clear()
            return
        table = self._tables.replays
        for number in self._groups_of(replays):
            table[number] = replace(table[number], uses=(*table[number].uses, version))
        for members in _by_group(played).values():
            if self._teaches(members):
                table[members[0].group] = _record_of(version, members)
        self._evict_worn(version)

    def lose(self, replays: Iterable[Ticket]) -> None:
        """The columns of these replay tickets' groups cannot be read: they are never trained again."""
        for number in self._groups_of(replays):
            del self._tables.replays[number]
            self._evicted[Eviction.LOST] += 1

    # --- checkpoints ------------------------------------------------------------------------

    def roll_back(self, version: int) -> None:
        """The batches that were trained at this version and later ones are given up."""
        table = self._tables.replays
        for number, group in list(table.items()):
            if group.version >= version:
                del table[number]
                continue
            uses = tuple(use for use in group.uses if use < version)
            stays = group.evicted < version
            evicted, reason = (group.evicted, group.reason) if stays else (0, "")
            before = replace(group, uses=uses, evicted=evicted, reason=reason)
            if before != group:
                table[number] = before

    def keep_trained(self, consumed: RangeSet) -> None:
        """Deletes the groups that the restored parameters were not trained on: a manifest may be of another
        future than the ledger's."""
        for number, group in list(self._tables.replays.items()):
            if any(ticket.id not in consumed for ticket in group.tickets):
                del self._tables.replays[number]

    def record_checkpoint(self) -> None:
        """Deletes records that no roll-back can bring back any more: the newest version of which a checkpoint
        is known has changed."""
        for number, group in list(self._tables.replays.items()):
            if group.evicted and not self._may_return(group, group.evicted):
                del self._tables.replays[number]

    # --- within -----------------------------------------------------------------------------

    def _choose(self, version: int) -> list[ReplayGroup]:
        """The groups that the batch of a version trains again, in order."""
        rules = self._rules
        may = [
            group
            for group in self.kept
            if len(group.uses) < rules.replay_reuse and version - group.floor <= rules.replay_age
        ]
        if rules.replay_order == "freshest":
            may.sort(key=lambda group: (-group.version, group.place, group.group))
        return may[: rules.replay_groups]

    def _tickets_of(self, group: ReplayGroup) -> Iterable[Ticket]:
        """A new group of replay tickets, in the order of those that were played."""
        run = self._tables.run
        number = run.next_group
        run.next_group += 1
        for source in group.tickets:
            yield replace(
                source, id=run.next_ticket, group=number, purpose=Purpose.REPLAY, source=source.id,
                state=TicketState.PLANNED,
            )  # fmt: skip
            run.next_ticket += 1

    def _groups_of(self, replays: Iterable[Ticket]) -> list[int]:
        """The groups that replay tickets train again, of those that there are records of."""
        sources = {ticket.source for ticket in replays}
        if not sources:
            return []
        return [
            number
            for number, group in self._tables.replays.items()
            if any(ticket.id in sources for ticket in group.tickets)
        ]

    def _teaches(self, members: Sequence[Ticket]) -> bool:
        """Returns whether there is anything to learn from a group again."""
        results = [ticket.result for ticket in members if ticket.result is not None]
        if len(results) < len(members) or not any(result.trained_tokens for result in results):
            return False
        return not self._rules.replay_needs_signal or has_signal(members, self._rules.score_coefficient)

    def _evict_worn(self, version: int) -> None:
        """Evicts, with the batch of a version, what the next one may not train again."""
        rules = self._rules
        kept = self.kept
        for group in kept:
            if len(group.uses) >= rules.replay_reuse:
                self._evict(group, version, Eviction.USED)
            elif version + 1 - group.floor > rules.replay_age:
                self._evict(group, version, Eviction.AGE)
        kept = self.kept
        for group in kept[: max(0, len(kept) - rules.replay_capacity)]:
            self._evict(group, version, Eviction.CAPACITY)

    def _evict(self, group: ReplayGroup, version: int, reason: Eviction) -> None:
        self._evicted[reason] += 1
        if self._may_return(group, version):
            self._tables.replays[group.group] = replace(group, evicted=version, reason=reason)
        else:
            del self._tables.replays[group.group]

    def _may_return(self, group: ReplayGroup, evicted: int) -> bool:
        """Returns whether a checkpoint may be restored in which the group, evicted with the batch of this
        version, was trained and not yet evicted."""
        run = self._tables.run
        return any(group.version < saved <= evicted for saved in (run.checkpoint, run.next_checkpoint))

    def _clear(self) -> None:
        """The run file no longer has replay.reuse."""
        for number in list(self._tables.replays):
            del self._tables.replays[number]


def _by_group(tickets: Iterable[Ticket]) -> Mapping[int, Sequence[Ticket]]:
    groups: dict[int, list[Ticket]] = {}
    for ticket in tickets:
        groups.setdefault(ticket.group, []).append(ticket)
    return groups


def _record_of(version: int, members: Collection[Ticket]) -> ReplayGroup:
    """The record of a group that was trained at a version: of each result, what a batch plan needs."""
    tickets = sorted(members, key=lambda ticket: ticket.id)
    floors = [ticket.floor for ticket in tickets if ticket.result and ticket.result.trained_tokens]
    return ReplayGroup(
        group=tickets[0].group,
        version=version,
        floor=min(floors),
        place=tickets[0].index,
        tickets=[
            replace(
                ticket,
                transcript=False,
                worker="",
                incarnation=0,
                result=replace(ticket.result, metrics={}, message="", turn_tokens=[])
                if ticket.result
                else None,
            )
            for ticket in tickets
        ],
    )
