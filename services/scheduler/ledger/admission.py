"""Admission of groups to batches, so that none is trained more than k versions after it began.

Every phase has a schedule: its s-th batch is made of the places [s·B, (s+1)·B), and the group at a
place has that place's seeds, always. `places` gives those that may be outstanding while a version is
trained. With k = 0 a batch is therefore a function of its version alone; with k > 0 a group that is
slow lets others go ahead, at most k batches far; in a deterministic run none does.

Each group has a deadline: the last version at which it may still be trained, its oldest version + k.
A batch of B groups is trained per version. `choose` prefers groups that are complete, but only as
far as the rest can still meet their deadlines: for every j, of the groups with deadline <= V + j at
most j·B may be left for the j batches after this one. With `target_version` at issue (tickets of the
i-th outstanding group are made for the batch of version V + i // B) this never needs more than B.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from services.scheduler.state.rules import Rules
from services.scheduler.state.tickets import Purpose

# Warm-up needs no weights, so it may run ahead of the trainer.
WARMUP_BATCHES_AHEAD = 4


class GroupCandidate(msgspec.Struct, frozen=True, gc=False):
    """One outstanding group. deadline: last version at which it may be trained."""

    group: int
    deadline: int
    complete: bool


def places(rules: Rules, purpose: Purpose, version: int) -> range:
    """Returns the places in the phase's schedule from the batch trained at `version` to the last to issue."""
    done = max(0, version - 1)
    if purpose is Purpose.WARMUP:
        batches, size, ahead = rules.warmup_batches, rules.warmup_episodes, WARMUP_BATCHES_AHEAD
    else:
        done = max(0, done - rules.warmup_batches)
        batches, size, ahead = rules.steps, rules.batch_groups, rules.staleness + 1
    return range(min(done, batches) * size, min(done + ahead, batches) * size)


def training_step(rules: Rules, version: int) -> int:
    """Returns the step of training, from 0, whose batch is trained at a version."""
    return max(0, version - 1 - rules.warmup_batches)


def target_version(version: int, outstanding_groups: int, batch_groups: int) -> int:
    """Version at which a group issued now is trained at the latest, behind what is outstanding."""
    return version + outstanding_groups // batch_groups


def choose(
    candidates: Sequence[GroupCandidate], version: int, batch_groups: int, staleness: int
) -> list[int] | None:
    """The groups of the batch trained at `version`, oldest first, or None while it must wait.

    It waits when fewer than `batch_groups` groups are complete, or when an incomplete group would
    pass its deadline if it were left out.
    """
    order = sorted(candidates, key=lambda c: (c.deadline, not c.complete, c.group))
    chosen: list[int] = []
    for ahead in range(staleness + 1):
        within = [c for c in order if c.deadline <= version + ahead]
        needed = len(within) - ahead * batch_groups
        taken = set(chosen)
        picked = sum(1 for c in within if c.group in taken)
        for candidate in within:
            if picked >= min(needed, batch_groups):
                break
            if candidate.complete and candidate.group not in taken:
                chosen.append(candidate.group)
                picked += 1
        if picked < min(needed, batch_groups):
            return None
    taken = set(chosen)
    rest = sorted(c.group for c in candidates if c.complete and c.group not in taken)
    chosen.extend(rest[: batch_groups - len(chosen)])
    return sorted(chosen) if len(chosen) == batch_groups else None
