"""The environment, task and seed of the group at each place of a schedule. Pure.

Training and the warm-up draw environments by their shares (draws.py). Where weights have a schedule, the
shares are those of the place's step. An evaluation takes the environments in turns, equally often, whatever
their shares: instance i of it is instance i // n of environment i % n.

An environment with a task set plays its tasks in epochs, each in an order of its own that the seed decides.
A task has one seed for the whole run, so its prompt is the same in every epoch. With a curriculum there are
no epochs: curriculum.py draws the tasks of training.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from services.scheduler.state.curriculum import Curriculum
from services.scheduler.state.rules import Rules, Share
from services.scheduler.state.seeds import EVALUATION_BIT, derive, env_seed
from services.scheduler.state.tickets import Purpose

NO_TASK = -1


@dataclass(frozen=True, slots=True)
class Instance:
    """The instance that a group plays. environment: its label. task: its number in the set, or NO_TASK."""

    environment: str
    env_seed: int
    task: int = NO_TASK


def instance_at(
    rules: Rules, purpose: Purpose, index: int, take: int = 0, curriculum: Curriculum | None = None
) -> Instance:
    """The instance of the index-th group of a purpose; the same for the same seed and mixture.

    take: 0 for the instance itself, n for its n-th substitute. curriculum: None for that of a run that has
    not begun.
    """
    share = share_at(rules, purpose, index)
    judges = purpose is Purpose.EVALUATE and not rules.records
    if not share.train:
        seed = env_seed(rules.seed, purpose, index, take)
        return Instance(share.label, seed if judges else seed & (EVALUATION_BIT - 1))
    if share.curriculum and purpose is Purpose.TRAIN:
        task = _drawn_at(rules, share, index, take, curriculum or Curriculum())
    else:
        task = _task_at(rules, share, purpose, index, take)
    seed = derive(rules.seed, "task", _word(share.label), task) & (EVALUATION_BIT - 1)
    return Instance(share.label, seed | EVALUATION_BIT if judges else seed, task)


def epoch_at(rules: Rules, index: int) -> int | None:
    """The epoch, from 0, in which the index-th group of training plays its task; None if there are none."""
    share = share_at(rules, Purpose.TRAIN, index)
    if not share.train or share.curriculum:
        return None
    return _drawn(rules, share, Purpose.TRAIN, index) // len(share.train)


def share_at(rules: Rules, purpose: Purpose, index: int) -> Share:
    """The environment of the index-th group of a purpose."""
    mixture = rules.mixture
    if len(mixture) == 1:
        return mixture[0]
    if purpose is Purpose.EVALUATE:
        return mixture[index % len(mixture)]
    return mixture[rules.draws(purpose).entry_at(index)]


def evaluated_tasks(rules: Rules, share: Share) -> Sequence[int]:
    """The tasks that evaluations play in turns: those held out, training's where episodes are recorded."""
    return share.train if rules.records else share.held_out


def recorded_at(rules: Rules, index: int, seat: int = 0) -> int | None:
    """The number of the recorded episode that a seat of the warm-up's index-th group imitates, among its
    environment's; None if it plays. Each is imitated once in an epoch, whose order the seed decides."""
    share = share_at(rules, Purpose.WARMUP, index)
    if not share.recorded:
        return None
    epoch, place = divmod(_drawn(rules, share, Purpose.WARMUP, index) * share.seats + seat, share.recorded)
    return _order(derive(rules.seed, "recorded", _word(share.label), epoch), share.recorded)[place]


def shares_at(rules: Rules, purpose: Purpose, places: range) -> list[Share]:
    """The environments of successive groups of training or the warm-up: `share_at` of each, many at once."""
    mixture = rules.mixture
    if len(mixture) == 1:
        return [mixture[0]] * len(places)
    return [mixture[entry] for entry in rules.draws(purpose).entries_at(places)]


def seats_at(rules: Rules, purpose: Purpose, index: int) -> int:
    """The policy's seats in an episode of the index-th group of a purpose: one in every evaluation."""
    return 1 if purpose is Purpose.EVALUATE else share_at(rules, purpose, index).seats


def is_frozen_at(rules: Rules, purpose: Purpose, index: int) -> bool:
    """Returns whether a frozen version plays all seats but one of the index-th group of a purpose."""
    return purpose is Purpose.TRAIN and share_at(rules, purpose, index).frozen


def group_size_at(rules: Rules, purpose: Purpose, index: int) -> int:
    """The trajectories of the index-th group of a purpose: one for each seat of its episodes that learns.

    Without those of extra episodes: with as many accepted, a group of training is closed.
    """
    return _trajectories(rules, purpose, share_at(rules, purpose, index))


def issued_size_at(rules: Rules, purpose: Purpose, index: int) -> int:
    """The tickets that the index-th group of a purpose is issued with: its trajectories, and those of extra
    episodes."""
    extra = rules.extra_episodes if purpose is Purpose.TRAIN else 0
    return group_size_at(rules, purpose, index) + extra * share_at(rules, purpose, index).trained_seats


def batch_part_at(rules: Rules, purpose: Purpose, index: int) -> float:
    """The part of a batch that a trajectory of the index-th group of a purpose is; 0 for an evaluation."""
    if purpose is Purpose.EVALUATE:
        return 0.0
    groups = rules.batch_groups if purpose is Purpose.TRAIN else rules.warmup_episodes
    return 1.0 / (groups * group_size_at(rules, purpose, index))


def batch_episodes(rules: Rules, purpose: Purpose, first: int) -> int:
    """The episodes, and matches, of the batch whose groups are those of the places from `first` on."""
    if purpose is not Purpose.TRAIN:
        return rules.warmup_episodes
    shares = shares_at(rules, purpose, range(first, first + rules.batch_groups))
    return sum(share.group_size or rules.group_size for share in shares)


def batch_trajectories(rules: Rules, purpose: Purpose, first: int) -> int:
    """The trajectories of the batch whose groups are those of the places from `first` on."""
    count = rules.batch_groups if purpose is Purpose.TRAIN else rules.warmup_episodes
    if len(rules.mixture) == 1:
        return count * group_size_at(rules, purpose, first)
    shares = shares_at(rules, purpose, range(first, first + count))
    return sum(_trajectories(rules, purpose, share) for share in shares)


# --- within ---------------------------------------------------------------------------------


def _trajectories(rules: Rules, purpose: Purpose, share: Share) -> int:
    """The trajectories of a group of this environment."""
    if purpose is Purpose.TRAIN:
        return (share.group_size or rules.group_size) * share.trained_seats
    return 1 if purpose is Purpose.EVALUATE else share.seats


def _task_at(rules: Rules, share: Share, purpose: Purpose, index: int, take: int) -> int:
    if purpose is Purpose.EVALUATE:
        tasks = evaluated_tasks(rules, share)
        return tasks[index // len(rules.mixture) % len(tasks)]
    count, word = len(share.train), _word(share.label)
    epoch, place = divmod(_drawn(rules, share, purpose, index), count)
    order = _order(derive(rules.seed, "epoch", purpose, word, epoch), count)
    if take:
        # Not the task whose turn it was, and no earlier substitute for it, while there are others.
        others = max(1, count - 1)
        first = derive(rules.seed, "take", purpose, word, index) % others
        place += 1 + (first + take - 1) % others
    return share.train[order[place % count]]


def _drawn_at(rules: Rules, share: Share, index: int, take: int, curriculum: Curriculum) -> int:
    """The task that the curriculum draws for the index-th group of training."""
    step = index // rules.batch_groups
    first = step * rules.batch_groups
    number = sum(other is share for other in shares_at(rules, Purpose.TRAIN, range(first, index)))
    seed = derive(rules.seed, "order", _word(share.label), step)
    return curriculum.task(share.label, share.train, seed, step - rules.staleness, number, take)


def _drawn(rules: Rules, share: Share, purpose: Purpose, index: int) -> int:
    """The number of places before `index` that play the environment."""
    if len(rules.mixture) == 1:
        return index
    return rules.draws(purpose).count_before(rules.mixture.index(share), index)


@lru_cache(maxsize=8)
def _order(seed: int, count: int) -> list[int]:
    """A permutation of range(count)."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


@lru_cache(maxsize=256)
def _word(label: str) -> int:
    """A label as one word of a seed: `derive` takes 8 bytes of a text."""
    return derive(0, *(label[place : place + 8] for place in range(0, len(label), 8)))
