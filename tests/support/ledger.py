"""A small world around the ledger: workers, arenas, a trainer with checkpoints, a store.

The world knows independently what really happened (what is in the parameters, what lies in which
arena); `check` compares the ledger with it. Every operation goes through `act`, which may crash the
scheduler before or after the operation was stored.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field
from typing import Any

from earl.errors import EarlError, LedgerError
from earl.history.check import CheckedHistory, Segment, check_segments
from earl.ticket_ranges import RangeSet
from services.scheduler.assign.plan import EngineKinds
from services.scheduler.journal.history_writer import state_of
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.state.facts import BatchCommitted
from services.scheduler.state.rules import Rules
from services.scheduler.state.run import Batch
from services.scheduler.state.stored import LedgerChanges
from services.scheduler.state.tickets import (
    LIVE,
    Attempt,
    EpisodeEnding,
    EpisodeResult,
    Purpose,
    Ticket,
    TicketState,
    TicketVerdict,
)
from services.scheduler.state.workers import WorkerRecord

# Every so many checks one compares the whole image: what was not stored is missing in the next ones, too.
IMAGE_EVERY = 3
RULES = Rules(
    seed=7, warmup_batches=2, warmup_episodes=3, steps=4, group_size=2, batch_groups=2,
    staleness=1, attempts=3, lease_s=30.0, episode_s=300.0, membership_s=10.0,
    temperature=1.0, train_limit_s=0.0, checkpoint_every=2, evaluation_episodes=3,
    evaluate_at_start=True, evaluate_at_end=True, evaluate_every_steps=2,
    evaluate_every_episodes=2, evaluation_temperature=1.0,
)  # fmt: skip


def ids_of(tables: LedgerTables, bucket: str) -> RangeSet:
    """All ticket ids of a bucket, compacted or not."""
    kept = RangeSet.of(ticket.id for ticket in tables.tickets.values() if ticket.bucket == bucket)
    return kept | tables.closed.get(bucket, RangeSet())


def leased_in_order(tables: LedgerTables) -> list[int]:
    """The tickets that wait, in the order in which they would be leased."""
    pending, numbers = copy.deepcopy(tables.pending), []
    for ticket in pending.deal(1 << 20):
        pending.remove(ticket)
        numbers.append(ticket.id)
    return numbers


def check_tables(tables: LedgerTables) -> None:
    """Asserts that issued = trained ⊎ evaluated ⊎ dropped ⊎ live, id by id."""
    accounted = RangeSet.of(tables.tickets)
    for bucket, ids in tables.closed.items():
        assert len(accounted | ids) == len(accounted) + len(ids), f"tickets of {bucket} are counted twice"
        accounted |= ids
    issued = RangeSet([(1, tables.run.next_ticket)])
    assert accounted == issued, f"tickets {issued - accounted} of {issued} are nowhere"


def line_of(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


class Crash(Exception):
    """The scheduler died."""


class Image:
    """The content of Redis: applies changes as the store's script does, or refuses."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], bytes] = {}
        self.facts: list = []

    def apply(self, changes: LedgerChanges) -> None:
        for change in changes.records:
            stored = self.records.get((change.kind, change.field))
            head = stored.partition(b"|")[0].decode() if stored else ""
            assert change.expected is None or head == change.expected, (change, head)
        for change in changes.records:
            if change.data is None:
                self.records.pop((change.kind, change.field), None)
            else:
                self.records[change.kind, change.field] = change.data
        self.facts += changes.facts

    def load(self) -> list[tuple[str, str, bytes]]:
        """Returns what a scheduler that starts now reads; it owns the image from then on."""
        return self.peek()

    def peek(self) -> list[tuple[str, str, bytes]]:
        return [(kind, name, data) for (kind, name), data in self.records.items()]


@dataclass
class Rollout:
    """One rollout worker: the version its engines hold, what it plays, what lies in its arena."""

    name: str
    incarnation: int = 1
    version: int = 0
    joined: bool = False
    newest_fence: int = 0
    # ticket id -> (ticket as leased, version it began with)
    playing: dict[int, tuple[Ticket, int]] = field(default_factory=dict)
    arena: set[str] = field(default_factory=set)


@dataclass
class Checkpoint:
    version: int = 1
    next_batch: int = 1
    consumed: frozenset[int] = frozenset()


class World:
    """Drives a ledger with the choices of a random generator, and remembers the truth. kinds: of the workers'
    engines, where leases are planned."""

    kinds: EngineKinds | None = None

    def __init__(self, choices: random.Random, rules: Rules = RULES, image: Image | None = None) -> None:
        self.choices = choices
        self.rules = rules
        self.image = image or Image()
        self.now = 0.0
        self.crash_chance = 0.1
        self.ledger = Ledger.restored(rules, self.image.load(), self.now, kinds=self.kinds)
        self.rollouts = [Rollout("rollout-0"), Rollout("rollout-1")]
        self.trainer = 0
        self.reconciled = False
        self.parameters = Checkpoint()
        self.saved = [Checkpoint()]
        self.doubt: Checkpoint | None = None
        self.published = 0
        # Whether manifests of a future that was given up may be restored later all the same.
        self.futures_return = False
        # That happened: what was sampled since is too old.
        self.jumped = False
        self.checks = 0
        self.freed: set[str] = set()
        self.facts_seen = 0
        # Tickets of which the trainer has a file, and of each replay that it trained the source.
        self.files: set[int] = set()
        self.sources: dict[int, int] = {}
        # By version, what the ledger kept for replay when it was made.
        self.kept: dict[int, list] = {}
        # The groups of which the trainer missed a file.
        self.lost: set[tuple[int, int, int]] = set()
        # The run's history as its schedulers wrote it, and the revision of the image.
        self.history: list[list[bytes]] = []
        self.revision = 0
        self._begin_history()

    # --- the scheduler ----------------------------------------------------------------------

    def act(self, operation):
        """The operation's answer once it is stored. Raises Crash, before or after it was stored."""
        chance = self.choices.random()
        try:
            answer = operation()
            phases.advance(self.ledger, self.now)
        except LedgerError:
            self._store()
            raise
        if chance < self.crash_chance / 2:
            if chance < self.crash_chance / 4:  # the round is in the history, and not stored
                self._write_history(self.ledger.tables.take_changes())
            self.restart()
            raise Crash
        self._store()
        if chance < self.crash_chance:
            self.restart()
            raise Crash
        return answer

    def restart(self) -> None:
        """A new scheduler process finds what was stored."""
        self.ledger = Ledger.restored(self.rules, self.image.load(), self.now, kinds=self.kinds)
        self._begin_history()
        self.act_quietly(lambda: None)

    def act_quietly(self, operation):
        answer = operation()
        phases.advance(self.ledger, self.now)
        self._store()
        return answer

    def _store(self) -> None:
        if changes := self.ledger.tables.take_changes():
            self._write_history(changes)
            self.image.apply(changes)
            self.revision += 1
        for fact in self.image.facts[self.facts_seen :]:
            if isinstance(fact, BatchCommitted):
                self.freed.update(fact.descriptor_keys)
                for rollout in self.rollouts:
                    rollout.arena.difference_update(fact.descriptor_keys)
        self.facts_seen = len(self.image.facts)

    def _begin_history(self) -> None:
        self.ledger.tables.log.take()
        header = {
            "history": 1, "segment": len(self.history) + 1, "revision": self.revision, "took_over": True,
            "rules": {"staleness": self.rules.staleness, "lease_s": 30.0, "episode_s": 300.0},
            "state": state_of(self.ledger.tables),
        }  # fmt: skip
        self.history.append([line_of(header)])

    def _write_history(self, changes: LedgerChanges) -> None:
        self.history[-1].append(line_of({"r": self.revision + 1, "t": self.now, "e": changes.history}))

    def check_history(self) -> CheckedHistory:
        """Asserts that the history proves what the world knows."""
        checked = check_segments(
            [Segment.of(str(number), number, lambda lines=lines: iter(lines))
             for number, lines in enumerate(self.history, 1)]
        )  # fmt: skip
        assert checked.verdict == "proven", [*checked.violations, *checked.gaps]
        assert checked.tickets == dict(sorted(self.ledger.tables.counts().items()))
        assert checked.version == self.ledger.tables.run.version
        return checked

    # --- rollout workers --------------------------------------------------------------------

    def member(self, rollout: Rollout) -> WorkerRecord:
        return WorkerRecord(name=rollout.name, incarnation=rollout.incarnation)

    def join(self, rollout: Rollout) -> None:
        self.act(lambda: self.ledger.membership.join(self.member(rollout), self.now))
        rollout.joined = True

    def kill(self, rollout: Rollout) -> None:
        """Dies with its arena and comes back under its name."""
        rollout.incarnation += 1
        rollout.joined, rollout.version, rollout.newest_fence = False, 0, 0
        rollout.playing.clear()
        rollout.arena.clear()

    def load(self, rollout: Rollout) -> None:
        rollout.version = self.published
        self.act(
            lambda: self.ledger.membership.mark_alive(
                rollout.name, rollout.incarnation, self.now, rollout.version
            )
        )

    def lease(self, rollout: Rollout, credit: int, *, lost: bool = False) -> None:
        """lost: the answer does not arrive; the next call's fence says so."""
        newest = rollout.newest_fence
        tickets = self.act(
            lambda: self.ledger.lease(rollout.name, rollout.incarnation, credit, self.now, newest)
        )
        fences = [ticket.fence for ticket in tickets]
        assert fences == sorted(set(fences)) and all(fence > newest for fence in fences)
        if lost:
            return
        rollout.newest_fence = max([newest, *fences])
        for ticket in tickets:
            copy = Ticket(**{name: getattr(ticket, name) for name in Ticket.__struct_fields__})
            rollout.playing[ticket.id] = copy, -1
        holder = rollout.name, rollout.incarnation
        assert {
            number
            for number in self.ledger.tables.held.get(holder, ())
            if self.ledger.tables.tickets[number].state is TicketState.LEASED
        } <= set(rollout.playing)

    def reward(self, ticket: Ticket) -> float:
        """The reward of an episode."""
        return float(ticket.id % 3 - 1)

    def complete(self, rollout: Rollout, number: int, ending: EpisodeEnding, *, forget: bool = True) -> None:
        """Finishes one episode if its version allows; reports all its seats, perhaps twice.

        A seat may not have acted: the number of its ticket says whether it did.
        """
        if number not in rollout.playing:
            return  # it ended with another seat of its match
        ticket, _ = rollout.playing[number]
        if ticket.purpose is not Purpose.WARMUP and rollout.version < ticket.min_version:
            return  # the worker holds it until the version is loaded
        reports, keys = [], set()
        for seat in ticket.match:
            member, _ = rollout.playing[seat]
            key = f"{seat}/{member.attempt}/{rollout.incarnation}"
            acted = ticket.seats == 1 or seat % 5 > 0
            result = EpisodeResult(
                ending=ending, reward=self.reward(member), total_tokens=5 + seat % 7,
                trained_tokens=3 * acted, turns=1,
                oldest_version=max(rollout.version, member.min_version) * acted,
                newest_version=rollout.version * acted,
                descriptor_key=key, metrics={"win": float(self.reward(member) > 0)},
            )  # fmt: skip
            reports.append((Attempt(seat, member.attempt, member.fence), result))
            keys.add(key)
        (attempt, result), *others = reports
        if ticket.purpose is not Purpose.EVALUATE and ending in (EpisodeEnding.OK, EpisodeEnding.TRUNCATED):
            rollout.arena |= keys
        verdict, _ = self.act(
            lambda: self.ledger.attempts.complete(rollout.name, rollout.incarnation, attempt, result, others)
        )
        if verdict is not TicketVerdict.ACCEPTED:
            rollout.arena -= keys
        if forget:
            for seat in ticket.match:
                del rollout.playing[seat]

    # --- the trainer ------------------------------------------------------------------------

    def trainer_starts(self, back: int) -> None:
        """A new trainer group loads the last manifest but `back`, joins, reconciles, publishes."""
        self.trainer += 1
        self.reconciled = False
        at = max(0, len(self.saved) - 1 - back)
        held = self.saved[at]
        if not self.futures_return:
            del self.saved[at + 1 :]
        batch = self.ledger.tables.batch
        in_doubt = batch is not None and held.consumed.issuperset(batch.tickets)
        if held.version > max(1, self.ledger.tables.run.version) + in_doubt:
            self.jumped = True
        self.parameters = held
        self.doubt = None
        self.reconcile()

    def reconcile(self) -> None:
        name, held = "trainer", self.parameters
        ranges = RangeSet.of(held.consumed)
        member = WorkerRecord(name=name, incarnation=self.trainer)
        self.act(lambda: self.ledger.membership.join(member, self.now))
        run = self.ledger.tables.run
        promised = held.version in (run.checkpoint, run.next_checkpoint)
        self.act(lambda: reconcile(self.ledger, name, self.trainer, held.version, held.next_batch, ranges))
        self.check_restored(held.version, whole=promised)
        self.reconciled = True
        self.publish()

    def check_restored(self, version: int, *, whole: bool) -> None:
        """Asserts that what is kept for replay is what was when the version was made, but for lost files.

        whole: nothing else of that is missing.
        """
        before, now = self.kept.get(version), self.kept_now()
        if before is not None and not self.futures_return:
            before = [(order, uses) for order, uses in before if order not in self.lost]
            assert now == before if whole else all(group in before for group in now)
        self.kept = {made: groups for made, groups in self.kept.items() if made < version} | {version: now}

    def kept_now(self) -> list:
        return [(group.order, group.uses) for group in self.ledger.replay.kept]

    def publish(self) -> None:
        version = self.parameters.version
        self.published = version  # whatever becomes of the scheduler: the bus has it
        self.act(lambda: self.ledger.published(version, [f"w{version}"]))

    def train(self, *, manifest_first: bool) -> None:
        """Asks for a batch, reads it, steps, commits. A batch that cannot be read is not trained."""
        if self.doubt is not None:
            self.commit()
            self.publish()
        if self.published != self.parameters.version and self.parameters.version > self.rules.warmup_batches:
            self.publish()
        batch = self.next_batch()
        if batch is None:
            return
        tickets = [self.ledger.tables.tickets[number] for number in batch.tickets]
        replays = [self.ledger.tables.tickets[number] for number in batch.replays]
        lost = [ticket.id for ticket in replays if ticket.source not in self.files]
        if lost:
            self.lose(lost)
            return
        if any(not self.readable(ticket) for ticket in tickets):
            return  # the trainer asks again
        kept = self.ledger.replay.sources
        self.check_replays(batch, replays)
        if batch.purpose is Purpose.TRAIN:
            acted = [ticket.result for ticket in tickets if ticket.result and ticket.result.trained_tokens]
            oldest = min((result.oldest_version for result in acted), default=batch.version)
            assert batch.version - oldest <= self.rules.staleness, (batch, oldest)
            newest = max(ticket.result.newest_version for ticket in tickets if ticket.result)
            assert newest <= batch.version, "sampled from a future that was given up"
            groups = {ticket.group for ticket in tickets}
            assert len(groups) == self.rules.batch_groups
        assert batch.version == self.parameters.version
        consumed = set(self.parameters.consumed)
        trained = {*batch.tickets, *batch.replays}
        assert not consumed & trained, "trained twice"
        self.files |= set(batch.tickets)
        self.doubt = Checkpoint(batch.version + 1, batch.id + 1, frozenset(consumed | trained))
        self.parameters = self.doubt
        if manifest_first:
            self.saved.append(self.parameters)
        self.commit()
        self.files = {number for number in self.files if number in kept or number in batch.tickets}
        if batch.publish:
            self.publish()
        if batch.checkpoint and not manifest_first:
            self.save()

    def check_replays(self, batch: Batch, replays: list[Ticket]) -> None:
        """Asserts that replays were trained in these parameters, whole, not too often and recently."""
        rules, consumed = self.rules, self.parameters.consumed
        assert not replays or batch.purpose is Purpose.TRAIN
        groups: dict[int, list[Ticket]] = {}
        for ticket in replays:
            groups.setdefault(ticket.group, []).append(ticket)
        assert len(groups) <= rules.replay_groups
        assert len({ticket.source for ticket in replays}) == len(replays), "one batch has a source twice"
        for ticket in replays:
            assert ticket.source in consumed, "its source is not in the parameters"
            self.sources[ticket.id] = ticket.source
            uses = sum(self.sources.get(number) == ticket.source for number in consumed)
            assert uses < rules.replay_reuse or self.futures_return, "replayed too often"
        for members in groups.values():
            acted = [ticket.result for ticket in members if ticket.result and ticket.result.trained_tokens]
            oldest = min(result.oldest_version for result in acted)
            assert batch.version - oldest <= rules.replay_age

    def lose(self, lost: list[int]) -> None:
        """The trainer asks again, and names the replays that it cannot read: they go, with their groups."""

        def ask() -> None:
            self.ledger.require_trainer("trainer", self.trainer, self.now)
            self.ledger.lose_replays(frozenset(lost))

        sources = {self.ledger.tables.tickets[number].source for number in lost}
        for group in self.ledger.replay.kept:
            if sources & {ticket.id for ticket in group.tickets}:
                self.lost.add(group.order)
        self.act(ask)
        batch = self.ledger.tables.batch
        assert batch is not None and not set(lost) & set(batch.replays)

    def lose_file(self, which: int) -> None:
        """One of the trainer's files is gone, or damaged, which is the same to it."""
        if self.files:
            self.files.remove(sorted(self.files)[which % len(self.files)])

    def next_batch(self) -> Batch | None:
        def ask() -> Batch | None:
            self.ledger.require_trainer("trainer", self.trainer, self.now)
            return phases.next_batch(self.ledger, self.now)

        return self.act(ask)

    def commit(self) -> None:
        assert self.doubt is not None
        doubt = self.doubt
        try:
            self.act(lambda: self.ledger.commit(doubt.next_batch - 1, doubt.version))
        except LedgerError as error:
            raise AssertionError(f"a commit was refused: {error}") from error
        self.doubt = None
        self.kept[doubt.version] = self.kept_now()

    def save(self) -> None:
        if not self.saved or self.saved[-1] != self.parameters:
            self.saved.append(self.parameters)
        held = self.parameters
        self.act(lambda: self.ledger.record_checkpoint(RangeSet.of(held.consumed), version=held.version))

    def readable(self, ticket: Ticket) -> bool:
        assert ticket.result is not None
        return any(
            ticket.result.descriptor_key in rollout.arena
            for rollout in self.rollouts
            if (rollout.name, rollout.incarnation) == (ticket.worker, ticket.incarnation)
        )

    # --- time and truth ---------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.act(lambda: self.ledger.expire(self.now))
        self.revise_members()

    def revise_members(self) -> None:
        """A worker whose membership lapsed finds out with its next call."""
        for rollout in self.rollouts:
            known = self.ledger.tables.workers.get(rollout.name)
            rollout.joined = known is not None and known.incarnation == rollout.incarnation

    def attempt(self, step, *arguments, **named) -> bool:
        """One step of the world; False if the scheduler crashed or refused it."""
        try:
            step(*arguments, **named)
            return True
        except Crash:
            return False
        except EarlError:
            self.revise_members()
            return False

    def check(self) -> None:
        """The ledger agrees with itself and with what really happened, and every few times with its image."""
        tables = self.ledger.tables
        check_tables(tables)
        counts = tables.counts()
        assert sum(counts.values()) == tables.run.next_ticket - 1
        self.checks += 1
        if self.checks % IMAGE_EVERY == 0:
            self.check_image()
        assert len(tables.pending) == counts.get("pending", 0)
        assert self.jumped or "dropped:too_stale" not in counts
        live = len(tables.groups[Purpose.TRAIN])
        assert live <= (self.rules.staleness + 1) * self.rules.batch_groups
        if self.reconciled and self.doubt is None and self.trainer_is_current():
            trained = ids_of(tables, "trained") | ids_of(tables, "replayed")
            assert frozenset(trained) == self.parameters.consumed
        assert len(self.ledger.replay.kept) <= self.rules.replay_capacity
        assert tables.batch is not None or not tables.groups[Purpose.REPLAY]
        for ticket in tables.tickets.values():
            if ticket.state in LIVE:
                match = tables.match(ticket)
                seats = [ticket.seat] if ticket.frozen else list(range(ticket.seats))
                assert [member.seat for member in match] == seats
                assert not ticket.frozen or ticket.purpose in (Purpose.TRAIN, Purpose.REPLAY)
                assert {(member.state, member.group, member.worker) for member in match} == {
                    (ticket.state, ticket.group, ticket.worker)
                }, "a match is torn"
            if ticket.state is TicketState.READY and ticket.result is not None:
                member = tables.workers.get(ticket.worker)
                assert member is not None and member.incarnation == ticket.incarnation, "arena is gone"
                holder = next(r for r in self.rollouts if r.name == ticket.worker)
                alive = holder.incarnation == ticket.incarnation and holder.joined
                assert not alive or ticket.result.descriptor_key in holder.arena, "freed while wanted"

    def check_image(self) -> None:
        """The ledger that is restored from the store is this one."""
        tables = self.ledger.tables
        again = Ledger.restored(self.rules, self.image.peek(), self.now).tables
        check_tables(again)
        assert again.counts() == tables.counts()
        assert again.groups == tables.groups
        assert again.whole == tables.whole
        assert set(again.held) == set(tables.held) and all(
            again.held[key] == tables.held[key] for key in tables.held
        )
        assert again.tickets == tables.tickets and again.issues == tables.issues
        assert again.replays == tables.replays
        assert again.lengths == tables.lengths and again.outcomes == tables.outcomes
        waiting = leased_in_order(tables)
        assert leased_in_order(again) == waiting
        assert set(waiting) == {
            number for number, ticket in tables.tickets.items() if ticket.state is TicketState.PENDING
        }
        stored = {int(name) for kind, name, _ in self.image.peek() if kind == "ticket"}
        of_groups = {one.id for issue in tables.issues.values() for one in issue.tickets()} - stored
        assert of_groups | stored >= set(tables.tickets) and not stored - set(tables.tickets)

    def trainer_is_current(self) -> bool:
        run = self.ledger.tables.run
        return (run.trainer, run.trainer_incarnation) == ("trainer", self.trainer)

    def finish(self) -> None:
        """Without further faults the run ends, with nothing live."""
        self.crash_chance = 0.0
        self.revise_members()
        for rollout in self.rollouts:
            if not rollout.joined:
                self.join(rollout)
        if not self.reconciled or "trainer" not in self.ledger.tables.workers:
            self.reconcile_or_rejoin()
        for rollout in self.rollouts:  # who was silent for long says so before time passes
            self.load(rollout)
        self.ledger.membership.mark_alive("trainer", self.trainer, self.now)
        for _ in range(2000):
            if phases.phase(self.ledger) == phases.DONE:
                break
            self.now += 1.0
            self.act(lambda: self.ledger.expire(self.now))
            for rollout in self.rollouts:
                self.load(rollout)
                self.lease(rollout, 16)
                for number in list(rollout.playing):
                    self.complete(rollout, number, EpisodeEnding.OK)
            self.ledger.membership.mark_alive("trainer", self.trainer, self.now)
            self.train(manifest_first=False)
            self.check()
        assert phases.phase(self.ledger) == phases.DONE, self.ledger.tables.counts()
        self.check_image()
        self.check_history()
        counts = self.ledger.tables.counts()
        assert not set(counts) & {"pending", "leased", "ready", "planned"}, counts
        rules = self.rules
        share = rules.mixture[0]
        trajectories = rules.warmup_batches * rules.warmup_episodes * share.seats
        trajectories += rules.steps * rules.batch_groups * rules.group_size * share.trained_seats
        assert counts["trained"] + counts.get("replayed", 0) == len(self.parameters.consumed)
        if not rules.min_group_size:
            assert counts["trained"] == trajectories
        else:
            spared = rules.group_size - rules.min_group_size
            spared *= rules.steps * rules.batch_groups * share.trained_seats
            assert trajectories - spared <= counts["trained"] <= trajectories

    def reconcile_or_rejoin(self) -> None:
        if self.reconciled and self.trainer_is_current():
            member = WorkerRecord(name="trainer", incarnation=self.trainer)
            self.act(lambda: self.ledger.membership.join(member, self.now))
        else:
            self.reconcile()

    def play(self) -> None:
        """A round in which everyone works: the world gets on, unless something crashes."""
        for rollout in self.rollouts:
            if not rollout.joined:
                self.attempt(self.join, rollout)
            if rollout.joined:
                if self.choices.random() < 0.5:
                    self.attempt(self.load, rollout)
                self.attempt(self.lease, rollout, self.choices.randint(1, 12))
                playing = sorted(rollout.playing)
                for number in self.choices.sample(playing, self.choices.randint(0, len(playing))):
                    self.attempt(self.complete, rollout, number, EpisodeEnding.OK)

    def wander(self, steps: int) -> None:
        """So many random steps, checked after each: mostly work, now and then a fault."""
        endings = [
            EpisodeEnding.TRUNCATED,
            EpisodeEnding.ENV_ERROR,
            EpisodeEnding.INFRA_ERROR,
            EpisodeEnding.TIMEOUT,
        ]
        draw = self.choices
        self.attempt(self.trainer_starts, 0)
        for _ in range(steps):
            rollout = draw.choice(self.rollouts)
            what = draw.random()
            if what < 0.40:
                self.play()
            elif what < 0.70 and self.reconciled:
                self.attempt(self.train, manifest_first=draw.random() < 0.3)
            elif what < 0.80:
                for number in draw.sample(sorted(rollout.playing), min(2, len(rollout.playing))):
                    forget = draw.random() < 0.7
                    self.attempt(self.complete, rollout, number, draw.choice(endings), forget=forget)
            elif what < 0.85:
                self.kill(rollout)
            elif what < 0.88:
                self.attempt(self.trainer_starts, draw.choice([0, 0, 0, 1]))
            elif what < 0.92 and self.reconciled and self.doubt is None:
                self.attempt(self.save)
            elif what < 0.97:
                self.attempt(self.pass_time, draw.choice([1.0, 5.0, 11.0, 31.0]))
            else:
                self.attempt(self.restart)
            if self.rules.replay_reuse and draw.random() < 0.05:
                self.lose_file(draw.randrange(30))
            self.check()
