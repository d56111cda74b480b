"""Splits a planned batch over trainer ranks, and summarises a committed one. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from earl.config.frozen_schedule import FrozenSchedule
from earl.fragments.advantages import ADVANTAGES, GroupOutcomes, advantages_of
from earl.fragments.lookup import load_fragment
from earl.ticket_ranges import RangeSet
from services.scheduler.batches.balance import balance
from services.scheduler.batches.columns import NOWHERE, Location
from services.scheduler.state.run import Batch, CommittedBatch
from services.scheduler.state.tickets import EpisodeEnding, EpisodeResult, Purpose, Ticket

# Numbers of an environment's last result that are 0 or 1: their means are rates.
INDICATORS = frozenset({"win", "draw", "loss", "illegal"})
NO_TICKETS = RangeSet()


class PlannedColumn(msgspec.Struct, frozen=True):
    """The place of a sequence's column of a role; names are those of the message."""

    role: str
    keys: tuple[str, ...]
    offset: int = 0


class PlannedSequence(msgspec.Struct, frozen=True):
    """One sequence for one rank; names are those of the message. position: in the batch, over all ranks."""

    position: int
    ticket_id: int
    attempt: int
    group_id: int
    descriptor_key: str
    advantage: float
    reward: float
    total_tokens: int
    columns: tuple[PlannedColumn, ...] = ()
    masked: bool = False
    protected_kl: float = 0.0
    source: int = 0
    reference_kept: bool = False


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch split over ranks. Tokens of all ranks together. kept: ranges of the tickets whose columns later
    batches may replay. teacher_weight: of the teacher in it, 0..1."""

    batch: Batch
    ranks: tuple[tuple[PlannedSequence, ...], ...]
    total_tokens: int
    trained_tokens: int
    kept: tuple[tuple[int, int], ...] = ()
    teacher_weight: float = 0.0


def split_batch(
    batch: Batch,
    tickets: Mapping[int, Ticket],
    ranks: int,
    advantage: str,
    columns: Mapping[str, Mapping[int, Location]] = MappingProxyType({}),
    *,
    masks_truncated: bool = False,
    protected_kl: Mapping[str, float] = MappingProxyType({}),
    reference_for: Collection[str] | None = (),
    kept: RangeSet = NO_TICKETS,
    teacher_weight: float = 0.0,
    score_coefficient: float = 0.0,
) -> BatchPlan:
    """The batch balanced over `ranks` by tokens; the same arguments give the same plan.

    advantage: the fragment's name (earl.fragments.advantages); a group counts once for each seat of its own.
    Sequences of a warm-up batch all weigh 1. columns: by role, where its columns of tickets lie.
    masks_truncated: rewards of truncated trajectories count in their groups, their tokens in no loss.
    protected_kl: by the label of an environment, the weight of the KL on its tokens; of others it is 0.
    reference_for: labels of the environments whose sequences have reference log-probs, None for all; those of
    replays lie with their columns. kept: tickets whose columns later batches may replay. score_coefficient:
    of the reward model's scores, which rewards are raised by.
    Raises ConfigError and FragmentError for a fragment that cannot be had, or that fails.
    """
    numbers = [*batch.tickets, *batch.replays]
    members = [tickets[number] for number in numbers]
    columns_of = {number: _columns_of(columns, number) for number in numbers}
    results = [ticket.result or EpisodeResult() for ticket in members]
    advantages = _advantages(batch, members, results, advantage, score_coefficient)
    masks = masks_truncated and batch.purpose is Purpose.TRAIN
    masked = [masks and result.ending is EpisodeEnding.TRUNCATED for result in results]
    items = [
        PlannedSequence(
            position=position,
            ticket_id=ticket.id,
            attempt=ticket.attempt,
            group_id=ticket.group,
            descriptor_key=result.descriptor_key,
            advantage=value,
            reward=result.reward,
            total_tokens=result.total_tokens,
            columns=columns_of[ticket.id],
            masked=masked[position],
            protected_kl=protected_kl.get(ticket.environment, 0.0),
            source=ticket.source,
            reference_kept=bool(ticket.source and result.trained_tokens)
            and (reference_for is None or ticket.environment in reference_for),
        )
        for position, (ticket, result, value) in enumerate(zip(members, results, advantages, strict=True))
    ]
    assigned = balance([item.total_tokens for item in items], ranks)
    return BatchPlan(
        batch=batch,
        ranks=tuple(tuple(items[index] for index in indices) for indices in assigned),
        total_tokens=sum(result.total_tokens for result in results),
        trained_tokens=sum(
            result.trained_tokens for result, left_out in zip(results, masked, strict=True) if not left_out
        ),
        kept=kept.ranges,
        teacher_weight=teacher_weight,
    )


def _columns_of(columns: Mapping[str, Mapping[int, Location]], number: int) -> tuple[PlannedColumn, ...]:
    located = ((role, locations.get(number, NOWHERE)) for role, locations in columns.items())
    return tuple(PlannedColumn(role, place.keys, place.offset) for role, place in located if place.keys)


def _advantages(
    batch: Batch,
    members: Sequence[Ticket],
    results: Sequence[EpisodeResult],
    name: str,
    score_coefficient: float,
) -> list[float]:
    if batch.purpose is not Purpose.TRAIN:
        return [1.0] * len(members)
    groups: dict[tuple[int, int], list[int]] = {}
    for index, ticket in enumerate(members):
        groups.setdefault((ticket.group, ticket.seat), []).append(index)
    outcomes = [
        GroupOutcomes(
            tuple(results[index].trained_reward(score_coefficient) for index in indices),
            tuple(results[index].trained_tokens for index in indices),
        )
        for indices in groups.values()
    ]
    fragment = load_fragment("scheduler.advantage", name, ADVANTAGES)
    made = advantages_of(name, fragment, outcomes)
    advantages = [0.0] * len(members)
    for indices, values in zip(groups.values(), made, strict=True):
        for index, value in zip(indices, values, strict=True):
            advantages[index] = value
    return advantages


def summary(
    committed: CommittedBatch, *, masks_truncated: bool = False, frozen: FrozenSchedule | None = None
) -> dict[str, float]:
    """Summarises a committed batch's trajectories; names are those of metrics.jsonl.

    The figures of an environment of a mixture are named "environments.LABEL.FIGURE", those of a seat, where
    the policy has several, "seats.SEAT.FIGURE". masks_truncated: as for split_batch. frozen: the schedule of
    a run against frozen versions; opponent_version is then the mean of those that were met.
    """
    batch, results, environments, seats, against, replays = committed
    if not results:
        return {}
    masks = masks_truncated and batch.purpose is Purpose.TRAIN
    rows = [_row(result) for result in results]
    seats = seats or [0] * len(rows)
    figures = _figures(batch, rows, masks=masks) | _seat_figures(rows, seats)
    figures |= _replay_figures(batch, replays)
    if frozen is not None and against:
        figures["opponent_version"] = sum(map(frozen.version_at, against)) / len(against)
    of_labels: dict[str, tuple[list[_Row], list[int]]] = {}
    labelled = zip(environments, rows, seats, strict=True) if any(environments) else ()
    for label, row, seat in labelled:
        chosen, theirs = of_labels.setdefault(label, ([], []))
        chosen.append(row)
        theirs.append(seat)
    for label, (chosen, theirs) in of_labels.items():
        of_label = _figures(batch, chosen, masks=masks) | _seat_figures(chosen, theirs)
        figures |= {f"environments.{label}.{name}": value for name, value in of_label.items()}
    return figures


# Reward, win, tokens, turns, trained tokens, truncated, oldest version, metrics, score of one trajectory:
# plain tuples, because every trajectory of a run has one.
_Row = tuple[float, float, int, int, int, bool, int, Mapping[str, float], float | None]


def _row(result: EpisodeResult) -> _Row:
    truncated = result.ending is EpisodeEnding.TRUNCATED
    counts = (result.total_tokens, result.turns, result.trained_tokens)
    return result.reward, result.win, *counts, truncated, result.oldest_version, result.metrics, result.score


def _replay_figures(batch: Batch, replays: Sequence[EpisodeResult]) -> dict[str, float]:
    """The figures of what the batch trained on again, which no other figure counts; none without replays."""
    ages = [batch.version - result.oldest_version for result in replays if result.trained_tokens]
    if not ages:
        return {}
    return {
        "replayed_sequences": float(len(replays)),
        "replayed_tokens": float(sum(result.total_tokens for result in replays)),
        "replay_age_mean": sum(ages) / len(ages),
        "replay_age_max": float(max(ages)),
    }


def _seat_figures(rows: Sequence[_Row], seats: Sequence[int]) -> dict[str, float]:
    """The figures of each seat; none where there is only one."""
    figures: dict[str, float] = {}
    for seat in range(max(seats) + 1) if any(seats) else ():
        chosen = [row for row, other in zip(rows, seats, strict=True) if other == seat]
        if chosen:
            rewards, wins, _, turns, *_ = zip(*chosen, strict=True)
            figures |= {
                f"seats.{seat}.reward_mean": sum(rewards) / len(chosen),
                f"seats.{seat}.win_rate": sum(wins) / len(chosen),
                f"seats.{seat}.turns_mean": sum(turns) / len(chosen),
            }
    return figures


def _figures(batch: Batch, rows: Sequence[_Row], *, masks: bool) -> dict[str, float]:
    """The figures of trajectories, at least one. masks: no token of a truncated one is trained on."""
    rewards, wins, tokens, turns, trained, truncated, oldest, reported, scored = zip(*rows, strict=True)
    in_loss = sum(trained)
    if masks and any(truncated):
        in_loss -= sum(count for count, ended in zip(trained, truncated, strict=True) if ended)
    staleness: list[int] = []
    if batch.purpose is Purpose.TRAIN:  # imitation has no policy to be stale
        staleness = [batch.version - first for first, count in zip(oldest, trained, strict=True) if count]
    metrics: dict[str, list[float]] = {}
    for measured in filter(None, reported):
        for name, value in measured.items():
            metrics.setdefault(name.replace(".", "_"), []).append(value)
    metrics.pop("win", None)
    count = len(rows)
    scores = [score for score in scored if score is not None]
    return {
        "sequences": float(count),
        "reward_mean": sum(rewards) / count,
        "win_rate": sum(wins) / count,
        **({"reward_model_mean": sum(scores) / len(scores)} if scores else {}),
        "tokens": float(sum(tokens)),
        "trained_tokens": float(in_loss),
        "length_mean": sum(tokens) / count,
        "length_max": float(max(tokens)),
        "length_tail_ratio": max(tokens) * count / max(1, sum(tokens)),
        "turns_mean": sum(turns) / count,
        "truncated_episodes": float(sum(truncated)),
        "staleness_mean": sum(staleness) / len(staleness) if staleness else 0.0,
        "staleness_max": float(max(staleness, default=0)),
        **{
            f"{name}_{'rate' if name in INDICATORS else 'mean'}": sum(values) / len(values)
            for name, values in sorted(metrics.items())
        },
    }
