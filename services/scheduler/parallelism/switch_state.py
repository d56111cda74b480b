"""How every stage should be cut, and who is told: commands follow from what is wanted and what is. Pure.

    ask ─► switch ─► commands ─► answers ─► all have done it ─────────────► the stage is cut so
                        ▲           └─ one failed, refused, was lost ───────► it is cut as before
    join, heartbeat ────┴── who is cut otherwise than its stage is told (By.MEND), also the way back

Promise: one switch a stage at a time, each with an epoch that no other ever has; a command is told until it
is answered, its worker is gone or its time is over, so that lost ones, repeated ones and restarts of either
side need no case of their own. Whatever happens, a stage ends cut alike, as far as its workers obey.

Time is an argument (monotonic seconds). All but clocks is in the book, and stored before anyone is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from earl.errors import IllegalParallelism, LedgerError
from earl.parallelism import Parallelism
from services.scheduler.ledger.index import Book
from services.scheduler.monitor.workers import STAGES
from services.scheduler.state.records import Member
from services.scheduler.state.switch_records import Answer, By, Command, Course, Ended, Replica, Switch

# Switches whose cost is remembered.
COSTS = 8
# A worker that cannot be brought to its stage's cut is tried again after retry_s, then twice that, at most:
RESTS = 8
MESSAGES = 4


class Switching:
    """Of one book's stages.

    patience_s: for all answers of a switch, and as long again for the way back. retry_s: for so long what
    failed is not tried again. tolerance: of log-probs; what is further apart makes a layout bad.
    """

    def __init__(self, book: Book, *, patience_s: float, retry_s: float, tolerance: float) -> None:
        self._book = book
        self._patience_s = patience_s
        self._retry_s = retry_s
        self._tolerance = tolerance
        # By stage: when its switch began, or this process if that was later.
        self._began_s: dict[str, float] = {}
        # By stage: workers, with their incarnations, that failed in its switch.
        self._tried: dict[str, set[tuple[str, int]]] = {}
        # (stage, replica's name): (until when, why).
        self._avoided: dict[tuple[str, str], tuple[float, str]] = {}
        # By worker: (until when it is left in peace, for how long).
        self._resting: dict[str, tuple[float, float]] = {}

    # --- what is ----------------------------------------------------------------------------

    def course(self, stage: str) -> Course:
        """What is kept of a stage."""
        return self._book.courses.get(stage) or Course()

    def devices(self, stage: str) -> list[int]:
        """Of each worker of the stage."""
        return [_cut(member).devices for member in self._members(stage).values()]

    def running(self, stage: str) -> Parallelism | None:
        """How the stage's workers are cut, all together; None if there are none, or they differ."""
        cuts = [_cut(member) for member in self._members(stage).values()]
        if len({cut.replica for cut in cuts}) != 1:
            return None
        return replace(cuts[0], dp=sum(cut.dp for cut in cuts))

    def heading(self, stage: str) -> Parallelism | None:
        """What the stage is being cut to, or how it is cut; None where its workers differ for good."""
        course = self.course(stage)
        if course.switch is None:
            return self.running(stage)
        stays = course.switch.rolled_back or course.switch.by is By.MEND
        replica = course.replica if stays else course.switch.asked.replica
        return replica and Parallelism(1, *replica).over(sum(self.devices(stage)))

    def barred(self, stage: str, now: float) -> Mapping[Replica, str]:
        """Replicas that are not to be chosen now, and why."""
        found = {Parallelism.parse(name).replica: why for name, why in self.course(stage).bad.items()}
        for (of, name), (until, why) in self._avoided.items():
            if of == stage and now < until:
                found.setdefault(Parallelism.parse(name).replica, why)
        return found

    # --- what is wanted ---------------------------------------------------------------------

    def ask(
        self, stage: str, wanted: Replica, *, by: By, reason: str, now: float, step: int = 0
    ) -> Switch | None:
        """Begins a switch of all the stage's workers; None if they are cut so already.

        Raises LedgerError (nobody to tell, a switch runs, a bad layout) and IllegalParallelism.
        """
        members = self._members(stage)
        if not members:
            raise LedgerError(f"no worker of stage {stage} takes part in the run", "wait until one joined")
        course = self._own(stage)
        name = _name(wanted)
        if course.switch is not None:
            raise LedgerError(
                f"{stage} is on its way from {course.switch.former} to {course.switch.asked}",
                "wait until that has ended: earl parallelism",
            )
        if name in course.bad:
            raise LedgerError(f"{name} is not used in this run again: {course.bad[name]}", "choose another")
        cuts = {one: Parallelism(1, *wanted).over(_cut(member).devices) for one, member in members.items()}
        unfit = [one for one, cut in cuts.items() if cut is None]
        if unfit:
            raise IllegalParallelism(
                f"{unfit[0]}'s {_count(_cut(members[unfit[0]]).devices)} cannot be cut into replicas of "
                f"{name}",
                "choose one whose tp x cp x pp divides them",
            )
        if all(_cut(member).replica == wanted for member in members.values()):
            course.replica = wanted
            return None
        before = self.running(stage) or Parallelism(1, *(course.replica or _usual(members)))
        course.replica = before.replica
        after = Parallelism(sum(cut.dp for cut in cuts.values() if cut is not None), *wanted)
        return self._begin(stage, course, before, after, by, reason, step, now)

    def pin(self, stage: str, pinned: bool) -> None:
        """Whether the selector leaves the stage alone; pinned, it is also kept as it is cut now."""
        course = self._own(stage)
        course.pinned = pinned
        running = self.running(stage)
        if pinned and course.replica is None and running is not None:
            course.replica = running.replica

    # --- what workers say -------------------------------------------------------------------

    def reported(self, member: Member, cut: Parallelism | None, epoch: int) -> None:
        """A heartbeat. cut: None from a worker that does not say, which counts as it joined."""
        stage = STAGES.get(member.stage)
        if stage is None:
            return
        if epoch > self.course(stage).epoch:
            # A store that was lost: no epoch of ours may be one that a worker knows already.
            self._own(stage).epoch = epoch
        if cut is None or epoch < member.epoch or (cut == _cut(member) and epoch == member.epoch):
            return
        self._set(member, cut, epoch)

    def answered(self, command: Command, answer: Answer, now: float) -> None:
        """A worker carried a command out, or rolled it back. Of a switch that is over: nothing."""
        course, switch = self._waits_for(command)
        if switch is None:
            return
        del switch.commanded[command.worker]
        member = self._book.members[command.worker]
        agrees = answer.max_logprob_difference <= self._tolerance
        cut = answer.parallelism or (_cut(member) if answer.rolled_back else command.parallelism)
        failed = answer.rolled_back or cut.replica != command.parallelism.replica
        self._set(member, cut, member.epoch if failed else command.epoch)
        switch.stall_s = max(switch.stall_s, answer.stall_s)
        switch.sequences_continued += answer.sequences_continued
        switch.moved_bytes += answer.moved_bytes
        # NaN is further apart than anything.
        if not agrees or answer.max_logprob_difference > switch.max_logprob_difference:
            switch.max_logprob_difference = answer.max_logprob_difference
        if not failed:
            self._resting.pop(command.worker, None)
            return
        why = answer.message or f"it is {cut}"
        self._fail(command.stage, switch, (command.worker, command.incarnation), why, now)
        if not agrees and switch.by is not By.MEND:
            course.bad[_name(switch.asked.replica)] = why

    def failed(self, command: Command, why: str, now: float) -> None:
        """A worker refused a command, or an error came of it."""
        _, switch = self._waits_for(command)
        if switch is not None:
            self._fail(command.stage, switch, (command.worker, command.incarnation), why, now)

    # --- what follows -----------------------------------------------------------------------

    def advance(self, now: float) -> list[Ended]:
        """Goes on with every stage's switch; those that are over now."""
        ended = []
        for stage in list(self._book.courses):
            course = self._book.courses[stage]
            if course.switch is not None and self._over(stage, course.switch, now):
                ended.append(self._end(stage, course, course.switch, now))
            if course.switch is None:
                self._mend(stage, course, now)
        return ended

    def commands(self, now: float) -> list[Command]:
        """All that is to be told now, what was told and is not answered included; store before telling."""
        found = []
        for stage, course in self._book.courses.items():
            switch = course.switch
            if switch is None:
                continue
            members = self._members(stage)
            for name in self._pending(stage, switch, now):
                switch.commanded[name] = members[name].incarnation
            for name, incarnation in switch.commanded.items():
                member = members.get(name)
                if member is None or member.incarnation != incarnation:
                    continue
                cut = switch.asked.over(_cut(member).devices)
                if cut is not None:
                    found.append(
                        Command(stage, name, incarnation, member.address, switch.epoch, cut, switch.reason)
                    )
        return found

    # --- within -----------------------------------------------------------------------------

    def _begin(
        self, stage: str, course: Course, before: Parallelism, after: Parallelism, by: By, reason: str,
        step: int, now: float,
    ) -> Switch:  # fmt: skip
        course.epoch += 1
        course.switch = Switch(
            epoch=course.epoch,
            before=(before.dp, *before.replica),
            after=(after.dp, *after.replica),
            by=by,
            reason=reason,
            step=step,
        )
        self._began_s[stage] = now
        self._tried[stage] = set()
        return course.switch

    def _mend(self, stage: str, course: Course, now: float) -> None:
        """Begins a switch of the workers that are cut otherwise than their stage."""
        if course.replica is None:
            return
        members = self._members(stage)
        astray = [
            name
            for name, member in members.items()
            if _cut(member).replica != course.replica
            and Parallelism(1, *course.replica).over(_cut(member).devices) is not None
            and not self._rests(name, now)
        ]
        if not astray:
            return
        cuts = [_cut(members[name]) for name in astray]
        after = [
            cut for one in cuts if (cut := Parallelism(1, *course.replica).over(one.devices)) is not None
        ]
        self._begin(
            stage, course,
            replace(cuts[0], dp=sum(one.dp for one in cuts if one.replica == cuts[0].replica)),
            replace(after[0], dp=sum(one.dp for one in after)),
            By.MEND, f"{', '.join(astray)}: not cut as {stage} is", 0, now,
        )  # fmt: skip

    def _over(self, stage: str, switch: Switch, now: float) -> bool:
        """Whether a switch has ended."""
        began_s = self._began_s.setdefault(stage, now)
        members = self._members(stage)
        for name, incarnation in list(switch.commanded.items()):
            member = members.get(name)
            if member is None or member.incarnation != incarnation:
                self._fail(stage, switch, (name, incarnation), "lost in the middle of it", now)
            elif now - began_s > self._patience_s:
                why = f"no answer within {self._patience_s:g} s"
                self._fail(stage, switch, (name, incarnation), why, now)
        return not switch.commanded and not self._pending(stage, switch, now)

    def _end(self, stage: str, course: Course, switch: Switch, now: float) -> Ended:
        switch.seconds = max(switch.stall_s, now - self._began_s.pop(stage, now))
        self._tried.pop(stage, None)
        course.switch = None
        if switch.by is not By.MEND:
            course.last = switch
        running = self.running(stage)
        if not switch.rolled_back:
            course.replica = switch.asked.replica
            if switch.by is not By.MEND:
                course.costs_s = [*course.costs_s, switch.cost_s][-COSTS:]
        elif switch.by is By.MEND and running is not None and not course.pinned:
            # All of them are cut alike, though otherwise than before: then that is how the stage is cut.
            course.replica = running.replica
        ended = Ended(stage, switch)
        self._book.state(ended)
        return ended

    def _pending(self, stage: str, switch: Switch, now: float) -> list[str]:
        """Workers that are still to be told."""
        if switch.rolled_back and switch.by is not By.MEND:
            return []
        tried = self._tried.setdefault(stage, set())
        return [
            name
            for name, member in self._members(stage).items()
            if _cut(member).replica != switch.asked.replica
            and switch.asked.over(_cut(member).devices) is not None
            and name not in switch.commanded
            and (name, member.incarnation) not in tried
            and not (switch.by is By.MEND and self._rests(name, now))
        ]

    def _fail(self, stage: str, switch: Switch, worker: tuple[str, int], why: str, now: float) -> None:
        """One worker is not cut as it was told."""
        switch.commanded.pop(worker[0], None)
        self._tried.setdefault(stage, set()).add(worker)
        said = f"{worker[0]}: {why}"
        messages = [one for one in switch.message.split("; ") if one]
        if said not in messages and len(messages) < MESSAGES:
            switch.message = "; ".join([*messages, said])
        switch.rolled_back = True
        if switch.by is By.MEND:
            pause_s = min(
                2 * self._resting.get(worker[0], (0.0, self._retry_s / 2))[1], RESTS * self._retry_s
            )
            self._resting[worker[0]] = now + pause_s, pause_s
        else:
            self._avoided[stage, _name(switch.asked.replica)] = now + self._retry_s, said

    def _waits_for(self, command: Command) -> tuple[Course, Switch | None]:
        """The stage's course, and its switch if that waits for an answer to this very command."""
        course = self.course(command.stage)
        switch = course.switch
        if switch is None or command.epoch != switch.epoch:
            return course, None
        member = self._book.members.get(command.worker)
        if member is None or member.incarnation != command.incarnation:
            return course, None
        if switch.commanded.get(command.worker) != command.incarnation:
            return course, None
        return course, switch

    def _rests(self, worker: str, now: float) -> bool:
        return now < self._resting.get(worker, (-math.inf, 0.0))[0]

    def _set(self, member: Member, cut: Parallelism, epoch: int) -> None:
        cut_so = (cut.dp, *cut.replica)
        self._book.members[member.name] = structs.replace(member, parallelism=cut_so, epoch=epoch)

    def _own(self, stage: str) -> Course:
        return self._book.courses.setdefault(stage, Course())

    def _members(self, stage: str) -> dict[str, Member]:
        of = self._book.members
        return {name: member for name, member in of.items() if STAGES.get(member.stage) == stage}


def _cut(member: Member) -> Parallelism:
    return Parallelism(*member.parallelism)


def _name(replica: Replica) -> str:
    return str(Parallelism(1, *replica))


def _usual(members: Mapping[str, Member]) -> Replica:
    """How most workers are cut."""
    cuts = [_cut(member).replica for member in members.values()]
    return max(cuts, key=lambda one: (cuts.count(one), one))


def _count(devices: int) -> str:
    return f"{devices} device{'s' * (devices != 1)}"
